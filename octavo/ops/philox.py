"""The counter-based random numbers of the sampler: the same (seed, output index) gives the same number everywhere.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: Philox 4x32 with 10 rounds.
"""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over four 32-bit words."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> 32) ^ b ^ low, second & _MASK, (first >> 32) ^ d ^ high, first & _MASK
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return a, b, c, d


def uniform(seed: int, output_index: int, lane: int = 0) -> float:
    """In [0, 1), 24 bits: the first word's upper 24 bits. Seed: 64 bits, low word first. Lanes are independent."""
    seed &= (1 << 64) - 1
    word = philox4x32((output_index & _MASK, lane, 0, 0), (seed & _MASK, seed >> 32))[0]
    return (word >> 8) * 2.0**-24
