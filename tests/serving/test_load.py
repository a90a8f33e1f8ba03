"""A short storm: 200 clients who stream, leave and send nonsense. `benchmarks/load_test.py` makes a long one."""

import asyncio
import multiprocessing

from tests.serving.frontend_process import run_frontend
from tests.serving.load import Findings, Load
from tests.serving.scripted import PATIENCE

MOST_GROWTH = 24 << 20


def test_two_hundred_clients_leave_nothing_behind() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_frontend, args=(there, 100.0, None))
    process.start()
    assert here.poll(PATIENCE)
    port = here.recv()
    assert process.pid is not None
    load = Load(port, process.pid, clients=200, tokens=20, patience=PATIENCE)

    async def storm() -> Findings:
        for _ in range(4):  # a slow machine needs longer until all that is kept for 200 clients is there
            found = await load.run(8.0, 600)
            if found.growth() < MOST_GROWTH:
                break
        return found

    found = asyncio.run(storm())
    here.send("stop")
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert not found.wrong, found.wrong[:10]
    assert sum(found.answers.values()) > 400
    assert {name for name in found.answers if name.endswith(("200", "left"))} >= {
        "/v1/chat/completions 200",
        "/v1/completions 200",
        "/v1/chat/completions left",
    }
    assert found.growth() < MOST_GROWTH
