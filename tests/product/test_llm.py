"""vLLM's offline API on the demo model: every form of prompt, results in order, the fields people read."""

import io
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import octavo
from octavo import LLM, SamplingParams, TextPrompt, TokensPrompt
from octavo.api.outputs import RequestOutput
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = ["The capital of France is", "Once upon a time", "1, 2, 3, 4,", "The opposite of hot is"]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def idle(llm: LLM) -> bool:
    stats = llm.llm_engine.engine.client.stats()
    return stats.running == stats.waiting == stats.used_blocks == 0


def test_answers_are_sensible(llm: LLM) -> None:
    assert "Paris" in texts(llm.generate("The capital of France is", GREEDY, use_tqdm=False))[0]
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason is None
    assert idle(llm)


def test_every_form_of_a_prompt_is_the_same_prompt(llm: LLM) -> None:
    text = "Once upon a time"
    ids = llm.get_tokenizer().encode(text)
    forms = [text, ids, {"prompt": text}, {"prompt_token_ids": ids}, TextPrompt(prompt=text)]
    forms.append(TokensPrompt(prompt_token_ids=ids))
    outputs = llm.generate(forms, GREEDY, use_tqdm=False)
    assert len(set(texts(outputs))) == 1
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert [output.prompt for output in outputs] == [text, None, text, None, text, None]
    assert texts(llm.generate(ids, GREEDY, use_tqdm=False)) == texts(outputs)[:1]
    assert llm.generate([], GREEDY) == []


def test_results_come_in_order_and_alone_or_together_are_equal(llm: LLM) -> None:
    lengths = [12, 3, 9, 1]
    params = [
        SamplingParams(temperature=0.9, seed=n, max_tokens=length, ignore_eos=True) for n, length in enumerate(lengths)
    ]
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.prompt for output in together] == PROMPTS
    assert [len(output.outputs[0].token_ids) for output in together] == lengths
    llm.reset_prefix_cache()
    alone = [llm.generate(prompt, one, use_tqdm=False)[0] for prompt, one in zip(PROMPTS, params, strict=True)]
    assert texts(alone) == texts(together)


def test_fields(llm: LLM) -> None:
    params = SamplingParams(n=2, temperature=1.0, seed=5, max_tokens=6, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (output,) = llm.generate("Once upon a time", params, use_tqdm=False)
    assert output.finished
    assert output.request_id
    assert [answer.index for answer in output.outputs] == [0, 1]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for answer in output.outputs:
        assert answer.finish_reason == "length"
        assert answer.logprobs is not None
        assert len(answer.token_ids) == len(answer.logprobs) == 6
        drawn = [entry[token] for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert answer.cumulative_logprob == pytest.approx(sum(one.logprob for one in drawn))
        assert all(2 <= len(entry) <= 3 for entry in answer.logprobs)
        assert "".join(one.decoded_token or "" for one in drawn) == answer.text
    assert output.metrics is not None
    assert output.metrics.first_token_latency is not None
    assert output.metrics.num_generation_tokens == 12


def test_stops(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, stop=[" 7"])
    (output,) = llm.generate("1, 2, 3, 4,", params, use_tqdm=False)
    assert output.outputs[0].text == " 5, 6,"
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", " 7")
    assert idle(llm)


def test_a_prefix_is_found_again(llm: LLM) -> None:
    story = "A long time ago, in a small village by the sea, there lived a fisherman who had three daughters. " * 3
    llm.generate(story, GREEDY, use_tqdm=False)
    (again,) = llm.generate(story, GREEDY, use_tqdm=False)
    assert again.num_cached_tokens is not None
    assert again.num_cached_tokens >= 32
    assert llm.reset_prefix_cache()
    (fresh,) = llm.generate(story, GREEDY, use_tqdm=False)
    assert fresh.num_cached_tokens == 0
    assert texts([fresh]) == texts([again])


def test_chat_forms(llm: LLM) -> None:
    one = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Say hello."}]
    two = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
    outputs = llm.chat([one, two], GREEDY, use_tqdm=False)
    assert len(outputs) == 2
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True)
    assert llm.generate({"prompt_token_ids": tokenizer.encode(prompt)}, GREEDY)[0].outputs[0].text == texts(outputs)[0]
    started = [*one, {"role": "assistant", "content": "Hello, my name"}]
    (continued,) = llm.chat(started, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert continued.prompt is not None
    assert continued.prompt.endswith("Hello, my name")
    (other,) = llm.chat(one, GREEDY, chat_template="{% for m in messages %}{{ m.content }}\n{% endfor %}")
    assert other.prompt == "You are terse.\nSay hello.\n"


def test_enqueue(llm: LLM) -> None:
    ids = llm.enqueue(PROMPTS[:2], GREEDY) + llm.enqueue(PROMPTS[2], GREEDY)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ids
    assert llm.wait_for_completion() == []


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY)
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "toks/s" in shown
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_default_parameters_and_metrics(llm: LLM) -> None:
    assert llm.get_default_sampling_params().max_tokens == 16
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    readings = {reading.name: reading for reading in llm.get_metrics()}
    assert readings["octavo_generation_tokens"].value >= 32
    assert readings["vllm:generation_tokens"].value == readings["octavo_generation_tokens"].value
    assert readings["vllm:time_to_first_token_seconds"].value > 0


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", GREEDY, "empty"),
        ([[]], GREEDY, "empty"),
        (["fine", ""], GREEDY, "prompt 1"),
        ([[1, 2, 49152]], GREEDY, "49152"),
        ("word " * 600, GREEDY, "maximum context length is 512"),
        ("fine", [GREEDY, GREEDY], "2 entries for 1 prompts"),
        (5, GREEDY, "prompts must be"),
        ({"text": "fine"}, GREEDY, "'text'"),
    ],
)
def test_wrong_prompts_are_refused_before_anything_runs(
    llm: LLM, prompts: object, params: object, message: str
) -> None:
    steps = llm.llm_engine.engine.client.stats().steps
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    assert llm.llm_engine.engine.client.stats().steps == steps
    assert idle(llm)


