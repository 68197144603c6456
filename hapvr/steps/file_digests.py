"""Digests of files that a run has computed, so that a later step of it reads no file again for
that."""

import time
from dataclasses import dataclass
from pathlib import Path

SETTLED_S = 3.0
"""A file that was written to more recently may be written to again without another time: some file
systems count in steps of two seconds."""


@dataclass(frozen=True)
class _FileState:
    """What differs once a file is written to, replaced or given another time."""

    device: int
    inode: int
    num_bytes: int
    modified_ns: int
    changed_ns: int
    """when bytes or attributes changed last; no program can set it"""

    @staticmethod
    def of(path: Path) -> "_FileState | None":
        """None for a file that is not there."""
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        return _FileState(
            device=status.st_dev,
            inode=status.st_ino,
            num_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns,
        )


class FileDigests:
    """The SHA-256 of files, each as long as its file is not touched."""

    def __init__(self) -> None:
        self._watched: dict[Path, _FileState] = {}
        self._known: dict[Path, tuple[_FileState, str]] = {}

    def watch(self, path: Path) -> None:
        """Say that the digest of a file is about to be computed."""
        state = _FileState.of(path)
        self._watched.pop(path, None)
        if state is not None and time.time() - state.changed_ns / 1e9 > SETTLED_S:
            self._watched[path] = state

    def record(self, path: Path, sha256: str) -> None:
        """Keep the digest of a file that was not touched since it is watched; "" where there is
        none."""
        state = self._watched.pop(path, None)
        if sha256 and state is not None and _FileState.of(path) == state:
            self._known[path] = (state, sha256)

    def of(self, path: Path) -> str:
        """The digest of a file, "" where it is not known for sure."""
        if path not in self._known:
            return ""
        state, sha256 = self._known[path]
        return sha256 if _FileState.of(path) == state else ""
