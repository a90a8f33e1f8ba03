"""Reported failures that show on a real model: scores that depend on the cache, tiny temperatures, equal samples, what
a preemption loses, and scripts that do not end."""

import math
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.api.outputs import RequestOutput

STORY = "Once upon a time"
SHARED = [504, 3575, 282, 4649, 314, 7042, 28, 905] * 4
PROMPTS = [[*SHARED, 19556], [*SHARED, *range(1000, 1008)], [*SHARED, *range(2000, 2038)]]  # 33, 40 and 70 ids


def small(weight_cache: Path, **options: Any) -> LLM:
    return LLM(max_model_len=128, weight_cache_dir=str(weight_cache), seed=3, **options)


def scores(llm: LLM, order: str) -> dict[str, list[float | None]]:
    """Log-probabilities of the prompts A, B and C, asked for in this order."""
    params = SamplingParams(prompt_logprobs=1, max_tokens=1, temperature=0)
    prompts = [{"prompt_token_ids": PROMPTS["ABC".index(letter)]} for letter in order]
    found: dict[str, list[float | None]] = {}
    for letter, prompt, output in zip(order, prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
        entries = output.prompt_logprobs
        assert entries is not None
        ids = prompt["prompt_token_ids"]
        assert len(entries) == len(ids)
        assert entries[0] is None
        found[letter] = [e[token].logprob if e else None for e, token in zip(entries, ids, strict=True)]
    return found


def test_scores_of_prompts_depend_on_neither_cache_nor_order_nor_chunks(llm: LLM, weight_cache: Path) -> None:
    with small(weight_cache, enable_prefix_caching=False) as plain:
        wanted = scores(plain, "ABC")
    for order in ("ABC", "CBA", "ABC"):
        assert scores(llm, order) == wanted
    with small(weight_cache, max_num_batched_tokens=16, max_num_seqs=4) as chunked:
        for order in ("ABC", "CBA"):
            assert scores(chunked, order) == wanted


ONE_LEFT: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}]  # never widened to all


def test_a_tiny_temperature_is_no_temperature(llm: LLM) -> None:
    temperatures = [0.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 5e-324]
    params = [SamplingParams(temperature=t, max_tokens=8, logprobs=1, seed=9) for t in temperatures]
    params += [SamplingParams(max_tokens=8, logprobs=1, **narrow) for narrow in ONE_LEFT]
    outputs = llm.generate(["The capital of France is"] * len(params), params, use_tqdm=False)
    first = outputs[0].outputs[0]
    for output in outputs:
        answer = output.outputs[0]
        assert answer.token_ids == first.token_ids
        assert answer.logprobs is not None
        assert all(math.isfinite(entry.logprob) for step in answer.logprobs for entry in step.values())


def samples(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(choice.token_ids) for choice in outputs[0].outputs]


def test_samples_of_one_seed_differ_and_come_again_in_any_company(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=7, temperature=1.0, max_tokens=16, ignore_eos=True)
    first = samples(llm.generate(STORY, params, use_tqdm=False))
    assert len(set(map(tuple, first))) > 1
    assert samples(llm.generate(STORY, params, use_tqdm=False)) == first
    others = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    company = llm.generate([STORY, "One", "Two", "Three"], [params, others, others, others], use_tqdm=False)
    assert samples(company) == first


def pressed(llm: LLM) -> list[list[tuple[Any, ...]]]:
    """Six requests, of which one has three samples: all there is to know of their answers."""
    prompts = [{"prompt_token_ids": [100 + 37 * number + position for position in range(40)]} for number in range(6)]
    base: dict[str, Any] = {"max_tokens": 60, "logprobs": 1, "repetition_penalty": 1.2, "ignore_eos": True}
    params = [SamplingParams(temperature=0.0, **base) for _ in prompts]
    params[2] = SamplingParams(n=3, seed=5, temperature=1.0, **base)
    params[4] = SamplingParams(temperature=0.9, seed=8, stop=["e"], **base)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        [
            (c.text, c.token_ids, c.finish_reason, c.stop_reason, c.cumulative_logprob, len(c.logprobs or ()))
            for c in output.outputs
        ]
        for output in outputs
    ]


def test_a_preemption_loses_and_doubles_nothing(llm: LLM, weight_cache: Path) -> None:
    wanted = pressed(llm)
    assert all(choice[-1] == len(choice[1]) for answer in wanted for choice in answer)
    with small(weight_cache, num_gpu_blocks_override=20, max_num_seqs=8) as tight:
        assert pressed(tight) == wanted
        stats = tight.llm_engine.engine.client.stats()
        assert stats.preemptions > 0
        assert stats.used_blocks == 0


# --- processes ------------------------------------------------------------------------------------------------------

_BUILD = """
import os, sys
from octavo import LLM, SamplingParams
def built():
    return LLM(max_model_len=64, max_num_seqs=1, weight_cache_dir=sys.argv[1])
def say(llm):
    params = SamplingParams(temperature=0, max_tokens=4)
    print(llm.generate("The capital of France is", params, use_tqdm=False)[0].outputs[0].token_ids, flush=True)
"""
SCRIPTS = {
    "falls off its end with two models": "one, two = built(), built()\nsay(one)\nsay(two)\n",
    "raises": "llm = built()\nsay(llm)\nraise RuntimeError('after all')\n",
    "one core": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nllm = built()\nsay(llm)\n",
}


def test_scripts_that_start_at_once_end_by_themselves_with_the_same_answer(weight_cache: Path, llm: LLM) -> None:
    (wanted,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    running = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _BUILD + textwrap.dedent(script), str(weight_cache)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "64"},
        )
        for name, script in SCRIPTS.items()
    }
    begun = time.monotonic()
    for name, process in running.items():
        out, err = process.communicate(timeout=240)
        assert process.returncode == (1 if name == "raises" else 0), err
        assert ("after all" in err) == (name == "raises")
        said = out.splitlines()
        assert set(said) == {str(list(wanted.outputs[0].token_ids))}, name
        assert len(said) == (2 if "two" in name else 1)
    assert time.monotonic() - begun < 240


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], {"prompt": ""}])
def test_an_empty_prompt_is_a_value_error(llm: LLM, prompt: Any) -> None:
    if prompt == []:
        assert llm.generate(prompt, use_tqdm=False) == []  # no prompts, no answers
        return
    with pytest.raises(ValueError, match="empty"):
        llm.generate(prompt, use_tqdm=False)
    assert llm.llm_engine.engine.client.stats().used_blocks == 0
