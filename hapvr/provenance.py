"""Where a piece of data came from: what determines its bytes, and the environment that made it."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hapvr import __version__
from hapvr.files import require_regular

LIBRARIES = ("torch", "torchvision", "timm", "openvino", "numpy", "pyarrow", "av", "decord", "lightning-fabric")

TORCH_TYPES = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",
    "I32": "torch.int32",
    "I16": "torch.int16",
    "I8": "torch.int8",
    "U8": "torch.uint8",
    "BOOL": "torch.bool",
}
"""Types of safetensors as torch prints them."""


@dataclass(frozen=True)
class Provenance:
    """What a shard or a file was made from.

    stage: name of the step. settings: everything that determines the content (sections of the configuration, weights
    identity, seed). inputs: name of an upstream artifact -> its digest. environment: versions, for people; they do not
    enter the fingerprint.
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

    def differences(self, other: Provenance) -> list[str]:
        """How the settings differ, `self` being what is wanted, for people."""
        mine, theirs = _flat(self.settings), _flat(other.settings)
        return [
            f"settings {key}: wanted {mine.get(key, '(none)')}, found {theirs.get(key, '(none)')}"
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
        ]

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"fingerprint": self.fingerprint}, sort_keys=True, default=str)

    @staticmethod
    def from_json(text: str) -> Provenance:
        """Inverse of `to_json`. Raises ValueError or RecursionError for anything else."""
        return TypeAdapter(Provenance).validate_python(json.loads(text))


def environment() -> dict[str, str]:
    """Versions of this package, Python and the libraries that touch the data."""
    versions = {"hapvr": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    return versions


def git_revision(folder: Path | None = None) -> str:
    """The commit of the checkout at `folder` (default: of this package), with `+dirty` when files differ; `unknown` outside of one."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty"]
    where = folder or Path(__file__).resolve().parent
    try:
        return subprocess.run(
            describe, cwd=where, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a local file. Raises OSError where it cannot be read, and for a device or pipe, which may never end."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensors_sha256(tensors: Iterable[tuple[str, str, Sequence[int], Any]]) -> str:
    """Hex SHA-256 over tensors in name order. tensors: name, type as torch prints it, shape, and bytes of each."""
    digest = hashlib.sha256()
    for name, kind, shape, data in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(f"{name}:{kind}:{tuple(shape)};".encode())
        digest.update(data)
    return digest.hexdigest()


def safetensors_sha256(data: bytes) -> str:
    """`tensors_sha256` of the content of a safetensors file, without torch.

    Raises SafetensorError for a damaged file.
    """
    from safetensors import deserialize

    return tensors_sha256(
        (name, TORCH_TYPES[tensor["dtype"]], tensor["shape"], tensor["data"])
        for name, tensor in deserialize(data)  # type: ignore[no-untyped-call]
    )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; what JSON would store stands in for the value."""
    if isinstance(value, Mapping):
        items: dict[str, Any] = {}
        for key, inner in value.items():
            items |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        return items
    return {prefix: json.loads(json.dumps(value, default=str))}
