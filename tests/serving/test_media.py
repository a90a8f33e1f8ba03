"""The gate for media that prompts name by URL: what may be fetched, from where, how much; and what images tell."""

import asyncio
import base64
import os
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trustme

from octavo.errors import ConfigError, InvalidRequestError
from octavo.serving.image_header import ImageHeader, read_image_header
from octavo.serving.media import MediaGate, MediaLimits, is_public
from tests.serving.scripted import HTTP, run_server

PUBLIC = "93.184.216.34"
HOST = "images.example"


def png(width: int, height: int, frames: int = 1, cut: int | None = None) -> bytes:
    """A PNG whose header tells this; its pixels are not there."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    animation = chunk(b"acTL", struct.pack(">II", frames, 0)) if frames > 1 else b""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return (b"\x89PNG\r\n\x1a\n" + header + animation + chunk(b"IDAT", b"") + chunk(b"IEND", b""))[:cut]


SMALL = png(2, 2)


class Net:
    """A fake resolver and a real server: which addresses are asked for and connected to, and what is answered.

    answers: by path; bytes of a whole HTTP answer, or a function that writes one.
    """

    def __init__(self, answers: dict[str, object] | None = None, addresses: dict[str, Sequence[str]] | None = None):
        self.answers = answers or {}
        self.addresses = addresses or {HOST: [PUBLIC]}
        self.resolved: list[str] = []
        self.connected: list[tuple[str, int, str]] = []
        self.requests: list[bytes] = []
        self.port = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        return self.addresses[host]

    async def connect(self, address: str, port: int, host: str):
        self.connected.append((address, port, host))
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(request)
        answer = self.answers.get(request.split(b" ")[1].decode(), ok(SMALL))
        try:
            if callable(answer):
                await answer(writer)
            else:
                writer.write(answer)  # type: ignore[arg-type]
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def ok(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def moved(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def fetch(net: Net, url: str, domains: Sequence[str] = (HOST,), limits: MediaLimits | None = None) -> bytes:
    """What the gate gives for a URL."""

    async def run() -> bytes:
        server = await asyncio.start_server(net.serve, "127.0.0.1", 0)
        net.port = server.sockets[0].getsockname()[1]
        try:
            gate = MediaGate(domains, None, limits, net.resolve, net.connect)
            return await gate.image(url)
        finally:
            server.close()

    return asyncio.run(run())


def refused(net: Net, url: str, match: str, **more: object) -> None:
    with pytest.raises(InvalidRequestError, match=match) as error:
        fetch(net, url, **more)  # type: ignore[arg-type]
    assert error.value.param == "messages"


def test_an_allowed_url_is_fetched_from_the_checked_address() -> None:
    net = Net()
    assert fetch(net, f"https://{HOST}/a/b.png?x=1%20#part") == SMALL
    assert net.connected == [(PUBLIC, 443, HOST)]
    assert net.requests[0].startswith(b"GET /a/b.png?x=1%20 HTTP/1.1\r\nHost: images.example\r\n")
    assert b"ccept-Encoding: identity" in net.requests[0]
    assert fetch(net, "HTTPS://IMAGES.example.:8443?q") == SMALL
    assert net.connected[1] == (PUBLIC, 8443, HOST)
    assert net.requests[1].startswith(b"GET /?q HTTP/1.1\r\nHost: images.example:8443\r\n")


def test_a_name_that_changes_its_address_is_of_no_use() -> None:
    """The second look-up would be the attacker's: there is none."""
    net = Net()
    fetch(net, f"https://{HOST}/")
    assert net.resolved == [HOST]
    assert net.connected[0][0] == PUBLIC


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example/",
        "ftp://images.example/",
        "//images.example/",
        "images.example/a.png",
        "https:images.example/",
        "https:///images.example/",
        r"https://images.example\@127.0.0.1/",
        r"https:\\images.example/",
        "https://images.example@127.0.0.1/",
        "https://user:pw@images.example/",
        "https://images.example:80:443/",
        "https://images.example /",
        "https://images.example/a b",
        "https://images.example/\r\nHost: other",
        "https://images.example/\x00",
        "https://[::1]/",
        "https://im\u00e1ges.example/",
        "https://images.example/é",
        "https://images%2eexample/",
        "https://",
        "javascript:alert(1)",
        "",
    ],
)
def test_urls_that_are_written_otherwise_reach_nobody(url: str) -> None:
    net = Net()
    refused(net, url, "must be an https:, data: or file: URL")
    assert not net.resolved
    assert not net.connected


@pytest.mark.parametrize(
    "host",
    ["other.example", "example", "aimages.example", "a.images.example", "127.0.0.1", "0x7f000001", "2130706433",
     "169.254.169.254", "localhost", "images.example.evil.example"],
)  # fmt: skip
def test_other_domains_are_not_asked_for(host: str) -> None:
    net = Net()
    refused(net, f"https://{host}/", "--allowed-media-domains")
    assert not net.resolved


def test_without_allowed_domains_nothing_is_fetched() -> None:
    net = Net()
    refused(net, f"https://{HOST}/", "--allowed-media-domains", domains=())
    assert not net.resolved


