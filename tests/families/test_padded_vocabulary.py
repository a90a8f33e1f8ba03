"""A vocabulary padded beyond the tokenizer's: rows of the head without a token are never drawn, listed or scored."""

import json
import re
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidRequestError
from tests.families.checkpoints import BASE

TOKENS, ROWS = 300, 320


def tokenizer() -> Tokenizer:
    """An end, all bytes, and pairs of bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(pairwise(letters))[: TOKENS - len(letters) - 1]
    words = ["<end>", *letters, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    assert made.get_vocab_size() == TOKENS
    return made


@pytest.fixture(scope="module", params=["native", "torch"])
def llm(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("padded")
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**{**BASE, "vocab_size": ROWS, "tie_word_embeddings": False}))
    with torch.no_grad():
        model.lm_head.weight[TOKENS:] = 10 * model.lm_head.weight[5]
    model.save_pretrained(directory)
    tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    options = {"max_model_len": 256, "max_num_seqs": 4, "max_logprobs": -1, "weight_cache": False}
    with LLM(str(directory), backend=request.param, kv_cache_dtype="float32", **options) as made:
        yield made


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"temperature": 2.0, "repetition_penalty": 1.3, "logit_bias": {310: 100.0}},
        {"temperature": 2.0, "xtc_probability": 0.5, "xtc_threshold": 0.001},
        {"temperature": 2.0, "top_k": 310, "min_p": 0.001},
    ],
)
def test_rows_without_a_token_are_never_drawn_or_listed(llm, options):
    params = SamplingParams(n=3, seed=2, max_tokens=16, ignore_eos=True, logprobs=20, prompt_logprobs=20, **options)
    (output,) = llm.generate({"prompt_token_ids": [5, 6, 7, 8]}, params, use_tqdm=False)
    listed = [entry for choice in output.outputs for entry in choice.logprobs] + output.prompt_logprobs[1:]
    assert all(len(entry) >= 20 for entry in listed)
    assert max(token for entry in listed for token in entry) < TOKENS
    assert max(token for choice in output.outputs for token in choice.token_ids) < TOKENS


def test_all_log_probabilities_are_those_of_tokens(llm):
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=-1)
    (output,) = llm.generate({"prompt_token_ids": [5, 6]}, params, use_tqdm=False)
    for entry in output.outputs[0].logprobs:
        assert set(entry) == set(range(TOKENS))
        assert sum(2.718281828459045**value.logprob for value in entry.values()) == pytest.approx(1, abs=1e-4)


def test_prompts_may_have_ids_without_a_token(llm):
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=TOKENS + 5, prompt_logprobs=2)
    (output,) = llm.generate({"prompt_token_ids": [5, 310, 6]}, params, use_tqdm=False)
    assert set(output.outputs[0].logprobs[0]) == set(range(TOKENS))
    of_none, of_token = output.prompt_logprobs[1], output.prompt_logprobs[2]
    assert of_none[310].logprob > -30
    assert max(of_token) < TOKENS
    assert 6 in of_token


def test_forms_and_lists_keep_to_tokens(llm):
    form = StructuredOutputsParams(regex="w5[0-9]")
    (output,) = llm.generate("w5", SamplingParams(structured_outputs=form, max_tokens=4, seed=1), use_tqdm=False)
    assert re.fullmatch("w5[0-9]", output.outputs[0].text)
    with pytest.raises(InvalidRequestError, match="allowed_token_ids"):
        llm.generate("w5", SamplingParams(allowed_token_ids=[301, 302]), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="logits_rules"):
        llm.generate("w5", SamplingParams(logits_rules=[{"do": "allow", "tokens": [301]}]), use_tqdm=False)
    allowed = SamplingParams(allowed_token_ids=[7, 302], max_tokens=5, temperature=2, ignore_eos=True)
    (output,) = llm.generate("w5", allowed, use_tqdm=False)
    assert output.outputs[0].token_ids == [7] * 5
