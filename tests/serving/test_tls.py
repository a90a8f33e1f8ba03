"""Encrypted connections, certificates of clients, renewed certificates, CORS, prefixes and unix sockets."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from octavo.config.engine import ServingConfig
from octavo.errors import ConfigError
from octavo.serving.edge import Edge
from octavo.serving.tls import Tls, tls_of
from tests.serving.scripted import HTTP, PATIENCE, config_of, connect, exchange, run_server, until

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Files:
    """Certificates on disk. Two authorities: a client that the second has signed is nobody here."""

    folder: Path
    authority: trustme.CA
    stranger: trustme.CA
    cert: str
    key: str
    trusted: str

    def client(self, authority: trustme.CA | None = None) -> ssl.SSLContext:
        """A context that trusts the server, and carries a certificate of `authority`."""
        context = ssl.create_default_context(cafile=self.trusted)
        if authority is not None:
            authority.issue_cert("client@example.org").configure_cert(context)
        return context

    def renew(self, cert: str, key: str) -> None:
        """Write a new certificate for the server."""
        made = self.authority.issue_cert("127.0.0.1", "localhost")
        made.private_key_pem.write_to_path(key)
        Path(cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    made = Files(folder, authority, stranger, str(folder / "cert.pem"), str(folder / "key.pem"), str(folder / "ca.pem"))
    made.renew(made.cert, made.key)
    return made


def test_https(files: Files) -> None:
    with run_server(config=config_of(ssl_certfile=files.cert, ssl_keyfile=files.key)) as server:
        with httpx.Client(verify=files.client(), trust_env=False, timeout=PATIENCE) as client:
            assert server.url.startswith("https://127.0.0.1")
            assert client.get(server.url + "/health").status_code == 200
            with client.stream("POST", server.url + CHAT, json=GOOD | {"stream": True}) as answer:
                assert "".join(answer.iter_lines()).endswith("data: [DONE]")
        with (
            httpx.Client(verify=ssl.create_default_context(), trust_env=False, timeout=PATIENCE) as stranger,
            pytest.raises(httpx.ConnectError, match=r"[Cc]ertificate|CERTIFICATE"),
        ):
            stranger.get(server.url + "/health")
        plain = exchange(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.startswith(b"HTTP/1.1 200")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_protocols_are_refused(files: Files) -> None:
    context = files.client()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        run_server(config=config_of(ssl_certfile=files.cert, ssl_keyfile=files.key)) as server,
        httpx.Client(verify=context, trust_env=False, timeout=PATIENCE) as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.get(server.url + "/health")


def test_certificates_of_clients(files: Files) -> None:
    config = config_of(ssl_certfile=files.cert, ssl_keyfile=files.key, ssl_ca_certs=files.trusted, ssl_cert_reqs=2)
    with run_server(config=config) as server:

        def status(authority: trustme.CA | None) -> int:
            with httpx.Client(verify=files.client(authority), trust_env=False, timeout=PATIENCE) as client:
                return client.get(server.url + "/health").status_code

        assert status(files.authority) == 200
        for nobody in (None, files.stranger):
            with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
                status(nobody)
        assert status(files.authority) == 200


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(files: Files, tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    files.renew(cert, key)
    with run_server(config=config_of(ssl_certfile=cert, ssl_keyfile=key)) as server:

        def seen() -> bytes | None:
            with files.client().wrap_socket(connect(server), server_hostname="127.0.0.1") as connection:
                return connection.getpeercert(binary_form=True)

        first = seen()
        with until(lambda: seen() != first):
            files.renew(cert, key)
        second = seen()
    tls = Tls(config_of(ssl_certfile=cert, ssl_keyfile=key).serving)
    Path(key).write_text("broken")
    assert not tls.refresh()
    Path(key).unlink()
    assert not tls.refresh()
    files.renew(cert, key)
    assert tls.refresh()
    assert not tls.refresh()
    assert first != second


def test_wrong_files_stop_the_start(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    files.authority.issue_cert("localhost").private_key_pem.write_to_path(str(other))
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    good = {"ssl_certfile": files.cert, "ssl_keyfile": files.key}
    for options, message in (
        ({"ssl_keyfile": files.key}, "--ssl-certfile"),
        ({"ssl_ca_certs": files.trusted}, "--ssl-certfile"),
        (good | {"ssl_cert_reqs": 2}, "--ssl-ca-certs"),
        (good | {"ssl_certfile": "/nowhere/cert.pem"}, "ssl_certfile: /nowhere/cert.pem: No such file"),
        (good | {"ssl_keyfile": str(other)}, "another certificate"),
        (good | {"ssl_certfile": str(text)}, "PEM"),
        (good | {"ssl_ca_certs": str(text)}, "ssl_ca_certs"),
        ({"ssl_certfile": files.cert}, "--ssl-keyfile"),
    ):
        with pytest.raises(ConfigError, match=message):
            tls_of(ServingConfig(**options))  # type: ignore[arg-type]
    assert tls_of(ServingConfig()) is None


def test_a_key_with_a_password_is_refused_instead_of_asking(files: Files, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ConfigError, match="password"):
        Tls(ServingConfig(ssl_certfile=files.cert, ssl_keyfile=str(locked)))


def test_cross_origin_requests() -> None:
    config = config_of(
        allowed_origins=("https://page.example",),
        allowed_methods=("POST",),
        allowed_headers=("X-Mine",),
        allow_credentials=True,
        api_key=("k",),
    )
    with run_server(config=config) as server:

        def preflight(origin: str, method: str) -> httpx.Response:
            asked = {
                "origin": origin,
                "access-control-request-method": method,
                "access-control-request-headers": "x-mine",
            }
            return HTTP.options(server.url + CHAT, headers=asked)

        good = preflight("https://page.example", "POST")
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "https://page.example"
        assert good.headers["access-control-allow-credentials"] == "true"
        assert "X-Mine" in good.headers["access-control-allow-headers"]
        assert preflight("https://evil.example", "POST").status_code == 400
        assert preflight("https://page.example", "DELETE").status_code == 400
        # A page may read why it was refused.
        refused = HTTP.post(server.url + CHAT, json=GOOD, headers={"origin": "https://page.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://page.example"


def test_credentials_for_every_origin_are_refused() -> None:
    with pytest.raises(ConfigError, match="allowed-origins"):
        Edge(ServingConfig(allow_credentials=True))


@pytest.mark.parametrize("prefix", ["/api", "/api/"])
def test_a_prefix_of_a_proxy(prefix: str) -> None:
    with run_server(config=config_of(root_path=prefix)) as server:
        assert HTTP.get(server.url + "/health").status_code == 200
        assert HTTP.post(server.url + CHAT, json=GOOD).status_code == 200
        labels = HTTP.get(server.url + "/metrics").text
        assert f'route="{CHAT}"' in labels


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "octavo.sock")
    with (
        run_server(config=config_of(uds=path, access_log=str(tmp_path / "a.jsonl"))),
        httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=PATIENCE) as client,
    ):
        assert client.get("http://localhost/health").status_code == 200
        assert client.post(f"http://localhost{CHAT}", json=GOOD).status_code == 200
    assert '"client":null' in (tmp_path / "a.jsonl").read_text()
