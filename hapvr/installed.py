"""Which parts of HAP-VR are installed: `hapvr[score]` compares videos, `hapvr[all]` also trains, searches and serves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

FULL_REMEDY = "install the rest with `pip install 'hapvr[all]'`"


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    return find_spec(package) is not None


def has_gpu() -> bool:
    """Whether this machine has a GPU that torch can use, as far as that can be said without torch."""
    return is_installed("torch") and Path("/dev/nvidiactl").exists()
