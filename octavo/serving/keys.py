"""Decides which API keys are valid: those of the command line and those of a key file, which may change at any time."""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from octavo.errors import ConfigError
from octavo.telemetry.log import logger

# 256 random bits: a plain hash keeps them secret, no slow one is needed (NIST SP 800-63B, 5.1.2.2, look-up secrets).
_KEY_BYTES = 32
_PREFIX = "sk-octavo-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MAX_FILE_BYTES = 16 << 20

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]
_Weight = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of a key file. Entries of one name are keys of one owner, who has one set of limits.

    sha256: of the key, in hexadecimal. requests_per_minute: POST requests. tokens_per_minute: of prompts and answers.
    weight: share in proportion to others under the scheduling policy 'fair'.
    """

    name: str
    sha256: _Sha256
    requests_per_minute: _Count | None = None
    concurrent_requests: _Count | None = None
    tokens_per_minute: _Count | None = None
    weight: _Weight | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a key belongs to. `name` is empty for keys of the command line, which have no limits. A `weight` of 0 is
    that of the configuration."""

    name: str = ""
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 0.0


class KeyRing:
    """All valid keys, as digests. Owner: the event loop.

    Args:
        keys: plain keys, of the command line or the environment.
        file: a key file; see `KeyEntry`.

    Raises:
        ConfigError: the file cannot be read or says something wrong.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._plain = tuple((_digest(_bytes_of(key)), Owner()) for key in keys)
        if any(digest == _digest(b"") for digest, _ in self._plain):
            raise ConfigError("api_key: a key is empty")
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._entries: tuple[tuple[bytes, Owner], ...] = ()
        if file is not None:
            self._seen = _stamp(file)
            self._entries = read_entries(file)

    @property
    def wanted(self) -> bool:
        """Requests need a key; also with a file that holds none yet: then nobody gets in."""
        return bool(self._plain) or self._file is not None

    def owner_of(self, key: bytes) -> Owner | None:
        """Whose key this is. Takes the same time for every key, right or wrong: all are compared, to their ends."""
        given, owner = _digest(key), None
        for digest, its_owner in (*self._plain, *self._entries):
            if hmac.compare_digest(given, digest):
                owner = its_owner
        return owner

    def refresh(self, force: bool = False) -> bool:
        """Read the file again if it has changed, or anyway. A file with a fault leaves everything as it is, and says
        so in the log.

        Returns:
            Whether it was read.
        """
        if self._file is None:
            return False
        stamp = _stamp(self._file)
        if stamp == self._seen and not force:
            return False
        self._seen = stamp
        try:
            self._entries = read_entries(self._file)
        except ConfigError as error:
            logger("auth").error("the keys stay as they were: %s", error)
            return False
        logger("auth").info("%d keys read from %s", len(self._entries), self._file)
        return True


def read_entries(file: Path) -> tuple[tuple[bytes, Owner], ...]:
    """The digests of a key file and their owners.

    Raises:
        ConfigError: no such file, or an entry is wrong; names the entry.
    """
    import yaml  # 20 ms, and most servers have no such file

    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"{file}: larger than {_MAX_FILE_BYTES} bytes")
        content: object = yaml.safe_load(file.read_text("utf-8"))
        entries = msgspec.convert(content or [], list[KeyEntry])
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}; `octavo key add {file} --name NAME` makes it") from None
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not a list of keys: {' '.join(str(error).split())}") from None
    return _checked(file, entries)


def _checked(file: Path, entries: Sequence[KeyEntry]) -> tuple[tuple[bytes, Owner], ...]:
    owners: dict[str, Owner] = {}
    digests: dict[bytes, Owner] = {}
    for entry in entries:
        if not _NAME.fullmatch(entry.name):
            raise ConfigError(f"{file}: the name {entry.name[:80]!r} may have letters, digits and ._@- only")
        owner = Owner(
            entry.name,
            entry.requests_per_minute,
            entry.concurrent_requests,
            entry.tokens_per_minute,
            entry.weight or 0.0,
        )
        if owners.setdefault(entry.name, owner) != owner:
            raise ConfigError(f"{file}: the entries of {entry.name} have different limits; they share one set")
        digest = bytes.fromhex(entry.sha256)
        if digests.setdefault(digest, owner).name != owner.name:
            raise ConfigError(f"{file}: {entry.name} and {digests[digest].name} have the same key")
    return tuple(digests.items())


def new_key() -> str:
    """A key nobody has had before."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def add_entry(file: Path, entry: KeyEntry) -> None:
    """Append an entry to a key file, which is made when it is not there (mode 0600). What is in it stays as it is.

    Raises:
        ConfigError: the file, or the file with this entry, is not a right one.
    """
    text = "\n".join(f"{name}: {_plain(value)}" for name, value in msgspec.to_builtins(entry).items())
    block = "- " + text.replace("\n", "\n  ") + "\n"
    before = read_entries(file) if file.exists() else ()
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        old = file.read_text("utf-8") if file.exists() else "# API keys of Octavo; see `octavo key --help`\n"
        # A server that reads meanwhile sees the old file or the new one, never half of it.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(old + ("" if old.endswith("\n") else "\n") + block)
        if file.exists():
            os.chmod(draft, file.stat().st_mode & 0o777)
        if len(read_entries(draft)) != len(before) + 1:
            raise ConfigError(f"{file}: this key is in it already")
        draft.replace(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def entry_for(name: str, key: str, **limits: object) -> KeyEntry:
    """The entry of a key.

    Args:
        limits: fields of `KeyEntry`; None leaves one out.

    Raises:
        ConfigError: a value is out of range.
    """
    given = {field: value for field, value in limits.items() if value is not None}
    try:
        entry = msgspec.convert({"name": name, "sha256": _digest(_bytes_of(key)).hex(), **given}, KeyEntry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"key: {error}") from None
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the name {name[:80]!r} may have letters, digits and ._@- only")
    return entry


def _plain(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _bytes_of(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
