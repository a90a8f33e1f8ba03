"""Reads an input of batches: which lines there are, and what is wrong with any of them, before one is run."""

import os
from array import array
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from octavo.errors import InvalidRequestError
from octavo.serving.batches.schema import BatchError, Line
from octavo.serving.limits import MAX_DEPTH, check_depth

MAX_LINES = 50_000  # OpenAI's bound of a batch
_MOST_ERRORS = 100  # that are told
_LONGEST_ID = 512
_MARK = b"\xef\xbb\xbf"  # editors on Windows begin files with it
_decode = msgspec.json.Decoder(Line).decode


@dataclass(slots=True)
class LineIndex:
    """Where each line that is not blank begins, how long it is, and which line of the file it is, from 1."""

    starts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    numbers: "array[int]" = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, file: BinaryIO, place: int) -> bytes:
        """A line, wherever the file is read otherwise."""
        return os.pread(file.fileno(), self.lengths[place], self.starts[place])


class LineChecker:
    """Takes the lines of a file one by one, and remembers what is wrong.

    Args:
        urls: paths that lines may ask.
        longest: bytes of a line.
        most: lines.
    """

    def __init__(self, urls: tuple[str, ...], longest: int, most: int | None = MAX_LINES) -> None:
        self.index = LineIndex()
        self.errors: list[BatchError] = []
        self.wrong = 0
        self._urls, self._longest, self._most = urls, longest, most
        self._seen: dict[str, int] = {}

    def read(self, file: BinaryIO) -> None:
        """Look at every line of a file."""
        at = 0
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith(_MARK):
                at, line = len(_MARK), line[len(_MARK) :]
            if line.strip():
                self._note(number, at, line)
            at += len(line)
            if self._most is not None and len(self.index) > self._most:
                self._say("too_many_lines", f"a batch may have {self._most} lines; split the file", None, number)
                return
        if not len(self.index):
            self._say("empty_file", "the file has no lines", None, None)

    def _note(self, number: int, at: int, line: bytes) -> None:
        index = self.index
        index.starts.append(at)
        index.lengths.append(len(line))
        index.numbers.append(number)
        if len(line) > self._longest:
            self._say(
                "line_too_long", f"the line has {len(line)} bytes, at most {self._longest} are taken", None, number
            )
            return
        try:
            found = read_line(line)
        except InvalidRequestError as error:
            self._say("invalid_json_line" if error.param is None else "invalid_line", str(error), error.param, number)
            return
        self._check(found, number)

    def _check(self, found: Line, number: int) -> None:
        if not found.custom_id or len(found.custom_id) > _LONGEST_ID:
            self._say("invalid_custom_id", f"custom_id must have 1 to {_LONGEST_ID} characters", "custom_id", number)
        elif (first := self._seen.setdefault(found.custom_id, number)) != number:
            told = f"custom_id {found.custom_id[:64]!r} is that of line {first}, too; every line needs its own"
            self._say("duplicate_custom_id", told, "custom_id", number)
        if found.method != "POST":
            self._say("invalid_method", f"method must be 'POST', got {found.method[:16]!r}", "method", number)
        if found.url not in self._urls:
            wanted = f"must be {self._urls[0]!r}" if len(self._urls) == 1 else f"must be one of {', '.join(self._urls)}"
            self._say("mismatched_endpoint", f"url {wanted}, got {found.url[:64]!r}", "url", number)

    def _say(self, code: str, message: str, param: str | None, line: int | None) -> None:
        self.wrong += 1
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(BatchError(code=code, message=message, param=param, line=line))


def read_line(line: bytes) -> Line:
    """One line.

    Raises:
        InvalidRequestError: it is not JSON, or lacks something; `param` names what.
    """
    try:
        check_depth(line)
        found = _decode(line)
        if not bytes(found.body).lstrip().startswith(b"{"):
            raise InvalidRequestError("body: expected an object", "body")
        return found
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        name = place.rstrip("`").removeprefix(".") or text.rpartition("`")[0].rpartition("`")[2] or "line"
        raise InvalidRequestError(f"{name}: {text.replace('`', '')}", name) from None
    except RecursionError:
        raise InvalidRequestError(f"the line is nested deeper than {MAX_DEPTH} levels") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidRequestError(f"the line is not valid JSON: {reason}") from None
