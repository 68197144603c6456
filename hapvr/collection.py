"""A collection of one's own videos, searchable before anything is trained: `hapvr index add`.

A collection is a data root with its configuration in it, COLLECTION_FILE. Every verb takes the root
in place of a configuration file, and Dagster's chain trains on the same data.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, count
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from hapvr.chain import CHAIN, shards_of
from hapvr.config_file import VARIABLE, load_config
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import collection_keys, shard_keys, source_of
from hapvr.data.shard_build import IndexRow
from hapvr.data.shards import STATUS_OK
from hapvr.errors import ArgumentError, DataError, is_installed
from hapvr.files import write_text
from hapvr.progress import Progress
from hapvr.search.duplicates import GroupMember
from hapvr.steps.baseline import ensure_baseline, local_baseline
from hapvr.steps.project import COLLECTION_FILE, Project
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import Searcher
from hapvr.steps.sources import inspected_videos
from hapvr.video.settings import PARTS
from hapvr.video.sources import scan_folder

FOLDERS_FILE = "folders.yaml"
"""Next to `collection.yaml`, which is the user's to edit and therefore written once."""


def add_folders(root: Path, folders: Sequence[Path]) -> Project:
    """The collection at `root` with these folders among its sources; a new one is made. Nothing is
    decoded yet. Raises ArgumentError for a path that is no folder, for one inside the data root or
    around it, for one that a configuration cannot name or that COLLECTION_FILE leaves out, and
    where `root` is a configuration file; ConfigError for damaged files; DataError for a folder
    without videos."""
    root = Path(
        os.path.realpath(root)
    )  # unlike Path.resolve, it takes links that point at each other in a circle
    if root.suffix in (".yaml", ".yml") or re.match(r".*/\w+:/", str(root)):
        raise ArgumentError(
            f"{root} is a configuration or an address; for a collection name a folder with --data"
        )
    added = [folder.resolve() for folder in folders]
    for folder in added:
        if not folder.is_dir():
            raise ArgumentError(f"{folder} is not a folder; name a folder of videos")
        if folder == root or root in folder.parents or folder in root.parents:
            raise ArgumentError(
                f"{folder} and the data root {root} lie in each other; choose another with --data"
            )
        scan_folder(folder, source="videos")
    for name in map(
        str, (root, *added)
    ):  # `${NAME}` would be replaced, and YAML folds some line ends
        if (
            VARIABLE.search(name)
            or yaml.safe_load(yaml.safe_dump(name, allow_unicode=True)) != name
        ):
            raise ArgumentError(
                f"{name} would be read from a configuration as another name; rename the folder"
            )
    root.mkdir(parents=True, exist_ok=True)
    file = root / COLLECTION_FILE
    with FileLock(root / f".{COLLECTION_FILE}.lock"):
        if not file.is_file():
            if any(root.glob("*/")):
                raise ArgumentError(
                    f"--data {root} is of another configuration; name that, or another folder"
                )
            if not added:
                raise ArgumentError("index add: wanted a folder of videos")
            made: dict[str, Any] = {
                "extends": FOLDERS_FILE,
                "name": "collection",
                "data_root": str(root),
            }
            for part in ("backbone", "teacher"):
                made[part] = {
                    "architecture": "tf_efficientnet_lite0",
                    "weights": {"source": "packaged"},
                }
            made |= {"shard_videos": 64, "whitening": {"dims": 256, "max_regions": 20_000}}
            _write(
                file, made, "A collection of `hapvr index add`; edit it as any other configuration."
            )
        stored = root / FOLDERS_FILE
        known = (
            load_config(stored, overrides={"name": "collection"}).sources if stored.exists() else ()
        )
        sources = [one.model_dump(mode="json", exclude_unset=True) for one in known]
        for folder in added:
            here = (
                s
                for s in sources
                if os.path.exists(s.get("path", "")) and os.path.samefile(s["path"], folder)
            )
            if (before := next(here, None) or _moved(root, sources, folder)) is not None:
                before["path"] = str(folder)
                continue
            base = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_")[:50] or "videos"
            names, taken = (
                chain([base], (f"{base}-{number}" for number in count(2))),
                {one["name"] for one in sources},
            )
            taken = {f"{one}{part}" for one in taken for part in PARTS}
            name = next(
                name for name in names if taken.isdisjoint(f"{name}{part}" for part in PARTS)
            )
            sources.append({"kind": "folder", "name": name, "path": str(folder)})
        if not sources:
            raise ArgumentError("index add: wanted a folder of videos")
        _write(
            stored,
            {"sources": sources},
            "The folders of the collection, written by `hapvr index add`.",
        )
    project = Project.open(root)
    if lost := set(map(str, added)).difference(
        str(getattr(one, "path", "")) for one in project.config.sources
    ):
        raise ArgumentError(
            f"{file} has sources of its own, so {min(lost)} is not read; name it there"
        )
    return project


