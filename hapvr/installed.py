"""Which parts of HAP-VR are installed: `hapvr[score]` compares videos, `hapvr[search]` also searches an index and serves it,
`hapvr[registry]` asks MLflow's servers, `hapvr[all]` does everything."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

FULL_HINT = "install the rest with `pip install '.[all]'` in a checkout"
SEARCH_HINT = "install what searches with `pip install '.[search]'` in a checkout"
SEARCH_PACKAGES = frozenset({"anyio", "fastapi", "lance", "pyarrow", "safetensors", "starlette", "uvicorn", "yaml"})
"""What `hapvr[search]` adds to `hapvr[score]`, by the names under which it is imported."""

SEARCH_VERBS = frozenset({"search", "duplicates", "serve", "index status", "pairs mark", "pairs unmark", "pairs list"})
"""Verbs of `hapvr` that need it."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    return find_spec(package) is not None


def hint(package: str, verb: str) -> str:
    """What installs a package that a verb lacks, e.g. `index status`."""
    return SEARCH_HINT if package in SEARCH_PACKAGES and verb in SEARCH_VERBS else FULL_HINT


def has_gpu() -> bool:
    """Whether this machine has a GPU that torch can use, judged without importing torch."""
    return is_installed("torch") and Path("/dev/nvidiactl").exists()
