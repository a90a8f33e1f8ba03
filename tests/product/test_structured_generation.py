"""Structured output on a real model: in batches, on both backends, with everything else that shapes answers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidRequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def drawn(llm: LLM, prompt: str | list[str], **options: object) -> list[list[tuple[str, str | None]]]:
    params = SamplingParams(**{"max_tokens": 60, "temperature": 1.0, "seed": 4, **options})  # type: ignore[arg-type]
    outputs = llm.generate(prompt, params, use_tqdm=False)
    return [[(answer.text, answer.finish_reason) for answer in output.outputs] for output in outputs]


def test_hot_draws_keep_to_their_form_in_one_batch(llm: LLM) -> None:
    forms: list[dict[str, object]] = [
        {"json": PERSON, "disable_any_whitespace": True},
        {"regex": r"[a-z]{2,5}-\d{3}"},
        {"choice": ["red", "green"]},
        {"grammar": 'start: "<" /[a-c]/ ">"'},
    ]
    hot = {"temperature": 2.0, "max_tokens": 60, "n": 3, "seed": 1, "logprobs": 1}
    params = [SamplingParams(structured_outputs=StructuredOutputsParams(**form), **hot) for form in forms]  # type: ignore[arg-type]
    free = SamplingParams(temperature=0.0, max_tokens=8)
    outputs = llm.generate(["Go:"] * 4 + ["The capital of France is"], [*params, free], use_tqdm=False)
    assert "Paris" in outputs[4].outputs[0].text
    for number, pattern in enumerate([r"\{.*\}", r"[a-z]{2,5}-\d{3}", "red|green", "<[a-c]>"]):
        for answer in outputs[number].outputs:
            assert re.fullmatch(pattern, answer.text)
            assert answer.finish_reason == "stop"
            assert answer.logprobs is not None
            assert len(answer.logprobs) == len(answer.token_ids)
    people = [json.loads(answer.text) for answer in outputs[0].outputs]
    assert all(set(person) == {"name", "age"} for person in people)
    assert len({answer.text for answer in outputs[1].outputs}) > 1


def test_the_end_comes_with_the_form_or_when_there_are_enough_tokens(llm: LLM) -> None:
    form = StructuredOutputsParams(choice=["yes", "no"])
    assert {text for text, _ in drawn(llm, "Well?", structured_outputs=form, n=4, ignore_eos=True)[0]} <= {"yes", "no"}
    params = SamplingParams(structured_outputs=form, min_tokens=9, max_tokens=12, temperature=0)
    (answer,) = llm.generate("Well?", params, use_tqdm=False)[0].outputs
    assert answer.text in ("yes", "no")
    assert len(answer.token_ids) >= 9
    digits = StructuredOutputsParams(regex="[0-9]+x?")
    ((cut,),) = drawn(llm, "1", structured_outputs=digits, max_tokens=5, min_tokens=5)
    assert re.fullmatch("[0-9]+x?", cut[0])
    ((stopped,),) = drawn(llm, "1, 2,", structured_outputs=StructuredOutputsParams(regex="(a|b)+;c"), stop=[";"])
    assert re.fullmatch("[ab]+", stopped[0])


def test_bad_words_of_several_tokens_do_not_come(llm: LLM) -> None:
    prompt, options = "The capital of France is", {"max_tokens": 12, "temperature": 0.0}
    (plain,) = drawn(llm, prompt, **options)[0]
    first, second = plain[0].split()[2:4]
    phrase = f"{first} {second}"
    assert phrase in plain[0]
    assert len(llm.get_tokenizer().encode(phrase)) > 1
    (other,) = drawn(llm, prompt, bad_words=[phrase], **options)[0]
    assert phrase not in other[0]
    assert other[0].startswith(plain[0][: plain[0].index(phrase) + len(first)])


def test_bad_forms_are_refused_before_anything_runs(llm: LLM) -> None:
    wrong = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-"))
    with pytest.raises(InvalidRequestError, match="prompt 1"):
        llm.generate(["a", "b"], [SamplingParams(max_tokens=1), wrong], use_tqdm=False)
    assert llm.llm_engine.engine.client.stats().used_blocks == 0


def test_preemption_changes_nothing(llm: LLM, weight_cache: Path) -> None:
    prompts = [f"Item {number} of the list is described by" for number in range(5)]
    form = StructuredOutputsParams(regex=r"([a-z]{1,6} ){8,12}\d\d")
    wanted = drawn(llm, prompts, structured_outputs=form)
    with LLM(max_model_len=128, num_gpu_blocks_override=8, weight_cache_dir=str(weight_cache), seed=3) as small:
        assert drawn(small, prompts, structured_outputs=form) == wanted
        assert small.llm_engine.engine.client.stats().preemptions > 0


def test_the_reference_backend_draws_within_the_same_form(demo_model: Path) -> None:
    with LLM(str(demo_model), max_model_len=128, backend="torch", seed=3) as reference:
        form = StructuredOutputsParams(regex="[a-z]{3}=[0-9]")
        ((answer,),) = drawn(reference, "x=", structured_outputs=form, min_tokens=2)
    assert re.fullmatch("[a-z]{3}=[0-9]", answer[0])
    assert answer[1] == "stop"


def test_the_library_is_loaded_when_it_is_used_and_not_before() -> None:
    script = "import sys, octavo; from octavo import LLM, SamplingParams; print('llguidance' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
