"""Beam search on tiny random models gives transformers' answers, scores and order."""

import pytest
import torch

from octavo import LLM, BeamSearchParams
from octavo.errors import InvalidRequestError
from tests.families.checkpoints import random_model, save

PROMPTS = [[5, 17, 80, 3, 41, 9, 77, 120, 33, 6, 15], [200, 100, 50, 25, 12, 6, 3] * 4, [9]]
ENDS = list(range(2, 130, 2))  # many, so that hypotheses end
SEARCHES = [(4, 12, 1.0, False), (3, 20, 0.0, "never"), (5, 9, 2.0, True), (2, 24, -1.0, False)]


@pytest.fixture(scope="module", params=["llama", "gemma3", "deepseek3-yarn", "llama4", "lfm2"])
def models(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    model = random_model(request.param)
    model.generation_config.eos_token_id = ENDS
    save(model, directory)
    options = {"kv_cache_dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 400, "max_num_seqs": 6}
    with LLM(str(directory), skip_tokenizer_init=True, weight_cache=False, **options) as llm:
        yield model, llm


def expected(model, prompt, width, most, penalty, early):
    """Tokens without padding, and the sum of log-probabilities, best first."""
    found = model.generate(
        torch.tensor([prompt]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=most,
        length_penalty=penalty,
        early_stopping=early,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    for sequence, score, used in zip(found.sequences, found.sequences_scores, found.beam_indices, strict=True):
        length = int((used >= 0).sum())
        yield sequence[: len(prompt) + length].tolist(), float(score) * length**penalty


@pytest.mark.parametrize(("width", "most", "penalty", "early"), SEARCHES)
def test_answers_equal_those_of_transformers(models, width, most, penalty, early):
    model, llm = models
    ends = []
    params = BeamSearchParams(width, most, length_penalty=penalty, early_stopping=early)
    for prompt, output in zip(PROMPTS, llm.beam_search(PROMPTS, params), strict=True):
        answers = list(expected(model, prompt, width, most, penalty, early))
        assert [sequence.tokens for sequence in output.sequences] == [tokens for tokens, _ in answers]
        for sequence, (_, total) in zip(output.sequences, answers, strict=True):
            assert sequence.cum_logprob == pytest.approx(total, abs=1e-3)
            chosen = sequence.tokens[len(prompt) :]
            assert [next(iter(entry)) for entry in sequence.logprobs] == chosen
            ends.append(len(chosen))
            ended = chosen[-1] in ENDS
            assert sequence.finish_reason == ("stop" if ended else "length")
    assert min(ends) < most
    assert llm.llm_engine.engine.client.stats().used_blocks == 0


def test_parameters_are_checked():
    for wrong in ({"beam_width": 0}, {"max_tokens": 0}, {"length_penalty": float("nan")}, {"early_stopping": "soon"}):
        with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
            BeamSearchParams(**{"beam_width": 2, "max_tokens": 3} | wrong)
