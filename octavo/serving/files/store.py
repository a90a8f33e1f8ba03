"""Where files and batches are kept: contents below one root, everything else in an SQLite file there.

Names on disk are made here and never come from a request. Only the owner of the process can read them.
"""

import os
import re
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from octavo.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.serving.files.schema import FileObject
from octavo.serving.ownership import Ownership
from octavo.serving.paging import Page

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL, name TEXT NOT NULL,
    purpose TEXT NOT NULL, size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS files_by_tenant ON files (tenant, created, id);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created REAL NOT NULL, owner TEXT NOT NULL, server TEXT NOT NULL,
    live INTEGER NOT NULL, input TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_by_tenant ON batches (tenant, created, id);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, failed INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (batch, line)
) WITHOUT ROWID;
"""
MONTH = 30 * 86_400.0
_ID = re.compile(r"file-[0-9a-f]{32}")
_MOST_FILES = 100_000
_OLD_PART = 86_400.0
_FILE = "id, tenant, created, expires, name, purpose, size"
_BATCH = "id, tenant, created, live, input, body"


class UnknownFileError(OctavoError):
    """There is no such file, or it belongs to somebody else."""

    status = 404


class StoreFullError(InvalidRequestError):
    """There is no room for a file."""

    status = 413


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it is kept. body: its object, as JSON. live: it has not ended."""

    id: str
    tenant: str
    created: float
    live: bool
    input: str
    body: bytes


def new_file_id() -> str:
    """An id that no file has."""
    return f"file-{uuid.uuid4().hex}"


