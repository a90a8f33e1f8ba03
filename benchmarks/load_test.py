"""A storm against a server: 200 clients who stream, leave when they like, and send nonsense.

    python benchmarks/load_test.py [--seconds 600] [--clients 200] [--model MODEL | --scripted]

It fails when an answer has a status other than the right one, a stream ends without [DONE], requests or cache blocks
are left at the end, or memory grows. `--scripted` takes an engine that computes nothing: all load is on the frontend.
Every half minute it tells what the server has taken so far.
"""

import argparse
import asyncio
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.serving.frontend_process import run_frontend
from tests.serving.load import Findings, Load

_ALLOWED_GROWTH = 32 << 20  # bytes, between two quarters of the time
_REPORT_SECONDS = 30.0
# A machine that is busy otherwise gives a server little time to end what the last clients left.
_SETTLE_SECONDS = 60.0


def storm(port: int, pid: int, given: argparse.Namespace) -> Findings:
    """Make the load, and tell how it goes."""
    load = Load(port, pid, given.clients, given.tokens, given.seed, _SETTLE_SECONDS)

    async def report() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            found, resident = load.findings, load.memory(resident=True)
            told = f"{sum(found.answers.values()):7} requests  {len(found.wrong)} wrong"
            sizes = f"own {load.memory() / 2**20:5.0f} MiB  resident {resident / 2**20:5.0f} MiB"
            print(f"{time.monotonic() - began:6.0f} s  {told}  {sizes}", flush=True)

    async def main() -> Findings:
        reporting = asyncio.ensure_future(report())
        try:
            return await load.run(given.seconds)
        finally:
            reporting.cancel()

    return asyncio.run(main())


def against_scripted(given: argparse.Namespace) -> Findings:
    """The frontend with an engine that says one token for everyone a hundred times a second."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_frontend, args=(there, 100.0, None))
    process.start()
    port = here.recv()
    assert process.pid is not None
    found = storm(port, process.pid, given)
    here.send("stop")
    process.join(30)
    return found


def against_model(given: argparse.Namespace) -> Findings:
    """`octavo serve`."""
    # A small cache is soon full: a large one takes memory for as long as new blocks are written.
    words = ["--port", "0", "--max-model-len", "2048", "--max-num-seqs", "64", "--kv-cache-memory-bytes", "96MiB"]
    words += ["--disable-access-log", "--disable-log-stats"]
    command = [sys.executable, "-m", "octavo", "serve", *([given.model] if given.model else []), *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = 0
    for line in server.stdout:
        print(line, end="")
        if found := re.match(r"address .*:(\d+)", line):
            port = int(found[1])
        if line.startswith("stop"):
            break
    try:
        return storm(port, server.pid, given)
    finally:
        server.send_signal(signal.SIGTERM)
        print("exit status", server.wait(60))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    parser.add_argument("--scripted", action="store_true")
    given = parser.parse_args()
    found = (against_scripted if given.scripted else against_model)(given)
    for name, count in sorted(found.answers.items()):
        print(f"{count:8} {name}")
    step = max(1, len(found.memory) // 10)
    print("memory, MiB:", *(f"{size / 2**20:.0f}" for _, size in found.memory[::step]))
    print(f"growth {found.growth() / 2**20:+.1f} MiB; slowest /health {found.slowest_health * 1000:.0f} ms")
    if found.growth() > _ALLOWED_GROWTH:
        found.wrong.append("memory grows")
    for wrong in found.wrong[:20]:
        print("wrong:", wrong)
    print(f"{sum(found.answers.values())} requests, {len(found.wrong)} wrong")
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main())
