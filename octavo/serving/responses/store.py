"""Where responses are kept: an SQLite file that only its owner can read, bounded in size and age.

Several servers may share a file; see `serving/ownership.py`.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError
from octavo.serving.ownership import Ownership

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, tenant TEXT NOT NULL, created REAL NOT NULL, previous TEXT,
    live INTEGER NOT NULL, input BLOB NOT NULL, response BLOB NOT NULL, events BLOB, size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON responses (created, size);
"""
_COLUMNS = "id, tenant, created, previous, live, input, response, events"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it is kept. input, response: JSON. events: those of a stream that can be resumed. tenant: who may
    have it. live: it is under way."""

    id: str
    tenant: str
    created: float
    previous: str | None
    live: bool
    input: bytes
    response: bytes
    events: bytes | None = None


class ResponseStore:
    """Used by one thread at a time.

    Args:
        path: the file; None keeps everything in memory.
        most_bytes: of all that is kept; the oldest goes first.
        most_seconds: age beyond which nothing is kept.
        lost: makes of a response whose server has ended one that says so.
        clock: seconds since the epoch.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path | None,
        most_bytes: int,
        most_seconds: float,
        lost: Callable[[bytes], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._most_bytes, self._most_seconds, self._clock = most_bytes, most_seconds, clock
        self._path = path
        try:
            self._database = self._opened()
            self._recover(lost)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"response_store: {path}: {error}; choose another file, memory or none") from None

    def put(self, item: StoredResponse) -> None:
        """Keep a response, in the place of what there was of it."""
        size = len(item.input) + len(item.response) + len(item.events or b"")
        row = (item.id, item.tenant, item.created, item.previous, item.live, item.input, item.response, item.events)
        with self._database:
            self._database.execute(
                f"INSERT OR REPLACE INTO responses ({_COLUMNS}, owner, size) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (*row, self._ownership.owner, size),
            )
            self._shrink()

    def get(self, number: str, tenant: str) -> StoredResponse | None:
        """A response of this tenant."""
        found = self._database.execute(
            f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND tenant = ? AND created >= ?",
            (number, tenant, self._clock() - self._most_seconds),
        ).fetchone()
        if found is None:
            return None
        number, tenant, created, previous, live, given, response, events = found
        return StoredResponse(number, tenant, created, previous, bool(live), given, response, events)

    def delete(self, number: str, tenant: str) -> bool:
        """Forget a response of this tenant; false where there is none."""
        with self._database:
            done = self._database.execute("DELETE FROM responses WHERE id = ? AND tenant = ?", (number, tenant))
        return done.rowcount > 0

    def close(self) -> None:
        """No more is kept or read."""
        self._database.close()
        self._ownership.close()

    def _opened(self) -> sqlite3.Connection:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite gives its other files the mode of this one.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            os.chmod(self._path, 0o600)
        self._ownership = Ownership(self._path)
        database = sqlite3.connect(self._path or ":memory:", timeout=10, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA secure_delete = ON")
        database.executescript(_SCHEMA)
        return database

    def _shrink(self) -> None:
        """What is under way stays, whatever its size."""
        execute = self._database.execute
        execute("DELETE FROM responses WHERE NOT live AND created < ?", (self._clock() - self._most_seconds,))
        total: int = execute("SELECT COALESCE(SUM(size), 0) FROM responses").fetchone()[0]
        while total > self._most_bytes:
            found = execute("SELECT id, size FROM responses WHERE NOT live ORDER BY created, id LIMIT 1").fetchone()
            if found is None:
                return
            execute("DELETE FROM responses WHERE id = ?", found[:1])
            total -= found[1]

    def _recover(self, lost: Callable[[bytes], bytes]) -> None:
        """Say of the responses whose server has ended that they failed."""
        owners = [row[0] for row in self._database.execute("SELECT DISTINCT owner FROM responses WHERE live")]
        for owner in owners:
            if not self._ownership.ended(owner):
                continue
            with self._database:
                rows = self._database.execute("SELECT id, response FROM responses WHERE live AND owner = ?", (owner,))
                for number, response in rows.fetchall():
                    change = "UPDATE responses SET live = 0, response = ? WHERE id = ?"
                    self._database.execute(change, (lost(response), number))
