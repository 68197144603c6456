"""Small projects for the tests of the data stages."""

import contextlib
import hashlib
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hapvr.data.filesystem import LOCKS_FOLDER
from hapvr.data.manifest import IDENTITY
from hapvr.steps.project import Project
from tests.conftest import small_settings, write_clip, write_settings
from tests.made_data import make_data


def folder_settings(videos: Path, data_root: Path | str, **changes: Any) -> dict[str, Any]:
    """The whole chain on one folder of training videos, as small as it goes."""
    settings = small_settings(videos, Path("unused")) | {
        "data_root": str(data_root),
        "shard_videos": 4,
    }
    settings["sources"] = [{"kind": "folder", "name": "in", "path": str(videos)}]
    settings["whitening"] = {"dims": 8, "max_regions": 60}
    return settings | changes


def open_project(folder: Path, settings: Mapping[str, Any]) -> Project:
    """A project of these settings, written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return Project.open(write_settings(folder / "config.yaml", dict(settings)), folder=folder)


def finished_project(folder: Path) -> None:
    """Two clips in `folder`, and all data stages finished."""
    for number in range(2):
        write_clip(folder / "in" / f"{number}.mp4", seed=number, seconds=2)
    make_data(open_project(folder, folder_settings(folder / "in", folder / "data")))


def digests(root: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below a data root, but for locks and the root's id,
    which is a random number."""
    files = [path for path in root.rglob("*") if path.is_file() and LOCKS_FOLDER not in path.parts]
    sums = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    return {name: digest for name, digest in sums.items() if name != IDENTITY}


@contextlib.contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """No file of this process and of those that it starts may grow beyond so many bytes, as on a
    disk that is full. They write no bytecode, which would be cut and fail later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
