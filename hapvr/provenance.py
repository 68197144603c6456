"""Where a piece of data came from: what determines its bytes, and the environment that made it."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hapvr import __version__
from hapvr.errors import DataError
from hapvr.files import adapter_of


@dataclass(frozen=True)
class Provenance:
    """What a shard or a file was made from.

    stage: name of the step. settings: everything that determines the content (sections of the
    configuration, weights identity, seed). inputs: name of an upstream artifact -> its digest.
    environment: versions, for people; they do not enter the fingerprint.
    """

    stage: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """16 hex digits; equal where the content must be equal."""
        text = json.dumps([self.stage, self.settings, self.inputs], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        values = asdict(self) | {"fingerprint": self.fingerprint}
        return json.dumps(values, sort_keys=True, default=str)

    @staticmethod
    def from_json(text: str) -> Provenance:
        """Inverse of `to_json`. Raises ValueError or RecursionError for anything else."""
        return adapter_of(Provenance).validate_python(json.loads(text))


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How settings differ, for people."""
    mine = flat(wanted)
    theirs = flat(found)
    lines = []
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            ours = mine.get(key, "(none)")
            lines.append(f"settings {key}: expected {ours}, found {theirs.get(key, '(none)')}")

    return lines


def require_settings(
    found: Mapping[str, Any], wanted: Mapping[str, Any], *, what: str, hint: str
) -> None:
    """Raise DataError, naming what differs, unless the settings are the wanted ones. what: is wrong
    then; hint: what to do."""
    different = differences(wanted, found)
    if different:
        raise DataError(f"{what}: {'; '.join(different)}. {hint}")


LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "openvino",
    "numpy",
    "pyarrow",
    "av",
    "lightning-fabric",
)
"""Those that touch the data."""


@cache
def environment() -> dict[str, str]:
    """Versions of this package, Python and LIBRARIES."""
    versions = {"hapvr": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)

    return versions


def git_revision() -> str:
    """The commit of this package's checkout, with `+dirty` when files differ; `unknown` outside of
    one."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty"]
    folder = Path(__file__).parent
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=20
        )
        return result.stdout.strip()

    return "unknown"


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; what JSON would store stands in for the value."""
    if not isinstance(value, Mapping):
        return {prefix: json.loads(json.dumps(value, default=str))}
    items: dict[str, Any] = {}
    for key, inner in value.items():
        items |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return items
