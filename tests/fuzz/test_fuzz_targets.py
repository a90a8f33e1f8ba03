"""Every target of the fuzzer holds on its seeds, and on simple damage to them."""

import random
from collections.abc import Iterator

import pytest

from tests.fuzz.targets import TARGETS, clean


@pytest.fixture(scope="module", autouse=True)
def no_files_left() -> Iterator[None]:
    yield
    clean()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_damaged_seeds(name: str) -> None:
    target, draw = TARGETS[name], random.Random(name)
    assert target.seeds
    for seed in target.seeds:
        target.run(seed)
        for _ in range(8):
            damaged = bytearray(seed)
            for _ in range(draw.randint(1, 3)):
                at = draw.randrange(len(damaged))
                piece = draw.choice((b"", draw.randbytes(1), *(word.encode() for word in target.words)))
                damaged[at : at + draw.randint(0, 2)] = piece
                damaged = damaged or bytearray(b"\0")
            target.run(bytes(damaged))
    target.run(b"")
