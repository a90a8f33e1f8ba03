"""What public scripts use of vLLM's offline classes: it works, or says what to do instead."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, LLMEngine, RequestOutput, SamplingParams
from octavo.api import receipts
from octavo.api.async_llm import AsyncLLM
from octavo.cli.main import main
from octavo.errors import InvalidRequestError, UnsupportedError
from tests.product.test_vllm_scripts import run

TALK = [{"role": "user", "content": "Name a colour."}]


# --- receipts --------------------------------------------------------------------------------------------------------


ASKED: list[dict[str, Any]] = [
    {"temperature": 1.2, "n": 2, "top_p": 0.9, "stop": ["zzz"], "max_tokens": 9},
    {"temperature": 0.0, "max_tokens": 6, "logits_rules": [{"do": "scale", "tokens": [11, 28], "value": 0.5}]},
    {"seed": 5, "structured_outputs": {"regex": "[a-c]{3,9}"}, "max_tokens": 12, "ignore_eos": True},
    {"seed": 5, "logit_bias": {30: 3.0}, "repetition_detection": {"max_pattern_size": 2}, "max_tokens": None},
]


@pytest.mark.parametrize("asked", ASKED, ids=["drawn", "rules", "form", "biased"])
def test_an_offline_receipt_gives_the_answer_again(llm: LLM, asked: dict[str, Any]) -> None:
    params = SamplingParams(**asked, deterministic=True)
    (first,) = llm.generate("The capital of France is", params, use_tqdm=False)
    assert first.receipt is not None
    receipt = json.loads(json.dumps(first.receipt))  # it is JSON
    again = llm.replay(receipt)
    assert [answer.token_ids for answer in again.outputs] == [answer.token_ids for answer in first.outputs]
    assert again.receipt is not None
    assert (first.receipt["replayed"], again.receipt["replayed"]) == (None, True)
    assert again.receipt["request"] == receipt["request"]
    assert llm.replay({**receipt, "tokens": "0" * 64}).receipt["replayed"] is False  # type: ignore[index]


def test_a_receipt_has_all_that_decides_tokens() -> None:
    """Every parameter is in it, is in it under the request's own words, is refused, or changes no token."""
    told = {"seed", "max_tokens", "logit_bias", "repetition_detection", "structured_outputs"}
    idle = {"logprobs", "prompt_logprobs", "detokenize", "output_kind", "deterministic"}
    cut_before = {"truncate_prompt_tokens", "truncation_side"}
    names = {item.name for item in dataclasses.fields(SamplingParams) if item.repr}  # those that are refused have none
    assert names == {*receipts._FIELDS, *told, *idle, *cut_before}


def test_receipts_of_a_batch_and_of_a_chat(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=5, deterministic=True)
    found = llm.generate(["One", "Two"], params, use_tqdm=False) + llm.chat(TALK, params, use_tqdm=False)
    told = [output.receipt or {} for output in found]
    assert len({receipt["request"]["seed"] for receipt in told}) == 3
    assert all((llm.replay(output).receipt or {})["replayed"] for output in found)
    assert llm.generate("One", SamplingParams(max_tokens=2), use_tqdm=False)[0].receipt is None


def test_what_cannot_be_replayed_is_told(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, deterministic=True)
    receipt = llm.generate("One", params, use_tqdm=False)[0].receipt or {}
    other = {**receipt["fingerprint"], "kernels": "k" * 64}
    chat = {"path": "/v1/chat/completions", "request": {"messages": TALK}}
    cases: list[tuple[Any, str]] = [
        ({**receipt, "fingerprint": other}, r"kernels \(k{16} then"),
        ({**receipt, **chat}, "octavo replay"),
        ({**receipt, "request": {**receipt["request"], "deterministic": False, "model": "x"}}, "model is not"),
        ({"a": 1}, "none"),
        (None, "none"),
    ]
    for given, told in cases:
        with pytest.raises(InvalidRequestError, match=told):
            llm.replay(given)


def test_the_command_replays_it_too(
    llm: LLM, demo_model: Path, weight_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = SamplingParams(temperature=1.1, max_tokens=7, bad_words=["the"], deterministic=True)
    found = llm.generate("Once upon a time", params, use_tqdm=False)[0]
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(found.receipt))
    flags = ["--log-level", "error", "--max-model-len", "512", "--weight-cache-dir", str(weight_cache), "--seed", "3"]
    assert main(["replay", "-r", str(file), *flags, str(llm.llm_engine.engine.source.path)]) == 0
    assert json.loads(capsys.readouterr().out)["choices"][0]["text"] == found.outputs[0].text


# --- names that scripts use ------------------------------------------------------------------------------------------