def test_subdomains_are_allowed_by_a_star() -> None:
    net = Net(addresses={"a.b.example": [PUBLIC], "b.example": [PUBLIC]})
    assert fetch(net, "https://a.b.example/", domains=("*.b.example",)) == SMALL
    refused(net, "https://b.example/", "--allowed-media-domains", domains=("*.b.example",))
    refused(net, "https://ab.example/", "--allowed-media-domains", domains=("*.b.example",))


PRIVATE = (
    *("127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
    *("224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1"),
    *("ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "2001:db8::1", "not an address", ""),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_connected_to(address: str) -> None:
    net = Net(addresses={HOST: [address]})
    refused(net, f"https://{HOST}/", "not at a public address")
    mixed = Net(addresses={HOST: [PUBLIC, address]})
    refused(mixed, f"https://{HOST}/", "not at a public address")
    assert not net.connected + mixed.connected


def test_public_addresses() -> None:
    assert all(map(is_public, (PUBLIC, "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808")))


def test_every_redirect_is_checked() -> None:
    good = Net({"/1": moved("/2"), "/2": moved(f"https://{HOST}/3"), "/3": ok(SMALL)})
    assert fetch(good, f"https://{HOST}/1") == SMALL
    assert len(good.resolved) == 3
    for target, message in (
        ("http://127.0.0.1/", "must be an https:"),
        ("https://127.0.0.1/", "--allowed-media-domains"),
        ("file:///etc/hostname", "must be an https:"),
        ("//169.254.169.254/latest", "--allowed-media-domains"),
        (f"https://user@{HOST}/", "must be an https:"),
    ):
        net = Net({"/": moved(target)})
        refused(net, f"https://{HOST}/", message)
        assert len(net.connected) == 1
    rebound = Net({"/": moved("https://inside.example/")}, {HOST: [PUBLIC], "inside.example": ["10.0.0.1"]})
    refused(rebound, f"https://{HOST}/", "public address", domains=(HOST, "inside.example"))
    refused(Net({"/": moved("/")}), f"https://{HOST}/", "redirected more than 3 times")


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"a: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (endless_body, "more than 100000 bytes"),
        (endless_head, "head of the answer is too large"),
        (silence, "did not come within 0.3 seconds"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n", "more than 100000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nx", "cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "cut off"),
        (ok(zlib.compress(SMALL), "Content-Encoding: deflate\r\n"), "compressed"),
        (ok(b""), "is empty"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "not HTTP"),
        (b"", "no answer"),
    ],
)
def test_what_comes_back_is_bounded(answer: Answer, message: str) -> None:
    limits = MediaLimits(size=100_000, seconds=0.3 if answer is silence else 120.0)
    refused(Net({"/": answer}), f"https://{HOST}/", message, limits=limits)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    assert fetch(Net({"/": b"HTTP/1.1 200 OK\r\n\r\n" + SMALL}), f"https://{HOST}/") == SMALL
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(SMALL), SMALL)
    assert fetch(Net({"/": chunked}), f"https://{HOST}/") == SMALL


