"""Write files atomically: a file is written completely or not at all.

All files that this package writes for users go through `replacement`: it writes a temporary file in
the same folder, flushes it to disk, and renames it. A concurrent reader sees either the old file or
the new file. The new file has the mode and owner of the old file or, without an old file, those
that `open` would give it. Other hard links still point to the old content, and extended
attributes are lost. Targets that cannot be replaced, such as a pipe, a device or "/dev/stdout", are
opened and written directly.
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

_PROCESS = ("/proc/", "/dev/fd/")  # folders that list a process's open files


@contextmanager
def replacement(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` at the end of the block.

    If the block raises, the old file is unchanged, and no temporary file is left. The same is true
    if the process is killed, on Linux file systems that support unnamed files (ext4, xfs, btrfs,
    tmpfs). On other systems a killed process leaves a file such as
    ".graphviz_torch-3f29c1d8.partial". If `path` is a symbolic link, the link's target is replaced.

    Args:
        path: the file to replace. The process must be allowed to create files in its folder.

    Raises:
        OSError: as `open(path, "wb")` does; also if no file can be created in the folder, or the
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
        wrong = f"the folder {str(path.parent)!r} does not exist; create it first"
        raise FileNotFoundError(errno.ENOENT, wrong, str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file in it", str(path))
    try:
        there = os.stat(path)
    except FileNotFoundError:  # `path` does not exist, or is a link to a file that does not
        there = None
    target = _target(path) if there is None or stat.S_ISREG(there.st_mode) else None
    if target is None:
        with open(path, "wb") as file:
            yield file
        return
    if there is not None:
        os.close(os.open(path, os.O_WRONLY))  # raises if the old file is not writable
    partial = target.with_name(f".graphviz_torch-{os.urandom(4).hex()}.partial")
    try:
        with _file(partial, path) as file:
            yield file
            file.flush()
            if there is not None:
                _copy_mode(file, there)
            os.fsync(file.fileno())
            with _with_path(path):
                _link(file, partial)
        with _with_path(path):
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
    """Return a new file in the folder of `partial`.

    The file has no name if the file system supports this, else it is named `partial`.
    """
    if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
        with suppress(OSError):  # raised if the file system does not support unnamed files
            return os.fdopen(os.open(partial.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    with _with_path(path):
        return open(partial, "xb")


def _link(file: BinaryIO, partial: Path) -> None:
    """Give the file the name `partial` if it has no name yet."""
    number = file.fileno()
    if os.fstat(number).st_nlink == 0:
        # os.link follows the symbolic link in /proc only if `src_dir_fd` is given, although its
        # value is not used with an absolute path.
        os.link(f"/proc/self/fd/{number}", partial, src_dir_fd=number, follow_symlinks=True)


def _copy_mode(file: BinaryIO, there: os.stat_result) -> None:
    if sys.platform != "win32":
        ours = os.fstat(file.fileno())
        if (ours.st_uid, ours.st_gid) != (there.st_uid, there.st_gid):
            with suppress(OSError):  # only root may change a file's owner
                os.fchown(file.fileno(), there.st_uid, there.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))


@contextmanager
def _with_path(path: Path) -> Iterator[None]:
    """Re-raise an OSError with `path`, which the caller knows, as its file name."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None
