"""Converted networks and how fast they were, kept below the user's cache folder.

<cache>/networks/<digest>/   network.xml and network.bin, unless the network cannot be converted; measured.json
<cache>/networks/<digest>.lock

The digest is over all that determines a conversion, so that other weights or another version have a folder of their own.
A folder appears whole, by one rename; a damaged one is made again. It may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from hapvr.errors import DamagedError
from hapvr.features.openvino_network import OpenVINOUnavailable
from hapvr.features.settings import ExecutorChoice, Precision
from hapvr.files import read_json_as
from hapvr.provenance import file_sha256

CACHE_VARIABLE = "HAPVR_CACHE"
CONVERSION_FILE = "network.xml"
MEASURED_FILE = "measured.json"
REMEDY = "it is made again"


@dataclass(frozen=True)
class Run:
    """One way to run a network on a probe batch. agreement: lowest cosine of its vectors to those of torch in float32."""

    executor: ExecutorChoice
    precision: Precision
    agreement: float
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What a probe batch showed. unavailable: why OpenVINO cannot run it, if it cannot in any precision."""

    runs: tuple[Run, ...]
    unavailable: str = ""


@dataclass(frozen=True)
class _Kept:
    """MEASURED_FILE. files: SHA-256 by name."""

    files: dict[str, str]
    measured: Measured


@dataclass(frozen=True)
class Conversion:
    """The place of one conversion."""

    folder: Path

    @property
    def exists(self) -> bool:
        return (self.folder / MEASURED_FILE).is_file()

    def measured(self, make: Callable[[Path], Measured]) -> Measured:
        """What was measured; while there is no good conversion, `make` fills an empty folder. Other processes wait for it.

        Raises OpenVINOUnavailable where the cache cannot be written.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder.with_suffix(".lock")):
                if self.exists:
                    try:
                        return self._read()
                    except DamagedError as error:
                        warnings.warn(str(error), stacklevel=4)
                return self._make(make)
        except OSError as error:
            raise OpenVINOUnavailable(
                f"a converted network cannot be kept below {self.folder.parent} ({error}); set {CACHE_VARIABLE} to a "
                f"folder that can be written"
            ) from error

    def _make(self, make: Callable[[Path], Measured]) -> Measured:
        part = self.folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir()
        try:
            measured = make(part)
            files = {path.name: file_sha256(path) for path in sorted(part.iterdir())}
            (part / MEASURED_FILE).write_text(json.dumps({"files": files, "measured": asdict(measured)}))
            shutil.rmtree(self.folder, ignore_errors=True)
            part.replace(self.folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return measured

    def _read(self) -> Measured:
        """Raises DamagedError if a file is not what was written."""
        path = self.folder / MEASURED_FILE
        found = read_json_as(path, _Kept, remedy=REMEDY)
        for name, digest in found.files.items():
            file = self.folder / name
            if not file.is_file() or file_sha256(file) != digest:
                raise DamagedError(f"{file} is missing or damaged; {REMEDY}")
        return found.measured


def conversion_of(content: Mapping[str, Any]) -> Conversion:
    """The place of the conversion that `content` determines."""
    text = json.dumps(content, sort_keys=True, default=str)
    return Conversion(cache_folder() / "networks" / hashlib.sha256(text.encode()).hexdigest()[:32])


def cache_folder() -> Path:
    """The folder that HAPVR_CACHE names, else `hapvr` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hapvr"
