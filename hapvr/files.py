"""Files that are written whole: a reader finds the old content or the new one, also after a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PART_SUFFIX = ".part"


@contextmanager
def write_atomic(path: Path, *, invalidates: Path | None = None) -> Iterator[Path]:
    """Yield the path `<path>.part`; what the block writes there becomes `path` when the block ends well.

    The content is flushed to the disk before the rename, and the folder after it. A block that fails leaves the old
    content in place and removes the part. The folder is made if it is missing.

    invalidates: a file that describes the old content; it is removed right before the new content appears.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART_SUFFIX)
    part.unlink(missing_ok=True)  # of a process that was killed; it may be a link to another file
    try:
        yield part
        _flush(part)
        if invalidates is not None:
            invalidates.unlink(missing_ok=True)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _flush(path.parent)


def _flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)
