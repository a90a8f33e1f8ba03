"""A progress bar moves on a terminal; a log gets a line at its start and one at its end."""

import io
import re
import sys

from octavo.api.progress import open_progress
from octavo.telemetry.bar import open_bar


def fill(count: int) -> None:
    with open_bar(total=count, desc="work", ncols=80, mininterval=0, miniters=1) as bar:
        for _ in range(count):
            bar.set_postfix_str("now", refresh=False)
            bar.update(1)


def test_a_log_gets_two_lines(monkeypatch) -> None:
    log = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stderr", log)
    fill(50)
    log.seek(0)
    start, end = log.read().splitlines()
    assert re.match(r"work: +0%.* 0/50 ", start)
    assert re.match(r"work: 100%.* 50/50 .*now", end)


def test_so_does_offline_generation(monkeypatch) -> None:
    log = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stderr", log)
    with open_progress(True, 30) as progress:
        for _ in range(30):
            progress.finished(3, 4)
    log.seek(0)
    text = log.read()
    assert "\r" not in text
    assert len(text.splitlines()) == 2
    assert "30/30" in text


class Terminal(io.TextIOWrapper):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_it_move(monkeypatch) -> None:
    terminal = Terminal(io.BytesIO(), "utf-8", newline="")
    monkeypatch.setattr(sys, "stderr", terminal)
    fill(5)
    terminal.seek(0)
    shown = re.findall(r"\r[^\r]* ([0-5]/5) ", terminal.read())
    assert list(dict.fromkeys(shown)) == [f"{done}/5" for done in range(6)]


def test_a_notebook_sees_it_move(monkeypatch) -> None:
    stream = io.StringIO()  # no terminal, and no file either
    monkeypatch.setattr(sys, "stderr", stream)
    fill(5)
    assert all(f"{done}/5" in stream.getvalue() for done in range(6))
