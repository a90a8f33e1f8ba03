"""Decides how connections are encrypted and whose certificates are asked for; takes up renewed certificates."""

import ssl
from pathlib import Path

from octavo.config.engine import ServingConfig
from octavo.errors import ConfigError
from octavo.telemetry.log import logger


class Tls:
    """The certificate of a server and the context that connections are made with. Owner: the event loop.

    Args:
        config: names of the files.

    Raises:
        ConfigError: a file is missing or is none of its kind, or the options do not go together.
    """

    def __init__(self, config: ServingConfig) -> None:
        self._certificate = Path(config.ssl_certfile or "")
        self._key = Path(config.ssl_keyfile) if config.ssl_keyfile else None
        if not config.ssl_certfile:
            raise ConfigError("ssl_keyfile: a certificate is needed, too; give --ssl-certfile")
        if config.ssl_cert_reqs and not config.ssl_ca_certs:
            raise ConfigError("ssl_cert_reqs: clients' certificates are checked with --ssl-ca-certs; give it")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(self.context)
        if config.ssl_ca_certs:
            self._trust(config.ssl_ca_certs)
        self.context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
        # httptools speaks HTTP/1.1 alone.
        self.context.set_alpn_protocols(["http/1.1"])
        self._seen = self._stamps()

    def refresh(self, force: bool = False) -> bool:
        """Take up a certificate that was renewed: for new connections. One that cannot be read changes nothing.

        Returns:
            Whether one was taken up.
        """
        stamps = self._stamps()
        if stamps == self._seen and not force:
            return False
        self._seen = stamps
        try:
            # Tried aside: half of a renewal (the key of another certificate) must not get into use.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except ConfigError as error:
            logger("tls").error("the certificate stays as it was: %s", error)
            return False
        logger("tls").info("certificate read from %s", self._certificate)
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        for name, path in (("ssl_certfile", self._certificate), ("ssl_keyfile", self._key)):
            if path is not None:
                _check_readable(name, path)
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            hint = "" if self._key else "; its private key goes into the same file, or into --ssl-keyfile"
            raise ConfigError(f"ssl_certfile: {self._certificate}: {_reason(error)}{hint}") from None

    def _trust(self, authorities: str) -> None:
        _check_readable("ssl_ca_certs", Path(authorities))
        try:
            self.context.load_verify_locations(authorities)
        except ssl.SSLError as error:
            raise ConfigError(f"ssl_ca_certs: {authorities}: {_reason(error)}") from None

    def _stamps(self) -> tuple[int, ...]:
        stamps: list[int] = []
        for path in (self._certificate, self._key):
            try:
                stamps.append(path.stat().st_mtime_ns if path else 0)
            except OSError:
                stamps.append(-1)
        return tuple(stamps)


def tls_of(config: ServingConfig) -> Tls | None:
    """The encryption that was asked for; None for plain HTTP.

    Raises:
        ConfigError: as `Tls`.
    """
    if config.ssl_certfile or config.ssl_keyfile:
        return Tls(config)
    if config.ssl_ca_certs or config.ssl_cert_reqs:
        raise ConfigError("ssl_ca_certs and ssl_cert_reqs need https: give --ssl-certfile and --ssl-keyfile")
    return None


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{name}: {path}: {error.strerror or error}") from None


def _no_password() -> str:
    # OpenSSL would ask at the terminal, for ever.
    raise ConfigError("ssl_keyfile: the private key has a password; give one without")


def _reason(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key belongs to another certificate"
    return f"not in PEM format ({error.reason})" if error.reason else "not in PEM format"
