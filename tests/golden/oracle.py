"""The oracle of the golden tests: `transformers` in float32, with the weights of a file dequantized by `gguf`."""

import shutil

import numpy as np
import torch

from tests.families.real import transformers_model
from tests.golden.cases import STEPS, TOP, Golden


def rounded_to_bf16(model):
    """The same model with its matrices rounded to bf16; it goes on computing in float32."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    return model


def logprobs(model, ids):
    """[tokens, vocab]: log-probabilities of what follows each position, from one pass over the whole text."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), dim=-1)


def greedy(model, prompt, steps=STEPS):
    """The likeliest continuation, decoded step by step by transformers."""
    ids = torch.tensor([list(prompt)])
    options = {"do_sample": False, "max_new_tokens": steps, "min_new_tokens": steps, "eos_token_id": None}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return tuple(out[0, len(prompt) :].tolist())


def judge(model, prompt, tokens):
    """A Golden of given tokens. They need not be the likeliest ones: `tokens` are what was appended."""
    table = logprobs(model, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    top = table.topk(TOP, dim=-1)
    rounded = np.round(top.values.double().numpy(), 5)
    return Golden(tuple(prompt), tuple(tokens), _rows(top.indices.numpy()), _rows(rounded))


def golden_errors(model, golden):
    """[steps, TOP]: a model's log-probabilities less the golden ones, of the golden tokens."""
    table = logprobs(model, [*golden.prompt, *golden.tokens[:-1]])[len(golden.prompt) - 1 :]
    return table.gather(1, torch.tensor(golden.top_ids)).numpy() - np.array(golden.top_logprobs)


def perplexity(model, ids):
    """exp of the mean negative log-probability of every token but the first."""
    table = logprobs(model, ids[:-1])
    own = table[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return float(np.exp(-own.double().mean().item()))


def save_bf16(name, path, directory):
    """A model's dequantized weights as bf16 safetensors, in Hugging Face layout without a tokenizer."""
    model = transformers_model(name, path)
    shutil.rmtree(directory, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


def _rows(array):
    return tuple(tuple(row) for row in array.tolist())
