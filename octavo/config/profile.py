"""What `--profile` sets together, where nothing else is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Factors are of the defaults. `target_itl_ms` 0: none. `cache_share`: most of what is free, for the KV cache."""

    aim: str
    sequences: float = 1.0
    step_tokens: float = 1.0
    target_itl_ms: float = 0.0
    cache_share: float = 0.5
    cache_bytes: int = 4 << 30

    def scaled(self, default: int, factor: float) -> int:
        """A default under a factor; at least 1."""
        return max(1, int(default * factor))


PROFILES: dict[str, Profile] = {
    "balanced": Profile("the defaults"),
    # Few sequences share a step and prompts come in small pieces: each token comes soon after the last.
    "latency": Profile("short waits between tokens", sequences=0.25, step_tokens=0.5, target_itl_ms=50.0),
    # Large steps use the weights that they read for many tokens; a large cache keeps many sequences going.
    "throughput": Profile(
        "many tokens a second in all", sequences=4.0, step_tokens=4.0, cache_share=0.8, cache_bytes=16 << 30
    ),
    # Buffers grow with the sequences and tokens of a step, the cache with what it may hold.
    "memory": Profile("a small footprint", sequences=0.125, step_tokens=0.25, cache_share=0.2, cache_bytes=512 << 20),
}