def update_collection(
    project: Project, bar: Callable[[str], AbstractContextManager[Progress]]
) -> tuple[list[IndexRow], list[GroupMember] | None]:
    """Bring everything up to date with the folders, up to the groups of copies; what is there is
    left alone.

    Returns every video with its status and, where it cannot be used, the reason; and the copies,
    None where the model is not calibrated, so that nobody has looked for them.

    The model is the project's champion, at first the untrained baseline; where torch or MLflow is
    not installed, the baseline in its folder. bar: shows the progress of what it is given the name
    of."""

    def run(name: str, **options: Any) -> Any:
        made, step = None, CHAIN[name]
        for key in shards_of(project, step):
            with bar(f"{step.name} {key}".rstrip()) as progress:
                made = step.run(project, key, progress=progress, **options)
        return made

    run("video_manifest")
    run("videos", retry_failed=True, retry_gone=False)
    run("frames")
    keys = collection_keys(project.root, shard_keys(project.root))
    videos = [row for key in keys for row in project.shard("frames", key).rows()]
    if not any(row["status"] == STATUS_OK for row in videos):
        reasons = ", ".join(f"{row['video_id']} ({row['reason']})" for row in videos[:5])
        raise DataError(f"none of the {len(videos)} videos can be used: {reasons}")
    for name in ("whitening", "features"):
        run(name)
    with bar("edits for the calibration") as progress:
        if is_installed("torch") and is_installed("sqlalchemy"):
            ensure_baseline(project, progress=progress)
            model = search_model(project)
        else:
            model = search_model(project, str(local_baseline(project, progress=progress)))
    for name in ("frame_descriptors", "search_index"):
        run(name, model=model)
    searcher = Searcher.open(project)
    if searcher.evidence is None:
        return videos, None
    run("duplicate_pairs", searcher=searcher)
    return videos, run("duplicate_groups", searcher=searcher)


def _write(file: Path, data: Mapping[str, Any], comment: str) -> None:
    write_text(file, f"# {comment}\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}")


def _moved(root: Path, sources: Sequence[dict[str, str]], folder: Path) -> dict[str, str] | None:
    """The source whose folder is gone, from a place that is still there, and of which more than
    half of the videos are in this one."""
    data = DataRoot(root)
    for source in sources:
        before = Path(source.get("path", "."))  # a user may have added a source without one
        if os.path.exists(before) or not os.path.exists(before.parent):
            continue
        keys = [key for key in shard_keys(data) if source_of(key) == source["name"]]
        rows = [row for _, row in inspected_videos(data, keys) if row["status"] == STATUS_OK]
        sizes = {Path(row["path"]): row["num_bytes"] for row in rows}
        # a clip that was moved into another source's folder is not below this one
        files = [
            (folder / path.relative_to(before), sizes[path])
            for path in sizes
            if path.is_relative_to(before)
        ]
        if sum(file.is_file() and file.stat().st_size == size for file, size in files) * 2 > len(
            files
        ):
            return source
    return None