class FileStore:
    """Used by one thread at a time.

    Args:
        root: the directory; made where there is none.
        most_bytes: of all files together.
        clock: seconds since the epoch.

    Raises:
        ConfigError: it cannot be used.
    """

    def __init__(self, root: Path, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._root, self._most_bytes, self._clock = root, most_bytes, clock
        database = root / "files.sqlite3"
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))
            self.ownership = Ownership(database)
            self._database = sqlite3.connect(database, timeout=10, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
            self._sweep()
            self._clear_parts()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"file_store: {root}: {error}; choose another directory, or none") from None

    def close(self) -> None:
        """No more is kept or read."""
        self._database.close()
        self.ownership.close()

    # Files.

    def add_file(self, tenant: str, name: str, purpose: str, source: BinaryIO, seconds: float) -> FileObject:
        """Keep what `source` gives, for so many seconds.

        Raises:
            StoreFullError: there is no room for it.
        """
        self._sweep()
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        count, total = self._database.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files").fetchone()
        if total + size > self._most_bytes or count >= _MOST_FILES:
            raise StoreFullError(
                f"there is no room for {size} bytes: {count} files of {total} bytes are kept, of at most "
                f"{self._most_bytes} (--file-store-size); delete files that are not needed",
                "file",
            )
        with self.writing(new_file_id(), tenant, name, purpose, seconds) as file:
            shutil.copyfileobj(source, file.out, 1 << 20)
        assert file.made is not None
        return file.made

    def writing(self, number: str, tenant: str, name: str, purpose: str, seconds: float) -> "Writing":
        """A file under an id of one's own; it is there when the context ends, whole or not at all. Whatever was there
        under this id is replaced."""
        now = self._clock()
        return Writing(self._kept, self._root / number, (number, tenant, now, now + seconds, name, purpose))

    def _kept(self, row: tuple[str, str, float, float, str, str], size: int) -> FileObject:
        with self._database:
            self._database.execute(f"INSERT OR REPLACE INTO files ({_FILE}) VALUES (?,?,?,?,?,?,?)", (*row, size))
        return _file_object((*row, size))

    def file(self, number: str, tenant: str) -> FileObject:
        """A file of this tenant.

        Raises:
            UnknownFileError: there is none.
        """
        found = self._database.execute(
            f"SELECT {_FILE} FROM files WHERE id = ? AND tenant = ? AND expires > ?", (number, tenant, self._clock())
        ).fetchone()
        if found is None:
            raise UnknownFileError(f"there is no file {number[:128]!r}; it may have been deleted or have expired")
        return _file_object(found)

    def path(self, number: str) -> Path:
        """Where the content of a file lies that was found in the store."""
        assert _ID.fullmatch(number), number
        return self._root / number

    def files(self, tenant: str, purpose: str | None, page: Page) -> list[FileObject]:
        """Files of this tenant; one more than `page` asks for, if there is one."""
        wanted = ("AND purpose = ?", (purpose,)) if purpose is not None else ("", ())
        return [_file_object(row) for row in self._page("files", _FILE, tenant, page, *wanted)]

    def delete_file(self, number: str, tenant: str) -> None:
        """Forget a file.

        Raises:
            UnknownFileError: there is none.
            InvalidRequestError: a batch that has not ended reads it.
        """
        self.file(number, tenant)
        reader = self._database.execute("SELECT id FROM batches WHERE live AND input = ?", (number,)).fetchone()
        if reader is not None:
            raise InvalidRequestError(f"{number} is the input of {reader[0]}, which has not ended; cancel that first")
        self._remove([number])

    # Batches.

    def put_batch(self, item: StoredBatch, server: str) -> None:
        """Keep a batch, in the place of what there was of it. server: who may go on with it if this process ends."""
        row = (item.id, item.tenant, item.created, item.live, item.input, item.body)
        with self._database:
            self._database.execute(
                f"INSERT OR REPLACE INTO batches ({_BATCH}, owner, server) VALUES (?,?,?,?,?,?,?,?)",
                (*row, self.ownership.owner, server),
            )
            if not item.live:
                self._database.execute("DELETE FROM results WHERE batch = ?", (item.id,))

    def batch(self, number: str, tenant: str) -> StoredBatch | None:
        """A batch of this tenant."""
        found = self._database.execute(
            f"SELECT {_BATCH} FROM batches WHERE id = ? AND tenant = ?", (number, tenant)
        ).fetchone()
        return None if found is None else StoredBatch(*found)

    def batches(self, tenant: str, page: Page) -> list[StoredBatch]:
        """Batches of this tenant; one more than `page` asks for, if there is one."""
        return [StoredBatch(*row) for row in self._page("batches", _BATCH, tenant, page)]

    def adopt(self, server: str) -> list[StoredBatch]:
        """The batches under way of servers like this one that have ended; they are this one's from now on. To be called
        before there are own ones."""
        mine, execute = self.ownership.owner, self._database.execute
        owners = [row[0] for row in execute("SELECT DISTINCT owner FROM batches WHERE live AND owner != ?", (mine,))]
        for owner in filter(self.ownership.ended, owners):
            # Whoever changes the row first has it: others may be looking, too.
            with self._database:
                execute("UPDATE batches SET owner = ? WHERE live AND owner = ? AND server = ?", (mine, owner, server))
        query = f"SELECT {_BATCH} FROM batches WHERE live AND owner = ? ORDER BY created"
        return [StoredBatch(*row) for row in execute(query, (mine,))]

    def put_result(self, batch: str, line: int, failed: bool, body: bytes) -> None:
        """Keep the result of one line."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO results VALUES (?,?,?,?)", (batch, line, failed, body))

    def done(self, batch: str) -> dict[int, bool]:
        """The lines that have a result: number -> it failed."""
        return {
            line: bool(failed)
            for line, failed in self._database.execute("SELECT line, failed FROM results WHERE batch = ?", (batch,))
        }

    def results(self, batch: str, failed: bool) -> Iterator[tuple[int, bytes]]:
        """The results of a batch, in the order of its lines."""
        yield from self._database.execute(
            "SELECT line, body FROM results WHERE batch = ? AND failed = ? ORDER BY line", (batch, failed)
        )

    def _page(
        self, table: str, columns: str, tenant: str, page: Page, more: str = "", values: Sequence[str | None] = ()
    ) -> list[Any]:
        order, sign = ("ASC", ">") if page.ascending else ("DESC", "<")
        behind: tuple[str | float, ...] = ()
        where = f"tenant = ? {more}"
        if page.after is not None:
            query = f"SELECT created, id FROM {table} WHERE id = ? AND tenant = ?"
            found = self._database.execute(query, (page.after, tenant)).fetchone()
            if found is None:
                raise UnknownFileError(f"after: there is nothing with the id {page.after[:128]!r}")
            where += f" AND (created, id) {sign} (?, ?)"
            behind = tuple(found)
        if table == "files":
            where += " AND expires > ?"
            behind += (self._clock(),)
        query = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY created {order}, id {order} LIMIT ?"
        return self._database.execute(query, (tenant, *values, *behind, page.limit + 1)).fetchall()

    def _sweep(self) -> None:
        """What is too old goes; inputs of batches under way stay."""
        now = self._clock()
        query = "SELECT id FROM files WHERE expires <= ? AND id NOT IN (SELECT input FROM batches WHERE live)"
        self._remove([row[0] for row in self._database.execute(query, (now,))])
        with self._database:
            self._database.execute("DELETE FROM batches WHERE NOT live AND created < ?", (now - MONTH,))

    def _clear_parts(self) -> None:
        """What servers that were killed left half written; another one may be writing now."""
        for part in self._root.glob("file-*.part"):
            if part.stat().st_mtime < time.time() - _OLD_PART:
                part.unlink(missing_ok=True)

    def _remove(self, numbers: Sequence[str]) -> None:
        if not numbers:
            return
        with self._database:
            self._database.executemany("DELETE FROM files WHERE id = ?", [(number,) for number in numbers])
        for number in numbers:
            with suppress(OSError):
                self.path(number).unlink()


class Writing:
    """A file that is being written.

    Args:
        keep: called with the row and the size once it is whole.
        path: where it will lie.
        row: what is kept of it, but for its size.
    """

    def __init__(
        self,
        keep: Callable[[tuple[str, str, float, float, str, str], int], FileObject],
        path: Path,
        row: tuple[str, str, float, float, str, str],
    ) -> None:
        self.made: FileObject | None = None
        self._keep, self._path, self._row = keep, path, row
        self._part = path.with_name(path.name + ".part")
        self.out: BinaryIO = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.out.close()
            self._part.unlink(missing_ok=True)
            return
        self.out.flush()
        os.fsync(self.out.fileno())
        size = self.out.tell()
        self.out.close()
        self._part.replace(self._path)
        self.made = self._keep(self._row, size)


def _file_object(row: tuple[str, str, float, float, str, str, int]) -> FileObject:
    number, _, created, expires, name, purpose, size = row
    return FileObject(
        id=number, bytes=size, created_at=int(created), expires_at=int(expires), filename=name, purpose=purpose
    )
