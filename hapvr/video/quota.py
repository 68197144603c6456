"""How much downloads may take on disk."""

from __future__ import annotations

import threading
from pathlib import Path


class DiskQuota:
    """What all files below a folder may take together, shared by threads that download; without a limit all fits."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        if limit_bytes is not None:
            for path in folder.rglob("*"):
                if path.is_file():
                    self._sizes[_stem(path)] = self._sizes.get(_stem(path), 0) + path.stat().st_size
        self._total = sum(self._sizes.values())

    def take(self, stem: str, num_bytes: int) -> bool:
        """Count a file (0: it is gone) at its present size; False if there is no room for it."""
        with self._lock:
            total = self._total - self._sizes.get(stem, 0) + num_bytes
            fits = self.limit_bytes is None or total <= self.limit_bytes
            if fits:
                self._sizes[stem], self._total = num_bytes, total
            return fits


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]
