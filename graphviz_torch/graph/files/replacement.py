"""Atomic file writing: a file is written whole or not at all.

All files that this package writes for its users are written here: beside the old file, flushed to
disk, and exchanged in one step. A concurrent reader sees the old file or the new one. The new file
has the mode and owner of the old one, or those that `open` would give it. Other hard links to the
old file and extended attributes are not kept. Targets that cannot be replaced, such as a pipe, a
device or "/dev/stdout", are written as `open` writes.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_PROCESS = ("/proc/", "/dev/fd/")  # folders of a process's own open files


@contextmanager
def replacement(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file, which takes the place of `path` where the block ends.

    An exception in the block leaves the old file as it was, and nothing beside it. So does a kill
    of the process on Linux, where the file system has files without a name (ext4, xfs, btrfs,
    tmpfs): the new file has one for no longer than the exchange takes. Elsewhere a killed process
    leaves ".graphviz_torch-3f29c1d8.partial".

    A symbolic link stays, and the file that it names is replaced.

    Args:
        path: the file, in a folder in which files can be made.

    Raises:
        OSError: as `open(path, "wb")` does; also where no file can be made beside `path`, or the
            disk is full.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with replacement(Path(folder, "a.txt")) as file:
    ...         _ = file.write(b"whole")
    ...     Path(folder, "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    if not path.parent.exists():
        wrong = f"the folder {str(path.parent)!r} does not exist; make it first"
        raise FileNotFoundError(errno.ENOENT, wrong, str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file in it", str(path))
    try:
        there = os.stat(path)
    except FileNotFoundError:  # also where a link names a file that does not exist yet
        there = None
    target = _target(path) if there is None or stat.S_ISREG(there.st_mode) else None
    if target is None:
        with open(path, "wb") as file:
            yield file
        return
    if there is not None:
        os.close(os.open(path, os.O_WRONLY))  # a file that may not be written is not replaced
    partial = target.with_name(f".graphviz_torch-{os.urandom(4).hex()}.partial")
    try:
        with _file(partial, path) as file:
            yield file
            file.flush()
            if there is not None:
                _copy_mode(file, there)
            os.fsync(file.fileno())
            with _named(path):
                _link(file, partial)
        with _named(path):
            os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _target(path: Path) -> Path | None:
    """Return the file at the end of symbolic links; None for an open file such as "/dev/stdout"."""
    while True:
        if f"{os.path.realpath(path.parent)}/".startswith(_PROCESS):
            return None
        if not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)


def _file(partial: Path, path: Path) -> BinaryIO:
    """Return a new file in the folder of `partial`: without a name if the system allows, else named
    `partial`.
    """
    if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
        with suppress(OSError):  # such as a file system that has none
            return os.fdopen(os.open(partial.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    with _named(path):
        return open(partial, "xb")


def _link(file: BinaryIO, partial: Path) -> None:
    """Give an unnamed file this name."""
    number = file.fileno()
    if os.fstat(number).st_nlink == 0:
        # With a number of a folder, whose use the whole path rules out, the link is followed.
        os.link(f"/proc/self/fd/{number}", partial, src_dir_fd=number, follow_symlinks=True)


def _copy_mode(file: BinaryIO, there: os.stat_result) -> None:
    if sys.platform != "win32":
        ours = os.fstat(file.fileno())
        if (ours.st_uid, ours.st_gid) != (there.st_uid, there.st_gid):
            with suppress(OSError):  # a file of somebody else's becomes ours
                os.fchown(file.fileno(), there.st_uid, there.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Re-raise an error with the file name that the caller gave."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None
