"""Samplers that few ask for, from parameters to the engine."""

from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from tests.serving.scripted_engine import VOCAB, ByteTokenizer


def test_shaping_reaches_the_engine_with_the_tokens_of_its_breakers() -> None:
    inputs = InputProcessor(ByteTokenizer(), None, InputLimits(64, VOCAB))
    params = SamplingParams(typical_p=0.5, dry_multiplier=0.8, dry_penalty_last_n=9, dry_sequence_breakers=["a", "<e"])
    shaping = inputs.prepare("hi", params, "x").sampling.shaping
    assert (shaping.typical_p, shaping.dry_multiplier, shaping.dry_window) == (0.5, 0.8, 9)
    assert shaping.dry_breakers == (ord("a"), 256)
    usual = inputs.prepare("hi", SamplingParams(dry_multiplier=0.8), "x").sampling.shaping
    assert usual.dry_breakers == tuple(sorted(b'\n:"*'))
    none = inputs.prepare("hi", SamplingParams(dry_multiplier=1, dry_penalty_last_n=0), "x").sampling.shaping
    assert none.dry_multiplier == 0.0
