"""What stands between the network and the application, is checked before a model is loaded, and may change meanwhile:
keys, certificates, the access log."""

import asyncio
from pathlib import Path

from octavo.config.engine import ServingConfig
from octavo.errors import ConfigError
from octavo.serving.access import AccessFile
from octavo.serving.keys import KeyRing
from octavo.serving.media import MediaGate
from octavo.serving.tls import tls_of

_LOOK_SECONDS = 1.0


class Edge:
    """Owner: the event loop.

    Args:
        config: what was asked for.

    Raises:
        ConfigError: a file of it is missing or wrong.
    """

    def __init__(self, config: ServingConfig) -> None:
        file = Path(config.api_key_file).expanduser() if config.api_key_file else None
        self.keys = KeyRing(config.api_key, file)
        self.tls = tls_of(config)
        self.media = MediaGate.of(config)
        self.access_file = AccessFile(config.access_log) if config.access_log else None
        if config.allow_credentials and "*" in config.allowed_origins:
            raise ConfigError("allow_credentials: name the --allowed-origins; * would let every site act for its users")

    async def follow(self, reload: asyncio.Event) -> None:
        """Look every second whether a file has changed; at once, and at all of them, when `reload` is set."""
        while True:
            try:
                await asyncio.wait_for(reload.wait(), _LOOK_SECONDS)
                reload.clear()
                force = True
            except asyncio.TimeoutError:
                force = False
            await asyncio.to_thread(self.keys.refresh, force)
            if self.tls is not None:
                self.tls.refresh(force)
            if self.access_file is not None:
                (self.access_file.reopen if force else self.access_file.follow)()

    def close(self) -> None:
        """No more is served."""
        if self.access_file is not None:
            self.access_file.close()