def test_the_certificate_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gate's own connections: a certificate that nobody trusts, for another name."""
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("other.example").configure_cert(context)
    net = Net()

    async def run() -> None:
        server = await asyncio.start_server(net.serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr("octavo.serving.media.is_public", lambda address: address == "127.0.0.1")

        async def resolve(host: str, _port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        with pytest.raises(InvalidRequestError, match="certificate is not valid"):
            await MediaGate((HOST,), resolve=resolve).fetch(f"https://{HOST}:{port}/")
        server.close()

    asyncio.run(run())
    assert not net.requests


def test_errors_tell_nothing_of_the_inside() -> None:
    async def connect(address: str, port: int, host: str):
        raise ConnectionRefusedError(111, f"Connect call failed ('{address}', {port})")

    async def run() -> None:
        with pytest.raises(InvalidRequestError) as error:
            await MediaGate((HOST,), resolve=Net().resolve, connect=connect).fetch(f"https://{HOST}/")
        assert PUBLIC not in str(error.value)

    asyncio.run(run())


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url: str, limits: MediaLimits | None = None, directory: str | None = None) -> bytes:
    async def run() -> bytes:
        return await MediaGate((), directory, limits).image(url)

    return asyncio.run(run())


def test_data_urls() -> None:
    assert image(data_url(SMALL)) == SMALL
    assert image(data_url(SMALL, "text/plain")) == SMALL  # what it is, is read from its bytes
    for url, message in (
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,@@@", "base64"),
        ("data:image/png;base64,", "empty"),
        ("data:", "base64"),
        (data_url(b"x" * 1200), "more than 1000 bytes"),
        (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "no PNG"),
        (data_url(b"\x89PNG\r\n\x1a\n"), "no PNG"),
        (data_url(png(0, 5)), "no PNG"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            image(url, MediaLimits(size=1000))


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        (png(1, 1), True),
        (png(1, 20_000), True),
        (png(8192, 8192), True),
        (png(8193, 8192), False),
        (png(30_000, 30_000), False),
        (png(4, 4, frames=256), True),
        (png(4, 4, frames=10_000), False),
        (png(2000, 2000, frames=200), False),
        (png(1 << 31, 1 << 31), False),
    ],
)
def test_images_that_become_too_large_are_refused_before_they_are_decoded(data: bytes, fits: bool) -> None:
    if fits:
        assert image(data_url(data)) == data
    else:
        with pytest.raises(InvalidRequestError, match="pixels"):
            image(data_url(data))


def test_files_below_the_directory_alone(tmp_path: Path) -> None:
    root = tmp_path / "allowed"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a b.png").write_bytes(SMALL)
    (tmp_path / "secret.png").write_bytes(SMALL)
    (root / "inside.png").symlink_to(root / "sub" / "a b.png")
    (root / "out.png").symlink_to(tmp_path / "secret.png")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.png")
    for name in ("sub/a%20b.png", "sub/../sub/a b.png", "inside.png"):
        assert image(f"file://{root}/{name}", directory=str(root)) == SMALL
    assert image(f"file://localhost{root}/inside.png", directory=str(root)) == SMALL
    assert image(f"file:{root}/inside.png", directory=str(root)) == SMALL
    answers = set()
    for path in (
        f"{tmp_path}/secret.png",
        f"{root}/../secret.png",
        f"{root}/%2e%2e/secret.png",
        f"{root}/out.png",
        f"{root}/up/secret.png",
        f"{root}/none.png",
        f"{root}/pipe.png",
        f"{root}/a%00b",
        f"{root}",
        "/etc/hostname",
        f"{root}-more/secret.png",
    ):
        with pytest.raises(InvalidRequestError) as error:
            image(f"file://{path}", directory=str(root))
        answers.add(str(error.value))
    assert len(answers) == 1  # what is not there and what is forbidden look alike
    with pytest.raises(InvalidRequestError, match="another machine"):
        image(f"file://server{root}/inside.png", directory=str(root))
    with pytest.raises(InvalidRequestError, match="--allowed-local-media-path"):
        image(f"file://{root}/inside.png")
    with pytest.raises(InvalidRequestError, match="more than 5 bytes"):
        image(f"file://{root}/inside.png", MediaLimits(size=5), str(root))


def test_wrong_options_stop_the_start(tmp_path: Path) -> None:
    for domain in ("https://images.example", "images.example/path", "*", "a b", "*.*.example", ""):
        with pytest.raises(ConfigError, match="allowed_media_domains"):
            MediaGate((domain,))
    with pytest.raises(ConfigError, match="no directory"):
        MediaGate((), str(tmp_path / "none"))


GIF = (
    b"GIF89a\x03\x00\x02\x00\x80\x00\x00" + b"\x00" * 6 + b"\x21\xf9\x04\x00\x00\x00\x00\x00"
    + (b"\x2c\x00\x00\x00\x00\x03\x00\x02\x00\x00\x02\x02\x44\x01\x00") * 3 + b"\x3b"
)  # fmt: skip
JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc2\x00\x0b\x08\x00\x07\x00\x09\x01\x01\x11\x00\xff\xd9"
WEBP = b"RIFF\x00\x00\x00\x00WEBP"


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (png(7, 9), ImageHeader("png", 7, 9)),
        (png(7, 9, 12), ImageHeader("png", 7, 9, 12)),
        (GIF, ImageHeader("gif", 3, 2, 3)),
        (JPEG, ImageHeader("jpeg", 9, 7)),
        (WEBP + b"VP8X\x0a\x00\x00\x00" + b"\x02\x00\x00\x00\x63\x00\x00\x31\x00\x00" + b"ANMF\x02\x00\x00\x00ab" * 2,
         ImageHeader("webp", 100, 50, 2)),
        (WEBP + b"VP8L\x05\x00\x00\x00\x2f" + (99 | 49 << 14).to_bytes(4, "little"), ImageHeader("webp", 100, 50)),
        (WEBP + b"VP8 \x0a\x00\x00\x00\x00\x00\x00\x9d\x01\x2a\x64\x00\x32\x00", ImageHeader("webp", 100, 50)),
    ],
)  # fmt: skip
def test_headers(data: bytes, header: ImageHeader) -> None:
    assert read_image_header(data) == header
    for end in range(min(len(data), 64)):  # cut anywhere: no answer or a right one, never an exception
        cut = read_image_header(data[:end])
        assert cut is None or (cut.width, cut.height) == (header.width, header.height)


def test_until_there_are_models_that_see_nothing_is_fetched() -> None:
    with run_server() as server:
        for part in (
            {"type": "image_url", "image_url": {"url": f"{server.url}/health"}},
            {"type": "image_url", "image_url": {"url": data_url(SMALL)}},
            {"type": "input_image", "image_url": "https://169.254.169.254/"},
        ):
            body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}
            answer = HTTP.post(server.url + "/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert "reads text only" in answer.json()["error"]["message"]
        text = {"messages": [{"role": "user", "content": f"![]({server.url}/version)"}]}
        assert HTTP.post(server.url + "/v1/chat/completions", json=text).status_code == 200
        assert 'route="/version"' not in HTTP.get(server.url + "/metrics").text
