"""What `make demo` shows: a server, one streamed chat answer with its figures, the address and what to try next."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

QUESTION = "In two sentences: why do octopuses have three hearts?"


def main() -> int:
    """Run the demo; returns the exit status."""
    began = time.perf_counter()
    print("  Starting the server", flush=True)
    # Port 8000 if nobody has it, as in every example; else any free one.
    port = "8000" if is_free(8000) else "0"
    server = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", "--port", port, "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        host, port_number = wait_for_address(server)
        print(f"  The server answers after {time.perf_counter() - began:.1f} s\n")
        show_answer(host, port_number, server.pid)
        show_next(f"http://{host}:{port_number}")
        if sys.stdin.isatty():
            print("\nThe server keeps running; Ctrl-C ends it.", flush=True)
            server.wait()
        else:
            print("\nThis server ends now, since no terminal could end it.", flush=True)
        return 0
    except KeyboardInterrupt:
        print()
        return 0
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        stop(server)


def is_free(port: int) -> bool:
    """Whether nobody listens at a port of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.connect()
    except OSError:
        return True
    finally:
        connection.close()
    return False


def is_healthy(host: str, port: int) -> bool:
    """Whether the server says that it takes requests."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def wait_for_address(server: "subprocess.Popen[str]") -> tuple[str, int]:
    """The address that the server prints when it is ready."""
    assert server.stdout is not None
    for line in server.stdout:
        found = re.search(r"http://([\d.]+):(\d+)", line)
        if found:
            host, port = found[1], int(found[2])
            while not is_healthy(host, port) and server.poll() is None:
                time.sleep(0.02)
            return host, port
    raise RuntimeError(f"the server ended with status {server.wait()} before it was ready")


def show_answer(host: str, port: int, pid: int) -> None:
    """Ask one question and print the answer as it comes, then the figures."""
    print(f"  > {QUESTION}\n\n  ", end="", flush=True)
    sent = time.perf_counter()
    first = last = 0.0
    tokens = 0
    for event in chat_events(host, port):
        for choice in event.get("choices", []):
            text = choice["delta"].get("content")
            if text:
                last = time.perf_counter()
                first = first or last
                print(text.replace("\n", "\n  "), end="", flush=True)
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    per_token = f"{(last - first) / (tokens - 1) * 1e3:.1f} ms" if tokens > 1 else "-"
    print(f"\n\n  first token {1e3 * (first - sent):.0f} ms   per token {per_token}   tokens {tokens}", end="")
    print(f"   memory {memory_of(pid) / 2**20:.0f} MiB (server and engine)\n")


def chat_events(host: str, port: int) -> Iterator[dict]:
    """The events of a streamed chat completion."""
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 120,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(host, port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"the server answered {response.status}: {response.read(300)!r}")
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])
    connection.close()


def memory_of(pid: int) -> int:
    """Bytes that a process and its children hold in memory."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # ended meanwhile
        if int(fields["Pid"]) == pid or int(fields["PPid"]) == pid:
            total += int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
    return total


def show_next(address: str) -> None:
    """What a newcomer may do now."""
    octavo = Path(sys.executable).parent / "octavo"
    if Path.cwd() in octavo.parents:
        octavo = octavo.relative_to(Path.cwd())
    print(f"  address   {address}   (OpenAI-compatible: base_url={address}/v1, any API key)")
    print("  try next")
    print(f"    {octavo} chat                 talk to the model here in the terminal")
    print(f"    {octavo} serve                start the server yourself; --help lists every option")
    print(f"    {octavo} inspect              what the model is, what was chosen for this machine, and why")
    print(f"    {octavo} bench                throughput and latency on this machine")
    print(f"    {octavo} serve DIR|FILE.gguf|OWNER/NAME   another model")


def stop(server: "subprocess.Popen[str]") -> None:
    """End the server and wait until it is gone."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
