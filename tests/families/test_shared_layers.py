"""Layers that read another layer's keys and values, compared with attention written out over the whole sequence.

No family of transformers has such layers without much else, so the oracle is a few lines of PyTorch here.
"""

import numpy as np
import pytest
import torch

from octavo.execution.torch.packer import TorchPacker
from octavo.model.assembly import assemble
from octavo.model.rope import rope_tables
from tests.conformance.devices import ISAS
from tests.conformance.test_program import inputs_for
from tests.conformance.tiny import MAX_LEN, SPECS, VOCAB, RandomTake, native_runner, slot_table, torch_runner

SPEC = SPECS["shared"]
IDS = np.random.default_rng(8).integers(0, VOCAB, 45).tolist()  # past the windows of 20


def weight(packed):
    return torch.cat([segment.data.float() for segment in packed.segments])


def normed(x, gain):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def rotated(x, rope):
    cos, sin = (torch.from_numpy(table[: len(x)]).unsqueeze(1) for table in rope_tables(rope, MAX_LEN))
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def attended(spec, w, x, kept):
    """Attention over all of x; `kept` has keys and values of the layers before, and gets this one's."""
    heads = (x @ weight(w.qkv).T + (0 if w.qkv_bias is None else w.qkv_bias)).view(len(x), -1, spec.head_dim)
    q = heads[:, : spec.heads] if spec.qk_norm is None else normed(heads[:, : spec.heads], w.q_norm)
    if spec.kv_from is None:
        k, v = heads[:, spec.heads :].chunk(2, dim=1)
        kept.append((rotated(k, spec.rope), v))
    else:
        assert heads.shape[1] == spec.heads
        kept.append(kept[spec.kv_from])
    k, v = (each.repeat_interleave(spec.heads // spec.kv_heads, 1) for each in kept[-1])
    scores = torch.einsum("thd,shd->hts", rotated(q, spec.rope), k) * spec.scale
    back = torch.arange(len(x)).unsqueeze(1) - torch.arange(len(x))
    hidden = (back < 0) | (back >= (spec.window or MAX_LEN))
    y = torch.einsum("hts,shd->thd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return y.reshape(len(x), -1) @ weight(w.out).T


def expected_logits():
    weights = assemble(SPEC, RandomTake(TorchPacker(), "f32"))
    x, kept = weight(weights.embed)[IDS], []
    for layer, layer_weights in zip(SPEC.layers, weights.layers, strict=True):
        (mixer,), (mlp,) = (block.branches for block in layer_weights.blocks)
        x = x + attended(layer.blocks[0].branches[0].body, mixer.body, normed(x, mixer.norm.weight), kept)
        gate, up = (normed(x, mlp.norm.weight) @ weight(mlp.body.up).T).chunk(2, dim=-1)
        x = x + (torch.nn.functional.silu(gate) * up) @ weight(mlp.body.down).T
    return (normed(x[-1:], weights.final_norm.weight) @ weight(weights.head).T).numpy()


@pytest.mark.parametrize("backend", ["torch", *ISAS])
def test_shared_keys_and_values_equal_attention_written_out(backend):
    table = slot_table(SPEC)
    inputs = inputs_for(SPEC, table, (2, tuple(IDS)))
    if backend == "torch":
        runner = torch_runner(SPEC, "float32", format="f32")
    else:
        runner = native_runner(backend, SPEC, table, dtype="float32", format="f32")
    expected = expected_logits()
    np.testing.assert_allclose(runner.logits(inputs), expected, atol=2e-5 * np.abs(expected).max())
