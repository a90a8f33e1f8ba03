"""Octavo's side of the golden tests: the offline API, asked for greedy tokens and log-probabilities of texts."""

import numpy as np

from octavo import LLM, SamplingParams
from tests.golden.cases import STEPS, TOP

# A few more than are compared: which of two nearly equal tokens is the fifth may differ.
_LISTED = TOP + 3


def open_llm(path, **options):
    """A model of a file or directory; prompts are token ids. Products are exact unless asked otherwise."""
    defaults = {"max_model_len": 1024, "num_gpu_blocks_override": 1024, "weight_cache": False}
    options = {**defaults, "linear_compute": "exact", **options}
    return LLM(str(path), **options)


def continue_prompts(llm, prompts, steps=STEPS):
    """[(greedy tokens, [{token: logprob} a step])] of lists of token ids, all in one batch."""
    params = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, logprobs=_LISTED)
    outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)
    answers = [output.outputs[0] for output in outputs]
    return [(answer.token_ids, [_numbers(step) for step in answer.logprobs]) for answer in answers]


def judge_texts(llm, texts):
    """[{token: logprob} of every position but the first] of lists of token ids: the text's token, the likeliest."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=_LISTED)
    outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in texts], params, use_tqdm=False)
    return [[_numbers(step) for step in output.prompt_logprobs[1:]] for output in outputs]


def perplexity(llm, ids):
    """exp of the mean negative log-probability of every token but the first."""
    (steps,) = judge_texts(llm, [ids])
    return float(np.exp(-np.mean([step[token] for step, token in zip(steps, ids[1:], strict=True)])))


def _numbers(step):
    return {token: entry.logprob for token, entry in step.items()}