SCRIPTS = {
    "what the engine is": """
engine = llm.llm_engine
assert engine.model_config.max_model_len == llm.model_config.max_model_len == 512
assert engine.model_config.get_vocab_size() == engine.tokenizer.vocab_size
assert engine.vllm_config.cache_config.num_gpu_blocks > 0 and engine.vllm_config.cache_config.block_size == 16
assert engine.vllm_config.parallel_config.tensor_parallel_size == llm.get_world_size() == 1
assert engine.vllm_config.scheduler_config.max_num_seqs == 8
assert llm.model_config.hf_config.num_hidden_layers == llm.model_config.hf_config.to_dict()["num_hidden_layers"]
assert "generate" in llm.supported_tasks and llm.model_config.runner_type == "generate"
assert not hasattr(llm.model_config, "nothing") and not hasattr(llm, "nothing")
""",
    "prompts cut from the left": """
from vllm import SamplingParams

tokenizer = llm.get_tokenizer()
ids = tokenizer.encode("one two three four five six seven eight")
for given in ("one two three four five six seven eight", {"prompt_token_ids": ids}):
    for kwargs in ({"truncate_prompt_tokens": 4}, {"truncation": True, "max_length": 4}):
        output = llm.generate(given, SamplingParams(max_tokens=1), tokenization_kwargs=kwargs)[0]
        assert output.prompt_token_ids == ids[-4:]
right = SamplingParams(max_tokens=1, truncate_prompt_tokens=4, truncation_side="right")
assert llm.generate({"prompt_token_ids": ids}, right)[0].prompt_token_ids == ids[:4]
whole = SamplingParams(max_tokens=30, truncate_prompt_tokens=-1)
assert len(llm.generate("word " * 2000, whole)[0].prompt_token_ids) == llm.model_config.max_model_len - 30
""",
    "token ids under their older name": """
from vllm import SamplingParams

ids = [llm.get_tokenizer().encode(text) for text in ("One", "Two, three")]
found = llm.generate(prompt_token_ids=ids, sampling_params=SamplingParams(max_tokens=2))
assert [output.prompt_token_ids for output in found] == ids
""",
    "conversations made ready before": """
from vllm import SamplingParams

messages = [{"role": "user", "content": "Name a colour."}]
params = SamplingParams(temperature=0, max_tokens=4)
wanted = llm.chat(messages, params)[0].outputs[0].token_ids
(prompt,) = llm.preprocess_chat(messages)
assert llm.generate(prompt, params)[0].outputs[0].token_ids == wanted
llm.enqueue_chat([messages, messages], params)
assert [output.outputs[0].token_ids for output in llm.wait_for_completion()] == [wanted, wanted]
""",
    "requests beside a call": """
from vllm import SamplingParams

params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
engine = llm.llm_engine
assert engine.add_request("0", "The capital of France is", params) == "0"
engine.add_request("mine", {"prompt": "One, two,"}, params, priority=0)
called = llm.generate("The capital of France is", params)[0]
assert called.request_id not in ("0", "mine")
done = {}
while engine.has_unfinished_requests():
    for output in engine.step():
        if output.finished:
            done[output.request_id] = output
assert set(done) == {"0", "mine"} and engine.get_num_unfinished_requests() == 0
assert done["0"].outputs[0].token_ids == called.outputs[0].token_ids
assert done["0"].metrics.first_token_time is not None
""",
    "requests that are taken back": """
from vllm import SamplingParams

engine = llm.llm_engine
engine.add_request("gone", "One", SamplingParams(max_tokens=50, ignore_eos=True))
engine.step()
engine.abort_request(["gone", "never"])
assert not engine.has_unfinished_requests()
llm.reset_mm_cache()
assert llm.reset_prefix_cache(reset_running_requests=False)
""",
}

