"""Scripts as vLLM's users write them: they run when `vllm` is replaced by `octavo`, and do what they say."""

import re
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM

SCRIPTS = {
    "texts in a batch": """
from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is", "Water boils at"]
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8)
for output in llm.generate(prompts, params):
    print(output.prompt, output.outputs[0].text)
outputs = llm.generate(prompts, params)
assert [output.prompt for output in outputs] == prompts
""",
    "the module of the class": """
from vllm.entrypoints.llm import LLM
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

found = llm.generate("Once upon a time", SamplingParams(max_tokens=3))[0]
assert isinstance(llm, LLM) and isinstance(found, RequestOutput)
assert isinstance(found.outputs[0], CompletionOutput)
""",
    "token ids": """
from vllm import SamplingParams
from vllm.inputs import TextPrompt, TokensPrompt

tokenizer = llm.get_tokenizer()
ids = tokenizer.encode("The capital of France is")
params = SamplingParams(temperature=0, max_tokens=4)
prompts = [TextPrompt(prompt="The capital of France is"), TokensPrompt(prompt_token_ids=ids), {"prompt_token_ids": ids}]
text, tokens, dictionary = llm.generate(prompts, params)
assert text.outputs[0].token_ids == tokens.outputs[0].token_ids == dictionary.outputs[0].token_ids
assert tokens.prompt_token_ids == ids
""",
    "a conversation": """
from vllm import SamplingParams

conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "Name a colour."},
]
answer = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)[0]
again = llm.chat([conversation] * 2, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
assert [one.outputs[0].text for one in again] == [answer.outputs[0].text] * 2
""",
    "a template of one's own": """
from vllm import SamplingParams

template = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
output = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=2), chat_template=template)[0]
assert llm.get_tokenizer().decode(output.prompt_token_ids) == "<|user|>Hi"
""",
    "the tokenizer's template": """
from vllm import SamplingParams

tokenizer = llm.get_tokenizer()
messages = [{"role": "user", "content": "What is 2 + 2?"}]
text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
params = SamplingParams(temperature=0, max_tokens=5)
assert llm.generate(text, params)[0].outputs[0].text == llm.chat(messages, params)[0].outputs[0].text
""",
    "several answers": """
from vllm import SamplingParams

params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=6)
answers = llm.generate("My favourite animal is", params)[0].outputs
assert [answer.index for answer in answers] == [0, 1, 2]
assert len({tuple(answer.token_ids) for answer in answers}) > 1
""",
    "perplexity from prompt_logprobs": """
import math

from vllm import SamplingParams

output = llm.generate("The quick brown fox jumps over the lazy dog", SamplingParams(max_tokens=1, prompt_logprobs=0))[0]
chosen = [
    entry[token].logprob for token, entry in zip(output.prompt_token_ids, output.prompt_logprobs) if entry is not None
]
assert output.prompt_logprobs[0] is None and len(chosen) == len(output.prompt_token_ids) - 1
assert 1.0 < math.exp(-sum(chosen) / len(chosen)) < 1000.0
""",
    "log-probabilities": """
from vllm import SamplingParams

answer = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=3, logprobs=5))[0].outputs[0]
for token, entry in zip(answer.token_ids, answer.logprobs):
    assert entry[token].rank == 1 and len(entry) == 5
    assert entry[token].decoded_token == llm.get_tokenizer().decode([token])
assert abs(answer.cumulative_logprob - sum(e[t].logprob for t, e in zip(answer.token_ids, answer.logprobs))) < 1e-6
""",
    "classifying by allowed tokens": """
from vllm import SamplingParams

tokenizer = llm.get_tokenizer()
labels = {tokenizer.encode(label)[0]: label for label in (" positive", " negative")}
params = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=list(labels))
answer = llm.generate("Review: a wonderful film. The sentiment is", params)[0].outputs[0]
assert answer.token_ids[0] in labels
""",
    "biases and banned words": """
from vllm import SamplingParams

plain = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1))[0].outputs[0]
banned = SamplingParams(temperature=0, max_tokens=1, bad_words=[plain.text.strip()])
biased = SamplingParams(temperature=0, max_tokens=1, logit_bias={plain.token_ids[0]: -100})
for params in (banned, biased):
    assert llm.generate("The capital of France is", params)[0].outputs[0].token_ids != plain.token_ids
""",
    "stop strings": """
from vllm import SamplingParams

params = SamplingParams(temperature=0, max_tokens=60, stop=[",", "."], include_stop_str_in_output=True)
answer = llm.generate("One, two, three, four", params)[0].outputs[0]
assert answer.finish_reason == "stop" and answer.text.endswith(answer.stop_reason)
""",
    "seeds": """
from vllm import SamplingParams

runs = [
    llm.generate("Tell me", SamplingParams(temperature=1.0, seed=seed, max_tokens=8))[0].outputs[0].token_ids
    for seed in (1, 1, 2)
]
assert runs[0] == runs[1] != runs[2]
""",
    "the model's defaults, changed": """
params = llm.get_default_sampling_params()
params.max_tokens = 5
params.temperature = 0.0
assert len(llm.generate(["Hello"], params)[0].outputs[0].token_ids) <= 5
""",
    "parameters for each prompt": """
from vllm import SamplingParams

short, long = llm.generate(
    ["A", "B"], [SamplingParams(max_tokens=2, ignore_eos=True), SamplingParams(max_tokens=5, ignore_eos=True)]
)
assert (len(short.outputs[0].token_ids), len(long.outputs[0].token_ids)) == (2, 5)
""",
    "beam search": """
from vllm.sampling_params import BeamSearchParams

found = llm.beam_search([{"prompt": "The capital of France is"}], BeamSearchParams(beam_width=3, max_tokens=5))[0]
assert len(found.sequences) == 3
assert found.sequences[0].text.startswith("The capital of France is")
scores = [sequence.cum_logprob for sequence in found.sequences]
assert scores == sorted(scores, reverse=True)
""",
    "a shared beginning": """
from vllm import SamplingParams

beginning = "You are an expert school principal, skilled in managing staff and students. " * 6
params = SamplingParams(temperature=0.0, max_tokens=3)
llm.reset_prefix_cache()
cold = llm.generate(beginning + "Draft a letter.", params)[0]
warm = llm.generate(beginning + "Draft a plan.", params)[0]
assert cold.num_cached_tokens == 0 and warm.num_cached_tokens >= 64
assert llm.generate(beginning + "Draft a letter.", params)[0].outputs[0].token_ids == cold.outputs[0].token_ids
""",
    "enqueue and wait": """
from vllm import SamplingParams

params = SamplingParams(temperature=0, max_tokens=4)
llm.enqueue("Red, green and", params)
llm.enqueue(["Monday, Tuesday and", "One, two and"], params)
assert [output.prompt[:3] for output in llm.wait_for_completion(use_tqdm=False)] == ["Red", "Mon", "One"]
""",
    "metrics": """
from vllm import SamplingParams

llm.generate("Count", SamplingParams(max_tokens=3, ignore_eos=True))
values = {metric.name: metric for metric in llm.get_metrics()}
assert values["vllm:generation_tokens"].value >= 3
assert values["vllm:kv_cache_usage_perc"].value == 0
""",
}

