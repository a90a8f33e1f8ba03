"""AsyncLLM, LLMEngine and the tokenizer's façade, as vLLM's users write them."""

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, AsyncEngineArgs, AsyncLLMEngine, EngineArgs, LLMEngine, RequestOutputKind, SamplingParams
from octavo.api.engine_args import read_options
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError

PROMPT = "The capital of France is"


def params(kind: RequestOutputKind = RequestOutputKind.CUMULATIVE, tokens: int = 6) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, output_kind=kind, logprobs=1)


def test_async_outputs_by_kind_and_abort(weight_cache: Path, llm: LLM) -> None:
    expected = llm.generate(PROMPT, params(), use_tqdm=False)[0].outputs[0]

    async def collect(engine: AsyncLLMEngine, kind: RequestOutputKind) -> list[tuple[str, int]]:
        found = []
        async for output in engine.generate(PROMPT, params(kind), f"request {kind}"):
            answer = output.outputs[0]
            assert answer.logprobs is not None
            assert len(answer.logprobs) == len(answer.token_ids)
            found.append((answer.text, len(answer.token_ids)))
        return found

    async def main() -> None:
        args = AsyncEngineArgs(max_model_len=256, max_num_seqs=4, weight_cache_dir=str(weight_cache))
        engine = AsyncLLMEngine.from_engine_args(args)
        try:
            every, new, last = await asyncio.gather(*(collect(engine, kind) for kind in RequestOutputKind))
            assert every[-1] == last[-1] == (expected.text, 6)
            assert len(last) == 1
            assert len(every) >= 2
            assert "".join(text for text, _ in new) == expected.text
            assert sum(count for _, count in new) == 6
            await abort(engine)
            with pytest.raises(InvalidRequestError):
                await anext(engine.generate("", params()))
            assert await engine.reset_prefix_cache()
            assert {reading.name for reading in engine.get_metrics()} >= {"vllm:generation_tokens"}
        finally:
            await engine.close()

    async def abort(engine: AsyncLLMEngine) -> None:
        endless = SamplingParams(max_tokens=200, ignore_eos=True)
        reasons = []
        async for output in engine.generate(PROMPT, endless, "endless"):
            reasons.append(output.outputs[0].finish_reason)
            if len(reasons) == 2:
                await engine.abort("endless")
        assert reasons[-1] == "abort"

    asyncio.run(main())


@pytest.fixture(scope="module")
def stepped(weight_cache: Path) -> Iterator[LLMEngine]:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    words = ["--max-model-len", "256", "--max-num-seqs", "4", "--weight-cache-dir", str(weight_cache)]
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(words)))
    yield engine
    engine.close()


def test_stepping(stepped: LLMEngine, llm: LLM) -> None:
    stepped.add_request("a", PROMPT, params())
    stepped.add_request("b", PROMPT, params(RequestOutputKind.FINAL_ONLY, tokens=4))
    stepped.add_request("c", PROMPT, params(tokens=100))
    with pytest.raises(InvalidRequestError, match="in use"):
        stepped.add_request("a", PROMPT)
    stepped.abort_request(["c", "unknown"])
    assert stepped.get_num_unfinished_requests() == 2
    seen: dict[str, list[str]] = {"a": [], "b": []}
    while stepped.has_unfinished_requests():
        for output in stepped.step():
            seen[output.request_id].append(output.outputs[0].text)
    expected = llm.generate(PROMPT, params(), use_tqdm=False)[0].outputs[0].text
    assert seen["a"][-1] == expected
    assert len(seen["a"]) >= 2
    assert len(seen["b"]) == 1
    assert stepped.step() == []


def test_options_without_effect_are_told() -> None:
    with pytest.warns(UserWarning, match="enforce_eager has no effect"):
        read_options("m", {"enforce_eager": True})


def test_engine_args() -> None:
    args = EngineArgs(model="m", max_model_len="4K", swap_space=None)
    assert (args.model, args.max_model_len, args.max_num_seqs) == ("m", 4096, None)
    with pytest.raises(AttributeError):
        args.no_such_option  # noqa: B018
    with pytest.raises(ConfigError, match="max_model_len"):
        EngineArgs(max_modl_len=1)
    with pytest.raises(UnsupportedError):
        EngineArgs(speculative_config={"method": "ngram"})


def test_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(PROMPT)
    assert tokenizer(PROMPT) == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert tokenizer([PROMPT, "x"])["input_ids"][0] == ids
    assert tokenizer.decode(ids) == PROMPT
    assert tokenizer.batch_decode([ids, ids[:1]]) == [PROMPT, "The"]
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
    assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize(PROMPT)) == ids
    assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id or 0) == tokenizer.eos_token == "<|im_end|>"
    assert len(tokenizer) == tokenizer.vocab_size == llm.engine_info.vocab
    assert tokenizer.eos_token_id in tokenizer.all_special_ids
    assert tokenizer.decode([tokenizer.eos_token_id or 0], skip_special_tokens=True) == ""
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == tokenizer.encode(text)
    assert tokenizer.apply_chat_template([messages, messages], tokenize=False)[0] in text


def test_sampling_params_stand_where_scripts_for_vllm_look():
    from octavo import SamplingParams
    from octavo import sampling_params as module

    assert module.SamplingParams is SamplingParams
