"""Digests of files that were read before, so that they are not read again while they stay the same.

They are kept in the user's cache, one file per folder, since data roots may be read-only.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.files import cache_folder, require_regular, write_text

State = tuple[int, ...]
"""For a local file: size, nanoseconds of the last change of content and of inode, and the inode's
number; for another file: size and time."""

_STORED = TypeAdapter(dict[str, tuple[State, str]])
UNUSED_S = 180 * 86400.0
"""How long the digests of a folder are kept that nobody opens."""


class CheckedFiles:
    """SHA-256 of files below a root; a file is read again if its state has changed."""

    def __init__(self, root: DataRoot) -> None:
        self._root = root
        self._place = _place_of(root)
        self._known = _read(self._place)
        self._changed = False

    def sha256(self, name: str) -> str:
        """Hex SHA-256 of a file; "" where there is none. Raises DataError where it cannot be
        read."""
        before = _state(self._root, name)
        if before is None:
            return ""
        state, digest = self._known.get(name, ((), ""))
        if state == before:
            return digest
        digest = self._root.sha256(name)
        if _state(self._root, name) == before:  # nobody wrote to it while it was read
            self._known[name] = (before, digest)
            self._changed = True

        return digest

    def save(self) -> None:
        """Keep the digests for the next opening; a cache that cannot be written keeps none."""
        if self._place is None or not self._changed:
            return
        there = {name: known for name, known in self._known.items() if _state(self._root, name)}
        with suppress(OSError):
            write_text(self._place, json.dumps(there))
            _remove_unused(self._place.parent)

        self._changed = False


def _place_of(root: DataRoot) -> Path | None:
    """The file of a folder's digests; None where the user has no cache that only they can write."""
    with suppress(OSError, RuntimeError):
        name = hashlib.sha256(root.url_of("x").encode()).hexdigest()[:32]
        return cache_folder("checked") / f"{name}.json"
    return None


def _read(place: Path | None) -> dict[str, tuple[State, str]]:
    """The digests that were kept; none where they cannot be read."""
    if place is None:
        return {}
    with suppress(OSError, ValidationError):
        require_regular(place)
        return _STORED.validate_json(place.read_bytes())

    return {}


def _state(root: DataRoot, name: str) -> State | None:
    """The state of a file; None where there is no such file."""
    if root.local is None:
        if not root.exists(name):
            return None
        return root.num_bytes(name), *root.modified_ns(name)

    try:
        status = os.stat(root.path(name))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"storage: {root.path(name)} cannot be read: {error.strerror}") from error

    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _remove_unused(folder: Path) -> None:
    for path in folder.glob("*.json"):
        if time.time() - path.stat().st_mtime > UNUSED_S:
            path.unlink(missing_ok=True)
