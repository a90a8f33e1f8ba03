"""A short storm: 200 clients who stream, leave and send nonsense. `benchmarks/load_test.py` makes a long one."""

import asyncio
import multiprocessing

from tests.serving.frontend_process import run_frontend
from tests.serving.load import Load
from tests.serving.scripted import PATIENCE


def test_two_hundred_clients_leave_nothing_behind() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_frontend, args=(there, 100.0, None))
    process.start()
    assert here.poll(PATIENCE)
    port = here.recv()
    assert process.pid is not None
    found = asyncio.run(Load(port, process.pid, clients=200, tokens=20, patience=PATIENCE).run(8.0, 600))
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
    assert found.growth() < 24 << 20
