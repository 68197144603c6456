"""Tensors in files that others made, read as data: no code in such a file is run."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from hapvr.errors import DataError
from hapvr.files import file_problem, require_regular
from hapvr.settings import first_line

MAX_UNPACKED_BYTES = 1 << 30

VVS_PARTS = {"tsm_tgm_model": "swg/", "ddm_model": "ddm/"}
"""The two networks of a file of VVS, and the prefixes of their tensors here."""

STATE_KEYS = ("model", "state_dict", "teacher")
"""The keys under which releases store their state dict."""


class Inert:
    """Replaces a class or function that the file names: takes any arguments, runs nothing, and
    keeps the state."""

    state: Mapping[str, Any] = {}

    def __new__(cls, *arguments: object, **options: object) -> Inert:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        self.state = dict(state) if isinstance(state, dict) else {}


def read_archive(file: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The network's tensors in a .pth, .pt, .safetensors or .npz file, on the CPU, by published
    name; and the settings that the file holds. No class or function that it names is run.

    Pickles are read with weights_only=True; `Inert` replaces every name that is not on torch's own
    list.

    Raises:
        DataError: a file that is missing, no regular file, of another format, or names something
            that torch refuses even so."""
    content: Any
    # A damaged or hostile file can make the readers raise any exception; all of them mean that the
    # file is refused.
    try:
        require_regular(file)  # a device may never end
        if zipfile.is_zipfile(file):
            _require_sound_zip(file)
        content = _read_content(file)
    except Exception as error:
        # torch's message advises to load without protection, so only its cause is passed on.
        cause = error.__context__ or error
        reason = file_problem(cause) if isinstance(cause, OSError) else first_line(cause)
        raise DataError(
            f"weights: {file} cannot be read: {reason}; expected a state dict saved by "
            "torch.save, a .safetensors or a .npz file"
        ) from error

    if not isinstance(content, Mapping):
        content = {}
    for parts in _candidate_states(content):
        tensors = _plain_tensors(parts)
        if tensors:
            return tensors, _recorded_settings(content)

    raise DataError(
        f"weights: {file} holds no state dict; expected one, or one under the key 'model' or "
        "'state_dict'"
    )


def _require_sound_zip(file: Path) -> None:
    """Raise ValueError for a zip that unpacks to too many bytes, or whose checksums do not fit."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > max(MAX_UNPACKED_BYTES, 2 * file.stat().st_size):  # torch does not compress
            raise ValueError(f"it unpacks to {unpacked} bytes")
        if unpacked:
            damaged = archive.testzip()  # torch compares no checksums
            if damaged:
                raise ValueError(f"{damaged} in it is damaged")


def _read_content(file: Path) -> Any:
    """The content of a file in any of the three formats."""
    if file.suffix == ".safetensors":
        return load_file(file)
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}

    names = []
    if zipfile.is_zipfile(file):
        names = sorted(get_unsafe_globals_in_checkpoint(file))
    with safe_globals([(type("Inert", (Inert,), {}), name) for name in names]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _candidate_states(content: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """Where the network's tensors may be, the likeliest places first: state dicts, each by the
    prefix that its names get."""
    yield {prefix: content.get(part) for part, prefix in VVS_PARTS.items()}
    for key in STATE_KEYS:
        yield {"": content.get(key)}
    yield {"": content}


def _plain_tensors(states: Mapping[str, Any]) -> dict[str, Tensor]:
    """The usable tensors of state dicts, which have their prefix before their names."""
    tensors = {}
    for prefix, state in states.items():
        if not isinstance(state, Mapping):
            continue
        for name, value in state.items():
            if isinstance(value, Tensor) and _is_plain(value):
                # DataParallel and DDP put a prefix before every name.
                tensors[f"{prefix}{str(name).removeprefix('module.')}"] = value.detach()

    return tensors


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor stores each of its values, on the CPU, in a numeric type."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    if tensor.dtype == torch.float4_e2m1fn_x2 or tensor.is_quantized:
        return False
    is_expanded = tensor.nbytes > tensor.untyped_storage().nbytes()
    return not is_expanded


def _recorded_settings(content: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The arguments of the training that a release stored beside its weights."""
    settings = content.get("args")
    if isinstance(settings, Inert):
        settings = settings.state
    return settings if isinstance(settings, Mapping) else {}
