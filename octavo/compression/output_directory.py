"""The directory that a command writes: there as a whole or not at all.

Everything is written beside the place it will have, and moved there when complete; what fails or is interrupted leaves
nothing behind. What is killed cannot tidy up: the next run for that place does, and knows by a lock that nobody writes.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from octavo.config.values import format_size
from octavo.errors import ConfigError

_SPARE = 64 << 20  # bytes of the disk that stay free
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REPORT = "report.json"  # what every complete directory has


@contextmanager
def output_directory(target: Path, overwrite: bool, needed: int) -> Iterator[Path]:
    """A directory to write to, which becomes `target` when the body ends well, and is removed when not.

    Args:
        overwrite: a `target` that is there is replaced, at the very end.
        needed: bytes that will be written, about.

    Raises:
        ConfigError: it is there already, is no directory, cannot be made, or the disk is too full, or becomes so.
    """
    target = Path(os.path.abspath(target))
    check_target(target, overwrite)
    parent = target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        free = shutil.disk_usage(parent).free
        if free < needed + _SPARE:
            raise ConfigError(
                f"--output {target}: about {format_size(needed)} will be written, {format_size(free)} are free there"
            )
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=parent))
        lock = _locked(partial)
    except OSError as error:
        raise ConfigError(f"--output {target}: {error.strerror or error}") from None
    try:
        yield partial
        _publish(partial, target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            said = f"{error.strerror} after a part of about {format_size(needed)}; nothing was left there"
            raise ConfigError(f"--output {target}: {said}") from None
        raise
    finally:
        if lock is not None:
            os.close(lock)


def check_target(target: Path, overwrite: bool, source: Path | None = None) -> None:
    """Refuse a place that is taken. What is replaced is lost, so it must be what this command wrote, and not the model.

    Args:
        source: the model's directory or file, which stays.

    Raises:
        ConfigError: says what to do.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"--output {target} is no directory; name one that is not there yet")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ConfigError(f"--output {target} is not empty; name another directory, or add --overwrite to replace it")
    if os.path.ismount(target):
        raise ConfigError(f"--output {target} is a mount point, and stays as it is; name a directory in it")
    if target.is_dir() and any(target.iterdir()):
        if source is not None and source.resolve().is_relative_to(target.resolve()):
            raise ConfigError(f"--output {target} holds the model that is read, {source}; name another directory")
        if not (target / _REPORT).is_file():
            raise ConfigError(
                f"--overwrite replaces what octavo quantize wrote, and {target} has no {_REPORT} of it; "
                "name another directory, or remove this one yourself"
            )


def _locked(directory: Path) -> int | None:
    """A descriptor that holds a directory's lock; None: another process has it, or there are no locks there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(target: Path) -> None:
    """Remove what killed runs for the same place left beside it."""
    prefix = f".{target.name}."
    try:
        beside = list(target.parent.iterdir())
    except OSError:  # may be written to, but not be listed
        return
    for path in beside:
        between = path.name.removeprefix(prefix).removesuffix(".partial")
        if path.name != f"{prefix}{between}.partial" or "." in between or path.is_symlink() or not path.is_dir():
            continue
        with suppress(OSError):
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


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
    except BaseException:
        if old is not None:
            (old / target.name).rename(target)
            old.rmdir()
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
