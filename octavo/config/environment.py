"""The only reader of environment variables. HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are left to the hub's library.

OCTAVO_CACHE_DIR   where packed weights and assembled models are kept (default: ~/.cache/octavo)
OCTAVO_LOG_LEVEL   debug, info, warning or error, unless --log-level is given
OCTAVO_THREADS     compute threads, unless --threads is given
OCTAVO_ISA         instruction set of the native kernels, unless --isa is given
OCTAVO_SERVER_DEV_MODE   1: serve the operators' routes (/pause ...); VLLM_SERVER_DEV_MODE is understood as well
OCTAVO_API_KEY     key that requests must carry, unless --api-key is given; VLLM_API_KEY is understood as well

Of vLLM's variables also
VLLM_CPU_KVCACHE_SPACE         size of the KV cache in GiB, unless a flag sizes it; 0 counts as unset
VLLM_LOGGING_LEVEL             as OCTAVO_LOG_LEVEL, which wins
VLLM_HTTP_TIMEOUT_KEEP_ALIVE   seconds, unless --keep-alive-timeout is given
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.config.engine import choices_of
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says; `None` where it says nothing."""

    cache_dir: Path
    log_level: str | None = None
    threads: int | None = None
    isa: str | None = None
    api_key: str | None = None
    dev_mode: bool = False
    kv_cache_bytes: int | None = None
    keep_alive_timeout: int | None = None


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read `variables` (default: those of this process). Empty values count as unset.

    Raises:
        ConfigError: a variable's value cannot be understood; names it.
    """
    found = {name: value for name, value in (os.environ if variables is None else variables).items() if value}
    return Environment(
        cache_dir=_cache_dir(found),
        log_level=_one_of(found, "OCTAVO_LOG_LEVEL", choices_of("log_level"))
        or _one_of(found, "VLLM_LOGGING_LEVEL", choices_of("log_level")),
        threads=_positive(found, "OCTAVO_THREADS"),
        isa=_one_of(found, "OCTAVO_ISA", choices_of("isa")),
        api_key=found.get("OCTAVO_API_KEY") or found.get("VLLM_API_KEY"),
        dev_mode="1" in (found.get("OCTAVO_SERVER_DEV_MODE"), found.get("VLLM_SERVER_DEV_MODE")),
        kv_cache_bytes=_gibibytes(found, "VLLM_CPU_KVCACHE_SPACE"),
        keep_alive_timeout=_positive(found, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"),
    )


def _cache_dir(variables: Mapping[str, str]) -> Path:
    own = variables.get("OCTAVO_CACHE_DIR")
    if own:
        return Path(os.path.expanduser(own))
    shared = variables.get("XDG_CACHE_HOME")
    base = Path(shared) if shared else Path(variables.get("HOME", "~")).expanduser() / ".cache"
    return base / "octavo"


def _positive(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: a positive whole number is expected")
    return int(text)


def _gibibytes(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(f"{name}={text}: a number of GiB is expected")
    return round(float(text) * (1 << 30)) or None


def _one_of(variables: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    text = variables.get(name)
    if text is None:
        return None
    if text.lower() not in choices:
        raise ConfigError(f"{name}={text}: one of {', '.join(choices)} is expected")
    return text.lower()
