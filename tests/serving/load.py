"""Many clients who stream, leave when they like, and send nonsense; and what a server must look like afterwards."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_MESSAGES = [{"role": "user", "content": "Tell me a story."}]
# Body, path, and the status that is right for it.
_MALFORMED: tuple[tuple[str, bytes, int], ...] = (
    (CHAT, b"{", 400),
    (CHAT, b"[]", 400),
    (CHAT, b"\xff\xfe", 400),
    (CHAT, b'{"messages":[]}', 400),
    (CHAT, b'{"messages":[{"role":"user","content":"x"}],"n":1000000}', 400),
    (CHAT, b'{"messages":[{"role":"user","content":"x"}],"temperature":-1}', 400),
    (CHAT, b'{"messages":[{"role":"user","content":"x"}],"logit_bias":{"99999999":1}}', 400),
    (CHAT, b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/"}}]}]}', 400),
    (CHAT, b'{"messages":' + b"[" * 5000, 400),
    (TEXT, b'{"prompt":""}', 400),
    (TEXT, b'{"prompt":[1,2,-3]}', 400),
    (TEXT, json.dumps({"prompt": "x " * 40_000}).encode(), 400),
    (TEXT, b'{"prompt":"x","model":"../../etc/passwd"}', 404),
    ("/v1/nothing", b"{}", 404),
)  # fmt: skip
_NO_HTTP = (b"hello\r\n\r\n", b"\x16\x03\x01\x00\xa5", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n")


@dataclass
class Findings:
    """What came of it. `seconds` of the slowest /health; `memory`: bytes by time, of all processes of the server."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_health: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)

    def growth(self) -> int:
        """Bytes between the median of the third quarter's readings and that of the last's."""
        count = len(self.memory)
        median = lambda part: sorted(size for _, size in part)[len(part) // 2]  # noqa: E731
        return median(self.memory[3 * count // 4 :]) - median(self.memory[count // 2 : 3 * count // 4])


class Load:
    """Clients against one server.

    Args:
        pid: of the server; its children are measured with it.
        clients: at once.
        tokens: most of an answer.
        patience: seconds that the server has at the end to give everything back.
    """

    def __init__(self, port: int, pid: int, clients: int, tokens: int, seed: int = 0, patience: float = 5.0) -> None:
        self._port = port
        self._process = psutil.Process(pid)
        self._clients = clients
        self._tokens = tokens
        self._patience = patience
        self._random = random.Random(seed)
        self.findings = Findings()

    async def run(self, seconds: float, answers: int = 0) -> Findings:
        """Make load for so long, and until there were so many answers; then see that everything was given back."""
        end = time.monotonic() + seconds
        watching = asyncio.ensure_future(self._watch())
        await asyncio.gather(*(self._client(end, answers) for _ in range(self._clients)))
        watching.cancel()
        await self._settle()
        return self.findings

    async def _client(self, end: float, answers: int) -> None:
        draw = self._random
        while time.monotonic() < end or self.findings.answers.total() < answers:
            what = draw.choices((self._stream, self._whole, self._malformed, self._no_http), (60, 20, 18, 2))[0]
            try:
                await what()
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self.findings.wrong.append(f"{what.__name__}: {error!r}")

    async def _stream(self) -> None:
        draw = self._random
        path = draw.choice((CHAT, TEXT))
        body: dict[str, object] = {
            "stream": True,
            "max_tokens": draw.randint(1, self._tokens),
            "n": draw.choice((1, 2)),
        }
        body |= {"messages": _MESSAGES} if path == CHAT else {"prompt": ["Once", "upon"]}
        body |= draw.choice(({}, {"temperature": 0}, {"logprobs": True if path == CHAT else 2}, {"stop": ["zq"]}))
        patience = draw.choice((None, None, draw.random() * 0.3, 0.0))
        reader, writer = await self._send(path, json.dumps(body).encode())
        try:
            if patience is None:
                status, answer = await self._read(reader)
                whole = status == 200 and b"data: [DONE]" in answer and b'data: {"error"' not in answer
                self._note(path, status, 200 if whole else -1)
            else:
                await asyncio.wait_for(self._read(reader), patience + 0.001)
        except asyncio.TimeoutError:
            self.findings.answers[f"{path} left"] += 1
        finally:
            writer.close()

    async def _whole(self) -> None:
        body = {"messages": _MESSAGES, "max_tokens": self._random.randint(1, self._tokens)}
        reader, writer = await self._send(CHAT, json.dumps(body).encode())
        try:
            if self._random.random() < 0.4:
                await asyncio.sleep(self._random.random() * 0.1)
                self.findings.answers[f"{CHAT} left"] += 1
                return
            self._note(CHAT, (await self._read(reader))[0], 200)
        finally:
            writer.close()

    async def _malformed(self) -> None:
        path, body, right = self._random.choice(_MALFORMED)
        if self._random.random() < 0.1:  # the rest of it never comes
            _, writer = await self._send(path, body, len(body) + 10)
            await asyncio.sleep(0.01)
            writer.close()
            return
        reader, writer = await self._send(path, body)
        try:
            self._note(f"malformed {path}", (await self._read(reader))[0], right)
        finally:
            writer.close()

    async def _no_http(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._random.choice(_NO_HTTP))
        try:
            self._note("no HTTP", (await self._read(reader))[0], 400)
        finally:
            writer.close()

    async def _send(
        self, path: str, body: bytes, length: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body)
        return reader, writer

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        answer = await reader.read(-1)
        return int(answer[9:12]), answer

    def _note(self, what: str, status: int, right: int) -> None:
        self.findings.answers[f"{what} {status}"] += 1
        if status != right:
            self.findings.wrong.append(f"{what}: {status} instead of {right}")

    async def _watch(self) -> None:
        began = time.monotonic()
        while True:
            self.findings.memory.append((time.monotonic() - began, self.memory()))
            asked = time.monotonic()
            status, _ = await self._get("/health")
            self.findings.slowest_health = max(self.findings.slowest_health, time.monotonic() - asked)
            if status != 200:
                self.findings.wrong.append(f"/health: {status}")
            await asyncio.sleep(0.25)

    def memory(self, resident: bool = False) -> int:
        """Bytes that the server's processes have of their own, or (`resident`) with what they share."""
        infos = [one.memory_full_info() for one in (self._process, *self._process.children(recursive=True))]
        return sum(info.rss if resident else info.uss for info in infos)

    async def _get(self, path: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        try:
            status, answer = await self._read(reader)
        finally:
            writer.close()
        return status, answer.decode()

    async def _settle(self) -> None:
        """Nothing runs, nothing waits, no block is held: soon after the last client has gone."""
        end = time.monotonic() + self._patience
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        left: dict[str, float] = {}
        while time.monotonic() < end:
            _, text = await self._get("/metrics")
            left = {name: float(_value(text, name)) for name in names}
            _, load = await self._get("/load")
            left["load"] = json.loads(load.partition("\r\n\r\n")[2])["server_load"]
            if not any(left.values()):
                return
            await asyncio.sleep(0.05)
        self.findings.wrong.append(f"not given back: {left}")


def _value(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return found[1]
