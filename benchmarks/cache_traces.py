"""Which eviction policy forgets the right things: replayed traces over the real cache, without a model.

python benchmarks/cache_traces.py [--pools 1500 4000] [--seeds 1 2 3] [--traces agents mixed] [--mooncake FILE.jsonl]

A prompt is looked up when it arrives, its blocks are held while it is answered, then prompt and answer stay cached for
as long as the policy lets them. `hit rate` is the share of prompt tokens found; `saved prefill` weighs each of them
with its cost, which attention makes grow with its position (twice as much at 4,096 tokens). `optimum` knows the future.
"""

import argparse
import heapq
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import mean

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


def optimum(trace: list[Arrival], blocks: int, block: int = BLOCK, unit: int = 1) -> Score:
    """What nobody can do better: forget what is needed again last (Belady, IBM Systems Journal 5(2), 1966).

    It knows the future, may refuse to keep what nobody asks for again, and needs no room for what is being computed.
    """
    chains, score = [list(_chain(arrival, block)) for arrival in trace], Score()
    coming: dict[int, list[int]] = {}
    for number in range(len(trace) - 1, -1, -1):
        for name in chains[number][: (len(trace[number].prompt) - 1) // block]:
            coming.setdefault(name, []).append(number)
    cached: dict[int, int] = {}  # when it is needed next
    order: list[tuple[int, int, int]] = []
    for number, (arrival, chain) in enumerate(zip(trace, chains, strict=True)):
        usable = (len(arrival.prompt) - 1) // block
        found = next((index for index in range(usable) if chain[index] not in cached), usable)
        score.add(found * block, len(arrival.prompt), unit)
        for depth, name in enumerate(chain):
            later = coming.get(name, [])
            while later and later[-1] <= number:
                later.pop()
            cached.pop(name, None)
            if later:
                cached[name] = later[-1]
                heapq.heappush(order, (-later[-1], -depth, name))
        while len(cached) > blocks:
            when, _, name = heapq.heappop(order)
            if cached.get(name) == -when:
                del cached[name]
    return score


def _chain(arrival: Arrival, block: int) -> Iterator[int]:
    """A number for each full block that stands for it and all before it."""
    tokens, parent = arrival.prompt + arrival.answer, 0
    for start in range(0, len(tokens) // block * block, block):
        parent = hash((parent, tokens[start : start + block]))
        yield parent


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


Rates = tuple[float, float]  # hits and saved prefill, of 1


def rates(trace: list[Arrival], blocks: int, block: int = BLOCK, unit: int = 1) -> dict[str, Rates]:
    """What each policy reaches, and the optimum."""
    trace = sorted(trace, key=lambda arrival: arrival.at)
    found = {str(policy): replay(trace, policy, blocks, block, unit).rates for policy in POLICIES}
    return {**found, "optimum": optimum(trace, blocks, block, unit).rates}


def row(name: str, tokens: int, samples: list[dict[str, Rates]]) -> str:
    """A line of the table: means over samples of one pool, and the gains of the default over lru."""
    cells = [f"{mean([sample[who][0] for sample in samples]):6.1%}" for who in samples[0]]
    for kind in (0, 1):
        gains = [sample["priority-frequency"][kind] / sample["lru"][kind] - 1 for sample in samples]
        cells.append(f"{mean(gains):+6.1%} ({min(gains):+.1%} .. {max(gains):+.1%})")
    return f"| {name:25} | {tokens:10,} | {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, nargs="+", default=[1500, 2500, 6000], help="blocks of 16 tokens")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--traces", nargs="*", choices=TRACES, default=list(TRACES))
    parser.add_argument("--mooncake", type=Path, nargs="*", default=[], help="traces of Mooncake's FAST25 release")
    options = parser.parse_args()
    print(f"| trace | pool (tokens) | {' | '.join((*POLICIES, 'optimum'))} | hits, default vs lru | saved prefill |")
    print("|---|---:|" + "---:|" * (len(POLICIES) + 1) + "---|---|")
    for name in options.traces:
        traces = [TRACES[name](Writer(random.Random(seed))) for seed in options.seeds]
        for blocks in options.pools:
            print(row(name, blocks * BLOCK, [rates(trace, blocks) for trace in traces]), flush=True)
    for path in options.mooncake:
        trace = read_mooncake(path)
        for blocks in (1_000, 3_000, 10_000, 30_000):
            print(row(path.stem, blocks * 512, [rates(trace, blocks, block=1, unit=512)]), flush=True)


if __name__ == "__main__":
    main()
