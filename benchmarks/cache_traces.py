"""Which eviction policy forgets the right things: replayed traces over the real cache, without a model.

python benchmarks/cache_traces.py [--pools 1500 4000] [--seed 1] [--mooncake FILE.jsonl]

A prompt is looked up when it arrives, its blocks are held while it is answered, then prompt and answer stay cached for
as long as the policy lets them. `hit rate` is the share of prompt tokens found; `saved prefill` weighs each of them
with its cost, which attention makes grow with its position (twice as much at 4,096 tokens). `all` is a pool that
forgets nothing.
"""

import argparse
import heapq
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from octavo.cache.eviction import POLICIES, EvictionName
from octavo.cache.group import KVCacheGroup
from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.table import SequenceBlocks

BLOCK = 16
TOKEN_SECONDS = 0.02  # of an answer
PREFILL_RATE = 8000.0  # tokens a second
DOUBLING = 4096  # position at which a prompt token costs twice as much as the first one


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes (seconds), what it brings, and what it is answered."""

    at: float
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(slots=True)
class Writer:
    """Makes traces of fresh tokens. Lengths are log-normal, as those of real prompts and answers nearly are."""

    rng: random.Random
    next_token: Iterator[int] = field(default_factory=count)

    def text(self, median: float, spread: float = 0.6, most: int = 20_000) -> tuple[int, ...]:
        """New text, unlike any other."""
        length = max(1, min(most, round(median * self.rng.lognormvariate(0.0, spread))))
        return tuple(next(self.next_token) for _ in range(length))

    def gap(self, mean: float) -> float:
        """Seconds to the next arrival of many independent ones."""
        return self.rng.expovariate(1.0 / mean)

    def turns(self, mean: float) -> int:
        """How often something goes on."""
        turns = 1
        while self.rng.random() > 1.0 / mean:
            turns += 1
        return turns


def chats(writer: Writer, sessions: int = 500, every: float = 2.5) -> Iterator[Arrival]:
    """Conversations of a few turns, under one short system prompt, with people who think between them."""
    system, start = writer.text(150), 0.0
    for _ in range(sessions):
        start += writer.gap(every)
        at, known = start, system
        for _ in range(writer.turns(4)):
            prompt = known + writer.text(60, 0.9)
            answer = writer.text(220)
            yield Arrival(at, prompt, answer)
            known = prompt + answer
            at += len(answer) * TOKEN_SECONDS + 30 * writer.rng.lognormvariate(0.0, 0.9)


def applications(writer: Writer, requests: int = 1600, every: float = 0.6, apps: int = 60) -> Iterator[Arrival]:
    """Single questions to many applications with long system prompts; which ones are popular changes slowly."""
    systems = [writer.text(1100) for _ in range(apps)]
    weights = [1.0 / (rank + 1) for rank in range(apps)]
    at = 0.0
    for number in range(requests):
        at += writer.gap(every)
        app = (writer.rng.choices(range(apps), weights)[0] + number // 250) % apps
        yield Arrival(at, systems[app] + writer.text(90, 0.8), writer.text(150))


def agents(writer: Writer, tasks: int = 120, every: float = 9.0) -> Iterator[Arrival]:
    """Agents that call tools: quick steps over a growing context, now and then with helpers that start from it."""
    tools = [writer.text(1500, 0.3) for _ in range(5)]
    start = 0.0
    for _ in range(tasks):
        start += writer.gap(every)
        known = writer.rng.choice(tools) + writer.text(200)
        yield from _steps(writer, start, known, writer.turns(10))


def _steps(writer: Writer, at: float, known: tuple[int, ...], steps: int) -> Iterator[Arrival]:
    for _ in range(steps):
        answer = writer.text(90)
        yield Arrival(at, known, answer)
        known = (*known, *answer, *writer.text(250, 1.0, 4000))
        at += len(answer) * TOKEN_SECONDS + 3 * writer.rng.lognormvariate(0.0, 0.8)
        if writer.rng.random() < 0.05:
            for _ in range(3):
                yield from _steps(writer, at, known + writer.text(60), writer.turns(3))


def scans(writer: Writer, documents: int = 240, burst: int = 30) -> Iterator[Arrival]:
    """A job that reads long documents, each once, in bursts."""
    at = 30.0
    for number in range(documents):
        at += 1.5 if number % burst else 60.0
        yield Arrival(at, writer.text(6000, 0.5), writer.text(60))


TRACES: dict[str, Callable[[Writer], list[Arrival]]] = {
    "multi-turn chat": lambda writer: list(chats(writer)),
    "shared system prompts": lambda writer: list(applications(writer)),
    "agents": lambda writer: list(agents(writer)),
    "one-off scans beside chat": lambda writer: [*chats(writer), *scans(writer)],
    "mixed": lambda writer: [*chats(writer), *applications(writer), *agents(writer), *scans(writer)],
}


@dataclass(slots=True)
class Score:
    """What a replay saved, of what there was."""

    found: int = 0
    prompts: int = 0
    saved: float = 0.0
    cost: float = 0.0

    def add(self, found: int, prompt: int, unit: int) -> None:
        """Of `prompt` tokens `found` were; a token of the trace stands for `unit` real ones."""
        self.found += found
        self.prompts += prompt
        self.saved += _prefill(found * unit)
        self.cost += _prefill(prompt * unit)

    @property
    def rates(self) -> tuple[float, float]:
        """Hit rate and saved prefill."""
        return self.found / self.prompts, self.saved / self.cost


def _prefill(tokens: int) -> float:
    """What the first `tokens` tokens of a prompt cost, in units of the first one."""
    return tokens + tokens * tokens / (2 * DOUBLING)


def replay(trace: list[Arrival], name: EvictionName, blocks: int, block: int = BLOCK, unit: int = 1) -> Score:
    """Run a trace in the order of its arrivals. What finds no room waits until something has ended."""
    full = [KVCacheGroup("full", None, (0,))]
    cache = CacheManager(
        full,
        CacheOptions(blocks, block, eviction=lambda blocks, size, reuse: POLICIES[name](blocks, size * unit, reuse)),
    )
    running: list[tuple[float, int, SequenceBlocks, tuple[int, ...]]] = []
    score, now = Score(), 0.0

    def end_first() -> float:
        at, _, held, tokens = heapq.heappop(running)
        cache.publish(held, tokens, len(tokens))
        cache.release(held)
        return at

    for number, arrival in enumerate(trace):
        now = max(now, arrival.at)
        while running and running[0][0] <= now:
            end_first()
        cache.advance(now)
        tokens = arrival.prompt + arrival.answer
        held = cache.open()
        match = cache.match_prefix(held, arrival.prompt)
        while cache.reserve(held, match.tokens, len(tokens) - match.tokens, match) is None:
            if not running:
                break
            now = max(now, end_first())
            match = cache.match_prefix(held, arrival.prompt)
        score.add(match.tokens, len(arrival.prompt), unit)
        if not held.capacity:  # more than the whole pool
            continue
        seconds = unit * (len(arrival.prompt) - match.tokens) / PREFILL_RATE
        cache.publish(held, arrival.prompt, len(arrival.prompt))
        seconds += unit * len(arrival.answer) * TOKEN_SECONDS
        heapq.heappush(running, (now + seconds, number, held, tokens))
    return score


def read_mooncake(path: Path) -> list[Arrival]:
    """A published trace of a production service (Qin et al., Mooncake, FAST 2025): each id stands for 512 tokens."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    answers = count(1 << 30)
    return [
        Arrival(
            row["timestamp"] / 1000,
            (*row["hash_ids"], next(answers)),  # the last, incomplete block is never shared
            tuple(next(answers) for _ in range(row["output_length"] // 512)),
        )
        for row in rows
    ]


def compare(name: str, trace: list[Arrival], pools: list[int], block: int = BLOCK, unit: int = 1) -> None:
    """Print a row for every pool."""
    trace = sorted(trace, key=lambda arrival: arrival.at)
    everything = sum(len(a.prompt) + len(a.answer) for a in trace) // block + 1
    all_rates = replay(trace, "lru", everything, block, unit).rates
    for blocks in pools:
        scores = {policy: replay(trace, policy, blocks, block, unit).rates for policy in POLICIES}
        cells = [f"{rates[kind]:6.1%}" for kind in (0, 1) for rates in (*scores.values(), all_rates)]
        base, ours = scores["lru"], scores["priority-frequency"]
        gain = [f"{our / old - 1:+6.1%}" if old else "     -" for our, old in zip(ours, base, strict=True)]
        print(f"| {name:25} | {blocks * block * unit:8,} | {' | '.join((*cells, *gain))} |")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, nargs="+", default=[2500, 6000], help="blocks of 16 tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mooncake", type=Path, nargs="*", default=[], help="traces of Mooncake's FAST25 release")
    options = parser.parse_args()
    kinds = ("lru", "lfu", "default", "all")
    heads = [f"hit {kind}" for kind in kinds] + [f"saved {kind}" for kind in kinds] + ["hits vs lru", "saved vs lru"]
    print(f"| trace | pool (tokens) | {' | '.join(heads)} |")
    print("|---|" + "---:|" * (len(heads) + 1))
    for name, make in TRACES.items():
        compare(name, make(Writer(random.Random(options.seed))), options.pools)
    for path in options.mooncake:
        compare(path.stem, read_mooncake(path), [5_000, 20_000], block=1, unit=512)


if __name__ == "__main__":
    main()
