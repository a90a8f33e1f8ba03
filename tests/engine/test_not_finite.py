"""A token that overflows in a model ends the request that holds it, with an error, and leaves no trace in any other."""

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.flow.beam_search_params import BeamSearchParams
from tests.model.files import TINY, tiny_tensors, write_model

POISON = 13  # this token's embedding overflows when it is multiplied; every number of the file is finite
GRANITE = {
    **TINY,
    "architectures": ["GraniteForCausalLM"],
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.2,
    "tie_word_embeddings": False,
}
OPTIONS = {"skip_tokenizer_init": True, "weight_cache": False, "max_num_seqs": 4, "num_gpu_blocks_override": 24}
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
HEALTHY = [[(7 * i * (seed + 3) + seed) % 12 + 14 for i in range(length)] for seed, length in enumerate((40, 5, 23))]
SPOILT = [20] * 17 + [POISON] + [21] * 20


def poisoned(path, config=GRANITE):
    """The path of a model in which POISON overflows."""
    tensors = {name: values * np.float32(0.1) for name, values in tiny_tensors(config).items()}
    tensors["model.embed_tokens.weight"][POISON] = 3e38
    return str(write_model(path, tensors, config))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return poisoned(tmp_path_factory.mktemp("poisoned") / "model")


def ask(llm, prompts, params=PARAMS):
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def answers(outputs):
    """Tokens and log-probabilities, to the bit."""
    return [
        (one.token_ids, [{token: entry.logprob for token, entry in step.items()} for step in one.logprobs])
        for one in (output.outputs[0] for output in outputs)
    ]


def reading(llm, name):
    return next(one.value for one in llm.get_metrics() if one.name == name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 9},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"kv_cache_dtype": "int4"},
        {"isa": "scalar"},
        {"backend": "torch"},
    ],
    ids=str,
)
def test_neighbours_get_the_same_bits_and_the_request_an_error(directory, options):
    with LLM(directory, **OPTIONS, **options) as llm:
        alone = answers(ask(llm, HEALTHY))
        assert llm.reset_prefix_cache()
        first, spoilt, *rest = ask(llm, [HEALTHY[0], SPOILT, *HEALTHY[1:]])
        assert answers([first, *rest]) == alone
        (answer,) = spoilt.outputs
        assert (answer.finish_reason, answer.token_ids, spoilt.finished) == ("error", [], True)
        assert "not finite" in answer.error
        assert "38 tokens" in answer.error
        assert first.outputs[0].error is None
        assert reading(llm, "octavo_not_finite_streams") == 1
        # Every block has held what it left, and nothing of it is found again.
        for _ in range(3):
            assert ask(llm, [SPOILT])[0].num_cached_tokens == 0
        assert llm.reset_prefix_cache()
        assert answers(ask(llm, [HEALTHY[0], *HEALTHY[1:]])) == alone
        assert reading(llm, "octavo_not_finite_streams") == 4
        stats = llm.llm_engine.engine.client.stats()
        assert stats.running == stats.used_blocks == 0


def test_a_clean_beginning_that_others_share_stays_theirs(directory):
    with LLM(directory, **OPTIONS) as llm:
        prefix = HEALTHY[0][:32]
        wanted = answers(ask(llm, [[*prefix, 30]]))
        assert ask(llm, [[*prefix, POISON, 20]])[0].outputs[0].finish_reason == "error"
        assert answers(ask(llm, [[*prefix, 30]])) == wanted


def test_a_token_drawn_on_the_way_ends_it_there(directory):
    with LLM(directory, **OPTIONS) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={POISON: 100.0})
        (output, other) = ask(llm, HEALTHY[:2], [params, PARAMS])
        assert output.outputs[0].token_ids == [POISON]
        assert (output.outputs[0].finish_reason, len(other.outputs[0].token_ids)) == ("error", 8)


@pytest.mark.parametrize("options", [{"n": 3, "top_k": 9}, {"prompt_logprobs": 2}, {"min_p": 0.1}])
def test_every_kind_of_request_ends_so(directory, options):
    with LLM(directory, **OPTIONS, max_num_batched_tokens=16) as llm:
        params = SamplingParams(max_tokens=4, seed=1, logit_bias={POISON: -100.0}, **options)
        spoilt, healthy = ask(llm, [SPOILT, HEALTHY[0]], params)
        assert {answer.finish_reason for answer in spoilt.outputs} == {"error"}
        assert {answer.finish_reason for answer in healthy.outputs} == {"length"}
        if "prompt_logprobs" in options:  # those before the token were told; it has none that are numbers
            assert len(spoilt.prompt_logprobs) <= SPOILT.index(POISON) + 1
            assert all(np.isfinite(e.logprob) for at in spoilt.prompt_logprobs[1:] for e in at.values())
            assert len(healthy.prompt_logprobs) == len(HEALTHY[0])


def test_beams_end_so(directory):
    with LLM(directory, **OPTIONS) as llm:
        params = BeamSearchParams(beam_width=2, max_tokens=3, ignore_eos=True)
        spoilt, healthy = llm.beam_search([{"prompt_token_ids": ids} for ids in (SPOILT, HEALTHY[0])], params)
        assert {one.finish_reason for one in spoilt.sequences} == {"error"}
        assert {one.finish_reason for one in healthy.sequences} == {"length"}
