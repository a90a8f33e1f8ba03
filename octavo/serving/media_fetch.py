"""One HTTP GET over an open connection, with a bound on everything that comes back."""

import asyncio
from dataclasses import dataclass

import httptools

_MAX_HEAD = 64 * 1024
_CHUNK = 64 * 1024
_REDIRECTS = (301, 302, 303, 307, 308)


class FetchError(Exception):
    """The answer is of no use; the message says why, and nothing of the inside."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer: its body, or where it says that the body is."""

    body: bytes
    location: str | None = None


async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, target: str, most: int) -> Fetched:
    """Ask for `target` and read the answer.

    Args:
        host: value of the Host field.
        most: bytes of a body.

    Raises:
        FetchError: not HTTP, not 200, too large, compressed, or cut off.
    """
    # Compressed bodies are not asked for: their size would be known too late.
    writer.write(
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: octavo\r\nAccept: image/*\r\n"
        f"Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
    )
    await writer.drain()
    answer = _Answer(most)
    parser = httptools.HttpResponseParser(answer)
    while not answer.done:
        data = await reader.read(_CHUNK)
        if not data:
            break
        answer.head_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ if isinstance(error.__context__, FetchError) else FetchError(str(error))) from None
        except httptools.HttpParserError:
            raise FetchError("the answer is not HTTP") from None
        if not answer.headed and answer.head_bytes > _MAX_HEAD:
            raise FetchError("the head of the answer is too large")
    return answer.result(parser.get_status_code() if answer.headed else 0)


class _Answer:
    """What httptools' parser calls."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._body = bytearray()
        self._location: str | None = None
        self._sized = False  # its end is told, not the connection's
        self._encoded = False
        self.headed = False
        self.done = False
        self.head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field."""
        name = name.lower()
        if name == b"location":
            self._location = value.decode("latin-1")
        elif name == b"content-encoding":
            self._encoded = value.strip().lower() not in (b"", b"identity")
        elif name in (b"content-length", b"transfer-encoding"):
            self._sized = True
            if name == b"content-length" and value.strip().isdigit() and int(value) > self._most:
                raise FetchError(f"it has more than {self._most} bytes")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self.headed = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if len(self._body) + len(body) > self._most:
            raise FetchError(f"it has more than {self._most} bytes")
        self._body += body

    def on_message_complete(self) -> None:
        """All has come."""
        self.done = True

    def result(self, status: int) -> Fetched:
        """The answer, if it is one."""
        if not self.headed:
            raise FetchError("there was no answer")
        if status in _REDIRECTS and self._location:
            return Fetched(b"", self._location)
        if status != 200:
            raise FetchError(f"the answer has status {status}")
        if self._encoded:
            raise FetchError("it comes compressed")
        if self._sized and not self.done:
            raise FetchError("it was cut off")
        return Fetched(bytes(self._body))