ENGINES = {
    "profiles": """
import json, pstats

from vllm import LLM, SamplingParams

llm = LLM(MODEL, max_model_len=128, weight_cache_dir=CACHE, profiler_dir=OUT)
llm.start_profile()
llm.generate("Hello", SamplingParams(max_tokens=5, ignore_eos=True))
trace, calls = llm.stop_profile()
llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True))
steps = [event for event in json.load(open(trace))["traceEvents"] if event["ph"] == "X"]
assert trace.startswith(OUT) and sum(step["args"]["generation_tokens"] for step in steps) == 5
assert pstats.Stats(calls).total_calls > 0
llm.start_profile(profile_prefix="second")
try:
    llm.start_profile()
except ValueError as error:
    assert "stop_profile" in str(error)
assert "/second-" in llm.stop_profile()[0]
llm.close()
""",
    "an asynchronous engine's names": """
import asyncio

from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


async def main():
    args = AsyncEngineArgs(model=MODEL, max_model_len=128, weight_cache_dir=CACHE, profiler_dir=OUT)
    engine = AsyncLLMEngine.from_engine_args(args, start_engine_loop=True)
    assert (await engine.get_model_config()).max_model_len == engine.model_config.max_model_len == 128
    assert (await engine.get_vllm_config()).parallel_config.world_size == 1
    assert await engine.get_supported_tasks() == ("generate",) and not await engine.is_tracing_enabled()
    assert engine.is_running and not engine.is_stopped and not engine.errored
    await engine.check_health()
    params = SamplingParams(max_tokens=4, deterministic=True, output_kind=RequestOutputKind.FINAL_ONLY)
    await engine.start_profile()
    kwargs = {"truncate_prompt_tokens": 3}
    (output,) = [one async for one in engine.generate("a b c d e f", params, "id", tokenization_kwargs=kwargs)]
    assert len(await engine.stop_profile()) == 2
    assert len(output.prompt_token_ids) == 3 and output.receipt["request"]["prompt"] == output.prompt_token_ids
    outputs = await engine.add_request("second", "Hi", params)
    assert [one.finished async for one in outputs] == [True]
    await engine.pause_generation(wait_for_inflight_requests=True)
    assert await engine.is_paused()
    await engine.resume_generation()
    await engine.wait_for_requests_to_drain(5)
    assert await engine.reset_prefix_cache() and not await engine.is_sleeping()
    assert not hasattr(engine, "collective_rpc") and engine.tokenizer.encode("Hi")
    engine.shutdown()
    assert engine.is_stopped and engine.dead_error


asyncio.run(main())
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, llm: LLM) -> None:
    run(SCRIPTS[name], llm=llm)


@pytest.mark.parametrize("name", ENGINES)
def test_a_script_with_its_own_engine_runs(name: str, demo_model: Path, weight_cache: Path, tmp_path: Path) -> None:
    run(ENGINES[name], MODEL=str(demo_model), CACHE=str(weight_cache), OUT=str(tmp_path))


REFUSED = [
    (lambda llm: llm.collective_rpc("echo"), "no Python model"),
    (lambda llm: llm.apply_model(print), "no Python model"),
    (lambda llm: llm.llm_engine.model_executor.driver_worker, "no Python model"),
    (lambda llm: llm.llm_engine.add_lora(None), "adapters"),
    (lambda llm: llm.set_tokenizer(None), "tokenizer="),
    (lambda llm: llm.update_weights([]), "weights do not change"),
    (lambda llm: llm.release_kv_cache_memory(), "sleep"),
    (lambda llm: llm.llm_engine.do_log_stats(), "get_metrics"),
    (lambda llm: llm.llm_engine.model_config.nothing, "what can be read is .*max_model_len"),
    (lambda llm: llm.generate("a", lora_request=object()), "lora_request"),
    (lambda llm: llm.generate("a", mm_processor_kwargs={"a": 1}), "mm_processor_kwargs"),
    (lambda llm: llm.generate("a", tokenization_kwargs={"padding": True}), "padding"),
    (lambda llm: llm.enqueue("a", lora_request=object()), "lora_request"),
    (lambda llm: llm.llm_engine.add_request("x", "a", trace_headers={"a": "b"}), "trace_headers"),
    (lambda llm: LLMEngine.from_vllm_config(None), "from_vllm_config"),
    (lambda llm: AsyncLLM.from_vllm_config(None), "from_vllm_config"),
]


@pytest.mark.parametrize(("use", "told"), REFUSED)
def test_what_there_is_not_says_so(llm: LLM, use: Any, told: str) -> None:
    with pytest.raises((UnsupportedError, AttributeError), match=told):
        use(llm)


def test_prompts_come_under_one_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="either prompts or prompt_token_ids"):
        llm.generate("a", prompt_token_ids=[1], use_tqdm=False)


def test_configurations_can_be_copied(llm: LLM) -> None:
    config = llm.model_config
    assert repr(copy.copy(config)) == repr(config)


@pytest.mark.parametrize("name", ["collective_rpc", "apply_model", "set_tokenizer", "list_loras"])
def test_scripts_can_look_before_they_use(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    assert not hasattr(llm.llm_engine, name)


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"deterministic": 1}, "deterministic"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        SamplingParams(**params)


def test_a_cut_beyond_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="512 tokens"):
        llm.generate("a", SamplingParams(truncate_prompt_tokens=513), use_tqdm=False)


def test_an_engine_yields_outputs(llm: LLM) -> None:
    llm.llm_engine.add_request("typed", "One", SamplingParams(max_tokens=1))
    outputs = [output for _ in range(5) for output in llm.llm_engine.step()]
    assert [type(output) for output in outputs] == [RequestOutput]
