"""What a restart costs: time to first token of a long prompt before it, and after it without and with --kv-disk.

python benchmarks/restart.py [--model MODEL] [--tokens 1000] [--repeats 5] [--threads N] [--markdown]

Every start is a process of its own. The first token is timed from the request on, with the engine up; the start itself
has a column of its own. "warm" is the second request of a life, answered from the cache. The directory is in the page
cache when the restarted engine reads it, as after any restart that is no reboot. Then: the memory of a process awake,
and asleep at both levels.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from octavo import LLM, SamplingParams
from octavo.config.values import format_size

_ONE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
_WORDS = "The old lighthouse keeper climbed the stairs every evening, lit the lamp and wrote the weather down. "


@dataclass(frozen=True)
class Life:
    """One process. Seconds; `cached` tokens of the first request."""

    start: float
    first: float
    warm: float
    cached: int
    token: int
    end: float
    tiers: list[list[object]]


def live(model: str | None, tokens: int, directory: str, threads: int | None) -> Life:
    """Start, answer the prompt twice, end."""
    began = time.perf_counter()
    disk = {"kv_disk": "4GiB", "kv_disk_path": directory} if directory else {}
    llm = LLM(model, max_model_len=tokens + 64, max_num_seqs=8, threads=threads, **disk)
    start = time.perf_counter() - began
    text = llm.get_tokenizer().encode(_WORDS * (tokens // 16))
    prompt = {"prompt_token_ids": text[:tokens]}
    seconds: list[float] = []
    outputs = []
    for _ in range(2):
        began = time.perf_counter()
        outputs.append(llm.generate(prompt, _ONE, use_tqdm=False)[0])
        seconds.append(time.perf_counter() - began)
    readings = llm.llm_engine.engine.client.stats().tiers
    tiers = [[one.name, one.hits, one.read_bytes, one.page_seconds] for one in readings]
    began = time.perf_counter()
    llm.close()
    end = time.perf_counter() - began
    return Life(start, *seconds, outputs[0].num_cached_tokens or 0, outputs[0].outputs[0].token_ids[0], end, tiers)


def sleeping(model: str | None, tokens: int, threads: int | None) -> list[tuple[str, int, float]]:
    """State, resident bytes, seconds that the change took."""
    llm = LLM(model, max_model_len=tokens + 64, max_num_seqs=8, threads=threads, enable_sleep_mode=True)
    text = llm.get_tokenizer().encode(_WORDS * (tokens // 16))[:tokens]
    found: list[tuple[str, int, float]] = []

    def note(state: str, change: object = None) -> None:
        began = time.perf_counter()
        if callable(change):
            change()
        found.append((state, _resident(), time.perf_counter() - began))

    llm.generate({"prompt_token_ids": text}, _ONE, use_tqdm=False)
    note("awake, the prompt cached")
    note("asleep, level 1", lambda: llm.sleep(1))
    note("awake again", llm.wake_up)
    note("asleep, level 2", lambda: llm.sleep(2))
    note("awake again", llm.wake_up)
    llm.close()
    return found


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def in_process(*arguments: str) -> object:
    """What another process of this file prints."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def run(common: list[str], directory: str) -> Life:
    """One life in a process of its own."""
    return Life(**in_process(*common, "--live", directory))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    parser.add_argument("--sleep", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.live is not None:
        print(json.dumps(asdict(live(arguments.model, arguments.tokens, arguments.live, arguments.threads))))
        return
    if arguments.sleep:
        print(json.dumps(sleeping(arguments.model, arguments.tokens, arguments.threads)))
        return
    common = ["--tokens", str(arguments.tokens)]
    for name in ("model", "threads"):
        if getattr(arguments, name) is not None:
            common += [f"--{name}", str(getattr(arguments, name))]
    report(common, arguments.repeats, "|" if arguments.markdown else " ")


def report(common: list[str], repeats: int, bar: str) -> None:
    """Run everything and print two tables."""
    lives: dict[str, list[Life]] = {"no tier": [], "--kv-disk, new directory": [], "--kv-disk, restarted": []}
    run(common, "")  # packs the weights, once
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="octavo-restart-") as directory:
            lives["no tier"].append(run(common, ""))
            lives["--kv-disk, new directory"].append(run(common, directory))
            lives["--kv-disk, restarted"].append(run(common, directory))
    tokens = {life.token for found in lives.values() for life in found}
    assert len(tokens) == 1, f"answers differ: {tokens}"
    row = (bar + " {:<26}" + f" {bar} {{:>9}}" * 5 + f" {bar}").format
    print(row("", "start s", "first s", "warm s", "cached", "end s"))
    if bar == "|":
        print("|---" * 6 + "|")
    for name, found in lives.items():
        figures = [statistics.median(getattr(life, field) for life in found) for field in ("start", "first", "warm")]
        end = statistics.median(life.end for life in found)
        print(row(name, *(f"{figure:.3f}" for figure in figures), found[0].cached, f"{end:.3f}"))
    for name, hits, size, page in lives["--kv-disk, restarted"][0].tiers:
        read, pace = format_size(float(str(size))), float(str(page)) * 1e3
        print(f"{name}: {hits} blocks came back, {read} read, {pace:.2f} ms a block")
    print()
    for state, resident, seconds in in_process(*common, "--sleep"):  # type: ignore[attr-defined]
        print(f"{bar} {state:<26} {bar} {format_size(resident):>10} {bar} {seconds * 1e3:7.1f} ms {bar}")


if __name__ == "__main__":
    main()
