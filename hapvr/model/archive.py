"""Read tensors from files that others pickled, without running any code of the file."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from hapvr.errors import DataError
from hapvr.settings import first_line

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Archive:
    """content: containers, numbers, text and tensors; inert: names of classes and functions in the file, none of them run."""

    content: Any
    inert: tuple[str, ...]


class Inert:
    """Replaces a class or function of the file: takes any arguments, runs nothing, and keeps the state to report it."""

    def __new__(cls, *arguments: object, **options: object) -> Inert:
        return super().__new__(cls)

    def __init__(self, *arguments: object, **options: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.state = dict(state) if isinstance(state, dict) else {}


def read_archive(file: Path) -> Archive:
    """Read a .pth or .pt (zip or the older format), a .safetensors or a .npz file; tensors come on the CPU.

    Pickles are read with weights_only=True; `Inert` replaces every name that is not on torch's own list. Raises DataError for
    a file that is missing, no regular file, of another format, or names something that torch refuses even so.
    """
    if not file.is_file():  # a device may never end
        raise DataError(f"weights: {file} is not a file; wanted a .pth, .pt, .safetensors or .npz file")
    # A damaged or hostile file can make the readers raise any exception; all of them mean that the file is refused.
    try:
        if file.suffix == ".safetensors":
            return Archive(load_file(file), ())
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return Archive({name: torch.from_numpy(arrays[name]) for name in arrays.files}, ())
        names = _named_globals(file)
        with safe_globals([(type("Inert", (Inert,), {}), name) for name in names]):
            return Archive(torch.load(file, map_location="cpu", weights_only=True), tuple(names))
    except Exception as error:
        # torch's message advises to load without protection, so only its cause is passed on.
        reason = first_line(error.__context__ or error)
        raise DataError(
            f"weights: {file} cannot be read: {reason}; wanted a state dict saved by torch.save, a .safetensors or a .npz file"
        ) from error


def plain_values(content: object) -> dict[str, Any]:
    """Numbers, texts and lists of them in a mapping or an inert object, by name; all else is left out."""
    state = content.state if isinstance(content, Inert) else content
    if not isinstance(state, Mapping):
        return {}
    return {
        str(name): value
        for name, value in state.items()
        if isinstance(value, PLAIN) or (isinstance(value, list) and all(isinstance(item, PLAIN) for item in value))
    }


def _named_globals(file: Path) -> list[str]:
    if zipfile.is_zipfile(file):
        return sorted(get_unsafe_globals_in_checkpoint(file))
    # The older format has four pickles before the raw storages: three with format information, then the content.
    names: set[str] = set()
    with file.open("rb") as stream:
        for _ in range(4):
            for opcode, argument, _position in pickletools.genops(stream):
                if opcode.name == "GLOBAL" and isinstance(argument, str):
                    names.add(argument.replace(" ", "."))
    return sorted(name for name in names if not name.startswith(("torch.", "collections.OrderedDict")))