def test_what_is_missing_says_so(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match="lora_request"):
        llm.generate("x", GREEDY, lora_request=object())
    with pytest.raises(UnsupportedError, match="pooling"):
        llm.embed(["x"])
    with pytest.raises(AttributeError):
        llm.no_such_thing  # noqa: B018
    with pytest.raises(UnsupportedError, match="multi_modal_data"):
        llm.generate({"prompt": "x", "multi_modal_data": {"image": 1}}, GREEDY)


class Interrupting:
    """A progress bar that is interrupted at the first finished prompt."""

    def __init__(self, **_: object) -> None:
        self.postfix = ""

    def update(self, _: int) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_an_interrupted_call_leaves_nothing_behind(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=length) for length in (1, 200, 200, 200)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, params, use_tqdm=Interrupting)
    assert "Paris" in texts(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False))[0]
    assert idle(llm)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        LLM(max_modl_len=3)
    with pytest.raises(UnsupportedError, match="enable_lora"):
        LLM(enable_lora=True)
    with pytest.raises(UnsupportedError, match="tensor_parallel_size"):
        LLM(tensor_parallel_size=2)


def test_a_closed_model_says_so(weight_cache: Path) -> None:
    with pytest.warns(UserWarning, match="swap_space"):
        llm = LLM(max_model_len=64, max_num_seqs=2, weight_cache_dir=str(weight_cache), swap_space=4, dtype="half")
    with llm:
        assert llm.generate("Hi", SamplingParams(max_tokens=1), use_tqdm=False)
    llm.close()
    with pytest.raises(octavo.errors.EngineDeadError):
        llm.generate("Hi", GREEDY)


@pytest.fixture(scope="module")
def torch_llm() -> Iterator[LLM]:
    with LLM(max_model_len=64, max_num_seqs=2, backend="torch", kv_cache_dtype="float32") as model:
        yield model


def test_both_backends_give_the_same_tokens(llm: LLM, torch_llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)  # the reference takes its time
    native = llm.generate(PROMPTS[:2], params, use_tqdm=False)
    reference = torch_llm.generate(PROMPTS[:2], params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in native] == [o.outputs[0].token_ids for o in reference]


VLLM_SCRIPT = """
from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model=MODEL, enforce_eager=True, gpu_memory_utilization=0.2, max_model_len=256, dtype="auto")
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")


if __name__ == "__main__":
    main()
"""

VLLM_ENGINE_SCRIPT = """
import argparse

from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams

parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
arguments = parser.parse_args(["--model", MODEL, "--max-model-len", "256"])
engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(arguments))
waiting = [
    ("A robot may not injure", SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1, max_tokens=5)),
    ("To be or not to be,", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2, max_tokens=5)),
    ("What is the meaning", SamplingParams(n=2, temperature=0.8, top_p=0.95, frequency_penalty=0.1, max_tokens=5)),
]
number = 0
while waiting or engine.has_unfinished_requests():
    if waiting:
        prompt, params = waiting.pop(0)
        engine.add_request(str(number), prompt, params)
        number += 1
    request_outputs: list[RequestOutput] = engine.step()
    for request_output in request_outputs:
        if request_output.finished:
            print("Prompt:", request_output.request_id, request_output.outputs[0].text)
"""


@pytest.mark.parametrize("script", [VLLM_SCRIPT, VLLM_ENGINE_SCRIPT], ids=["offline", "engine"])
def test_a_script_for_vllm_runs_with_its_import_changed(
    script: str, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = script.replace("from vllm import", "from octavo import")
    exec(compile(changed, "script", "exec"), {"MODEL": str(demo_model), "__name__": "__main__", "io": io})
    assert capsys.readouterr().out.count("Prompt:") == (4 if script is VLLM_SCRIPT else 3)


def test_threads_take_turns(llm: LLM) -> None:
    expected = texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(llm.generate, PROMPTS, GREEDY, use_tqdm=False) for _ in range(6)]
        assert [texts(answer.result(240)) for answer in answers] == [expected] * 6
    assert idle(llm)


def test_a_forked_process_is_told_that_the_engine_is_not_there(weight_cache: Path) -> None:
    script = textwrap.dedent(
        """
        import os, sys
        from octavo import LLM, SamplingParams
        from octavo.errors import EngineDeadError

        llm = LLM(max_model_len=64, max_num_seqs=1, threads=2, weight_cache_dir=sys.argv[1])
        if os.fork() == 0:
            try:
                llm.generate("a", use_tqdm=False)
            except EngineDeadError as error:
                print("child:", error, flush=True)
            llm.close()
            sys.exit(7)
        print("child ended with", os.waitstatus_to_exitcode(os.wait()[1]))
        (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=2), False)
        print(output.outputs[0].text)
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(weight_cache)], capture_output=True, text=True, timeout=240
    )
    assert "forked" in done.stdout, done.stderr
    assert "child ended with 7" in done.stdout
    assert "Paris" in done.stdout


def test_template_flags_may_stand_among_the_template_variables(llm: LLM) -> None:
    message = [{"role": "user", "content": "Hi"}]
    plain, flagged = (
        llm.chat(message, GREEDY, use_tqdm=False, **options)[0].prompt
        for options in ({"add_generation_prompt": False}, {"chat_template_kwargs": {"add_generation_prompt": False}})
    )
    assert plain == flagged
