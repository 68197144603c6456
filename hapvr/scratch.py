"""Folders for files that nobody keeps, which no crash leaves behind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = "in-use.lock"
NEW = "new-"
"""Before the name of a folder that is not locked yet."""


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A folder for temporary files, which is removed at the end; those of processes that were
    killed are removed first. A lock in the folder says that its process lives; the system releases
    it however the process ends.

    prefix: of the folder's name
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_abandoned(folder)

    new = Path(tempfile.mkdtemp(prefix=f"{NEW}{prefix}"))
    own = new.with_name(new.name.removeprefix(NEW))
    with FileLock(new / LOCK):
        new.rename(own)  # others take it for abandoned until it is locked
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder that is ours and that no process holds any more."""
    with suppress(Timeout, OSError):
        is_ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        if is_ours and (folder / LOCK).is_file():
            with FileLock(folder / LOCK, timeout=0):
                shutil.rmtree(folder)