# These make an engine of their own.
ENGINES = {
    "a constructor full of options": """
from vllm import LLM, SamplingParams

llm = LLM(
    model=MODEL,
    tensor_parallel_size=1,
    dtype="auto",
    trust_remote_code=False,
    gpu_memory_utilization=0.5,
    max_model_len=128,
    max_num_seqs=4,
    enforce_eager=True,
    swap_space=4,
    seed=0,
    enable_prefix_caching=True,
    disable_log_stats=True,
    weight_cache_dir=CACHE,
)
assert len(llm.generate("Hello", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids) == 2
llm.close()
""",
    "flags of a program": """
import argparse

from vllm import LLM, EngineArgs, SamplingParams

parser = argparse.ArgumentParser()
EngineArgs.add_cli_args(parser)
parser.add_argument("--temperature", type=float, default=0.5)
args = parser.parse_args(["--model", MODEL, "--max-model-len", "128", "--weight-cache-dir", CACHE])
llm = LLM.from_engine_args(EngineArgs.from_cli_args(args))
assert llm.engine_info.max_model_len == 128
assert llm.generate("Hi", SamplingParams(temperature=args.temperature, max_tokens=2))[0].finished
llm.close()
""",
    "an engine stepped by hand": """
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model=MODEL, max_model_len=128, weight_cache_dir=CACHE))
waiting = [("A robot may not injure a human being", SamplingParams(temperature=0.0, max_tokens=4, logprobs=1)),
           ("To be or not to be,", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2, max_tokens=5))]
done: list[RequestOutput] = []
number = 0
while waiting or engine.has_unfinished_requests():
    if waiting:
        prompt, params = waiting.pop(0)
        engine.add_request(str(number), prompt, params)
        number += 1
    done += [output for output in engine.step() if output.finished]
assert sorted(output.request_id for output in done) == ["0", "1"]
""",
    "a stream of differences": """
import asyncio

from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


async def main():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=MODEL, max_model_len=128, weight_cache_dir=CACHE))
    params = SamplingParams(max_tokens=6, temperature=0.8, seed=42, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in engine.generate("The future of AI is", params, request_id="stream-1"):
        for completion in output.outputs:
            text += completion.text
        if output.finished:
            break
    engine.shutdown()
    return text


assert asyncio.run(main())
""",
    "priorities": """
from vllm import LLM, SamplingParams

llm = LLM(model=MODEL, scheduling_policy="priority", max_model_len=128, weight_cache_dir=CACHE)
outputs = llm.generate(["first", "second"], SamplingParams(max_tokens=2), priority=[1, 0])
assert [output.prompt for output in outputs] == ["first", "second"]
llm.close()
""",
    "sleep": """
from vllm import LLM, SamplingParams

llm = LLM(MODEL, enable_sleep_mode=True, max_model_len=128, weight_cache_dir=CACHE)
params = SamplingParams(temperature=0, max_tokens=4)
before = llm.generate("The capital of France is", params)[0].outputs[0].text
llm.sleep(level=1)
llm.wake_up()
assert llm.generate("The capital of France is", params)[0].outputs[0].text == before
llm.close()
""",
}


def run(script: str, **names: Any) -> None:
    """As a module of its own, with `names` defined."""
    exec(compile(re.sub(r"\bvllm\b(?=[. ])", "octavo", script), "<script>", "exec"), {"__name__": "script", **names})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, llm: LLM) -> None:
    run(SCRIPTS[name], llm=llm)


@pytest.mark.parametrize("name", ENGINES)
def test_a_script_with_its_own_engine_runs(name: str, demo_model: Path, weight_cache: Path) -> None:
    run(ENGINES[name], MODEL=str(demo_model), CACHE=str(weight_cache))
