"""Decides which URLs in prompts the server may fetch, from which addresses, how much and for how long.

Without an allowed domain or directory nothing is ever fetched; `data:` URLs carry their content and need no permission.
"""

import asyncio
import base64
import binascii
import ipaddress
import os
import re
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin

from octavo.config.engine import ServingConfig
from octavo.errors import ConfigError, InvalidRequestError
from octavo.serving.image_header import read_image_header
from octavo.serving.media_fetch import Fetched, FetchError, get

_PARAM = "messages"
_HTTPS_PORT = 443
# One grammar, and no second parser: what is matched here is what is connected to. Nothing before the host, no
# backslash, no blank, no character outside ASCII anywhere.
_HTTPS = re.compile(
    r"[Hh][Tt][Tt][Pp][Ss]://(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}))(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>[/?][!$-;=?-Z_a-z~%\[\]]*)?(?:#[!-~]*)?"
)
_DATA = re.compile(r"data:(?P<type>[A-Za-z0-9.+/-]{0,127})(?P<options>(?:;[A-Za-z0-9=._+-]{1,127}){0,8}),", re.DOTALL)
_DOMAIN = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[[str, int, str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """How much one medium may be. `pixels` are those of all frames; `seconds` include redirects."""

    size: int = 20 << 20
    pixels: int = 1 << 26
    frames: int = 256
    seconds: float = 10.0
    redirects: int = 3
    at_once: int = 8


class MediaGate:
    """Fetches what prompts name, if it may. Owner: the event loop.

    Args:
        domains: that may be fetched from: exactly these; "*.example.org" are all below example.org.
        directory: that file:// URLs may name files of.
        limits: how much.
        resolve: host and port to addresses; getaddrinfo by default.
        connect: address, port and the host's name for TLS to an open connection.

    Raises:
        ConfigError: a domain is not written as one, or there is no such directory.
    """

    def __init__(
        self,
        domains: Sequence[str] = (),
        directory: str | None = None,
        limits: MediaLimits | None = None,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._domains = frozenset(domain.lower().rstrip(".") for domain in domains)
        for domain in self._domains:
            if not _DOMAIN.fullmatch(domain):
                raise ConfigError(f"allowed_media_domains: {domain!r} is no domain; images.example.org is one")
        self._root = _root(directory) if directory else None
        self._limits = limits or MediaLimits()
        self._resolve = resolve or _resolve
        self._connect = connect or _connect
        self._slots = asyncio.Semaphore(self._limits.at_once)

    @staticmethod
    def of(config: ServingConfig) -> "MediaGate":
        """The gate that a configuration asks for."""
        return MediaGate(config.allowed_media_domains, config.allowed_local_media_path)

    async def image(self, url: str) -> bytes:
        """The bytes of an image, whose header tells that it is one and how large it becomes when it is decoded.

        Raises:
            InvalidRequestError: it may not be fetched, cannot be fetched, or is no image or too large.
        """
        data = await self.fetch(url)
        header = read_image_header(data)
        if header is None:
            raise _refused("is no PNG, JPEG, GIF or WebP image")
        limits = self._limits
        if header.frames > limits.frames or header.width * header.height * header.frames > limits.pixels:
            raise _refused(
                f"has {header.width} x {header.height} pixels in {header.frames} frames; "
                f"at most {limits.pixels} pixels and {limits.frames} frames are taken"
            )
        return data

    async def fetch(self, url: str) -> bytes:
        """What a URL names.

        Raises:
            InvalidRequestError: it may not be fetched or cannot be.
        """
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return self._inline(url)
        if scheme == "file":
            return await asyncio.to_thread(self._local, url)
        async with self._slots:
            try:
                return await asyncio.wait_for(self._remote(url), self._limits.seconds)
            except asyncio.TimeoutError:
                raise _refused(f"did not come within {self._limits.seconds:g} seconds") from None
            except (OSError, FetchError) as error:
                raise _refused(f"cannot be fetched: {_kind(error)}") from None

    def _inline(self, url: str) -> bytes:
        match = _DATA.match(url)
        if match is None or ";base64" not in match["options"]:
            raise _refused("is no data: URL in base64")
        text = url[match.end() :]
        if len(text) * 3 // 4 > self._limits.size + 3:
            raise _refused(f"has more than {self._limits.size} bytes")
        try:
            data = base64.b64decode(unquote(text), validate=True)
        except (binascii.Error, ValueError):
            raise _refused("is no base64") from None
        return self._sized(data)

    async def _remote(self, url: str) -> bytes:
        for _ in range(self._limits.redirects + 1):
            # Every redirect passes all checks again.
            answer = await self._get(url)
            if answer.location is None:
                return self._sized(answer.body)
            url = urljoin(url, answer.location)
        raise _refused(f"is redirected more than {self._limits.redirects} times")

    async def _get(self, url: str) -> Fetched:
        match = _HTTPS.fullmatch(url)
        if match is None:
            raise _refused("must be an https:, data: or file: URL without a user name, in plain ASCII")
        host, port = match["host"].lower().rstrip("."), int(match["port"] or _HTTPS_PORT)
        if not self._allows(host):
            raise _refused(f"is of the domain {host[:80]!r}, which --allowed-media-domains does not name")
        addresses = await self._resolve(host, port)
        # All of them: an answer that mixes public and private addresses has one purpose.
        if not addresses or not all(map(is_public, addresses)):
            raise _refused(f"is at {host[:80]!r}, which is not at a public address")
        # The address that was checked, not the name, which may mean another one by now.
        reader, writer = await self._connect(addresses[0], port, host)
        try:
            path = match["path"] or "/"
            target = path if path.startswith("/") else f"/{path}"
            shown = host if port == _HTTPS_PORT else f"{host}:{port}"
            return await get(reader, writer, shown, target, self._limits.size)
        finally:
            writer.close()

    def _allows(self, host: str) -> bool:
        parents = (host[at + 1 :] for at, c in enumerate(host) if c == ".")
        return host in self._domains or any(f"*.{parent}" in self._domains for parent in parents)

    def _local(self, url: str) -> bytes:
        if self._root is None:
            raise _refused("names a file, and --allowed-local-media-path names no directory for such")
        path = unquote(url[len("file:") :])
        if path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise _refused("names a file of another machine")
            path = f"/{rest}"
        try:
            # Links are resolved here, and must not be met again on the way down.
            real = Path(path).resolve(strict=True)
            data = _read_below(self._root, real.relative_to(self._root).parts, self._limits.size)
        except (OSError, ValueError, RuntimeError):
            # One answer for what is not there and what is elsewhere: else it would tell which files exist.
            raise _refused("names no file that can be read in the directory of --allowed-local-media-path") from None
        return self._sized(data)

    def _sized(self, data: bytes) -> bytes:
        if not data:
            raise _refused("is empty")
        if len(data) > self._limits.size:
            raise _refused(f"has more than {self._limits.size} bytes")
        return data


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also the address that it carries inside."""
    try:
        parsed: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner: Address | None = None
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo[1] if parsed.teredo else None)
        if parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    carried = inner is None or (inner.is_global and not inner.is_multicast)
    mapped = isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None
    return carried and (mapped or parsed.is_global) and not parsed.is_multicast


def _root(directory: str) -> Path:
    root = Path(directory).expanduser().resolve()
    if not root.is_dir():
        raise ConfigError(f"allowed_local_media_path: {root} is no directory")
    return root


def _read_below(root: Path, parts: Sequence[str], most: int) -> bytes:
    """A file's content, reached from `root` without following a link; at most one byte more than `most`."""
    if not parts:
        raise IsADirectoryError
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        # Without O_NONBLOCK opening a pipe would wait for a writer.
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
    finally:
        os.close(here)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise IsADirectoryError
        return opened.read(most + 1)


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def _connect(address: str, port: int, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context()
    return await asyncio.open_connection(address, port, ssl=context, server_hostname=host)


def _kind(error: Exception) -> str:
    """What went wrong, without addresses: the client must not learn the inside of a network."""
    if isinstance(error, FetchError):
        return str(error)
    return "its certificate is not valid" if isinstance(error, ssl.SSLError) else "no connection"


def _refused(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"a URL in the prompt {what}", _PARAM)
