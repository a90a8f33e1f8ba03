"""The directory that a command writes: there as a whole or not at all.

Everything is written beside the place it will have, and moved there when complete; what fails or is interrupted leaves
nothing behind.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.config.values import format_size
from octavo.errors import ConfigError

_SPARE = 64 << 20  # bytes of the disk that stay free


@contextmanager
def output_directory(target: Path, overwrite: bool, needed: int) -> Iterator[Path]:
    """A directory to write to, which becomes `target` when the body ends well, and is removed when not.

    Args:
        overwrite: a `target` that is there is replaced, at the very end.
        needed: bytes that will be written, about.

    Raises:
        ConfigError: it is there already, is no directory, cannot be made, or the disk has too little room.
    """
    target = Path(os.path.abspath(target))
    check_target(target, overwrite)
    parent = target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if free < needed + _SPARE:
            raise ConfigError(
                f"--output {target}: about {format_size(needed)} will be written, {format_size(free)} are free there"
            )
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=parent))
    except OSError as error:
        raise ConfigError(f"--output {target}: {error.strerror or error}") from None
    try:
        yield partial
        _publish(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_target(target: Path, overwrite: bool) -> None:
    """Refuse a place that is taken.

    Raises:
        ConfigError: says what to do.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"--output {target} is no directory; name one that is not there yet")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ConfigError(f"--output {target} is not empty; name another directory, or add --overwrite to replace it")


def _publish(partial: Path, target: Path) -> None:
    """Put a complete directory in its place. An old one goes only once the new one is there."""
    mask = os.umask(0)
    os.umask(mask)
    partial.chmod(0o777 & ~mask)  # temporary directories are for their owner alone
    old: Path | None = None
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        target.rename(old / target.name)
    try:
        partial.rename(target)
    except OSError:
        if old is not None:
            (old / target.name).rename(target)
            old.rmdir()
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
