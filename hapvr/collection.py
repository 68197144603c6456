"""A collection of one's own videos, searchable before anything is trained: `hapvr index add`.

A collection is a data root with its configuration in it, COLLECTION_FILE. Every verb takes the root
in place of a configuration file, and Dagster's chain trains on the same data.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.config_file import VARIABLE, load_config
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import collection_keys, read_manifest_shard, shard_keys, source_of
from hapvr.data.shard_build import IndexRow
from hapvr.data.shards import STATUS_FAILED, STATUS_OK
from hapvr.errors import FULL_HINT, ArgumentError, DataError, MissingPartError, is_installed
from hapvr.files import write_text
from hapvr.networks.copies import INSTALL_HINT, PACKAGE, is_package_usable
from hapvr.progress import FilesOfShards, Progress
from hapvr.reasons import said_of
from hapvr.scorer.shipped import FITTED_CROP_PX
from hapvr.search.current import serving_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.duplicates import GroupMember
from hapvr.steps.baseline import ensure_baseline, has_registry, local_baseline
from hapvr.steps.project import COLLECTION_FILE, Project
from hapvr.steps.search_model import SearchModel, search_model
from hapvr.steps.searcher import Searcher
from hapvr.steps.sources import inspected_videos
from hapvr.video.settings import PARTS
from hapvr.video.sources import scan_folder

COPY_NETWORK = "sscd_distilled"
FALLBACK_NETWORK = "tf_efficientnet_lite0"
"""What describes frames where the package of COPY_NETWORK is not installed."""
CAUSE = ("status", "reason", "message")
"""Columns of a row that say why a video cannot be used."""
SHOWS_NOTHING = {
    "status": STATUS_FAILED,
    "reason": "no_picture",
    "message": "each of its frames has one colour",
}
FOLDERS_FILE = "folders.yaml"
"""Next to `collection.yaml`, which is the user's to edit and therefore written once."""


def add_folders(
    root: Path,
    folders: Sequence[Path],
    exclude: Sequence[str] = (),
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Project:
    """The collection at `root` with these folders among its sources; a new one is made. Nothing is
    decoded yet.

    exclude: patterns of what is not read of these folders, or of all where none is named, in
        addition to earlier ones
    overrides: as `Project.open` takes them; they are not written

    Raises ArgumentError for a path that is not a folder, for one inside the data root or around it,
    for one that a configuration cannot name or that COLLECTION_FILE leaves out, and where `root` is
    a configuration file; ConfigError for damaged files; DataError for a folder without videos.
    """
    root = Path(os.path.realpath(root))  # unlike Path.resolve, it takes links that form a circle
    if root.suffix in (".yaml", ".yml") or re.match(r".*/\w+:/", str(root)):
        raise ArgumentError(
            f"{root} is a configuration or an address; for a collection name a folder with --data"
        )

    added = [folder.resolve() for folder in folders]
    for folder in added:
        _require_usable(folder, root, exclude)
    for place in (root, *added):
        _require_nameable(str(place))

    root.mkdir(parents=True, exist_ok=True)
    file = root / COLLECTION_FILE
    with FileLock(root / f".{COLLECTION_FILE}.lock"):
        if not file.is_file():
            if any(root.glob("*/")):
                raise ArgumentError(
                    f"--data {root} is of another configuration; name that, or another folder"
                )
            if not added:
                raise ArgumentError("index add: expected a folder of videos")
            comment = "A collection of `hapvr index add`; edit it as any other configuration."
            _write(file, _new_collection(root), comment)

        _add_sources(root, added, exclude)

    project = Project.open(root, overrides=overrides)
    read = {str(getattr(source, "path", "")) for source in project.config.sources}
    lost = sorted(str(folder) for folder in added if str(folder) not in read)
    if lost:
        raise ArgumentError(
            f"{file} has sources of its own, so {lost[0]} is not read; name it there"
        )

    return project


def _require_usable(folder: Path, root: Path, exclude: Sequence[str]) -> None:
    """Raise ArgumentError or DataError for a folder that cannot be a source of the collection."""
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is not a folder; name a folder of videos")
    if folder == root or root in folder.parents or folder in root.parents:
        raise ArgumentError(
            f"{folder} and the data root {root} contain each other; choose another with --data"
        )

    scan_folder(folder, source="videos", exclude=exclude, notices=False)


def _require_nameable(name: str) -> None:
    """Raise ArgumentError for a path that a configuration would change: `${NAME}` is replaced, and
    YAML folds some line ends."""
    unchanged = yaml.safe_load(yaml.safe_dump(name, allow_unicode=True)) == name
    if VARIABLE.search(name) or not unchanged:
        raise ArgumentError(
            f"{name} would be read from a configuration as another name; rename the folder"
        )


def _new_collection(root: Path) -> dict[str, Any]:
    """The configuration of a new collection: the network that was made for copies, where its
    package is installed."""
    packaged = {"source": "packaged"}
    settings: dict[str, Any] = {
        "extends": FOLDERS_FILE,
        "name": "collection",
        "data_root": str(root),
        "backbone": {"architecture": COPY_NETWORK, "weights": packaged, "crop_px": FITTED_CROP_PX},
        "teacher": {"architecture": FALLBACK_NETWORK, "weights": packaged},
        "shard_videos": 64,
    }
    if not is_package_usable():
        settings["backbone"] = {"architecture": FALLBACK_NETWORK, "weights": packaged}
        settings["whitening"] = {"dims": 256, "max_regions": 20_000}

    return settings


def network_notice(project: Project) -> str:
    """A sentence where the collection does without the network that was made for copies; else
    empty."""
    if project.config.backbone.architecture != FALLBACK_NETWORK:
        return ""
    return (
        f"frames are described by {FALLBACK_NETWORK}, which was not made for copies, so most "
        f"answers are unsure. The package {PACKAGE} has one that was: {INSTALL_HINT}; then make a "
        "new collection with another --data"
    )


def _add_sources(root: Path, added: Sequence[Path], exclude: Sequence[str]) -> None:
    """Add folders to FOLDERS_FILE, or give a source that was moved its new path. exclude: see
    `add_folders`."""
    stored = root / FOLDERS_FILE
    sources: list[dict[str, Any]] = []
    if stored.exists():
        stored_config = load_config(stored, overrides={"name": "collection"})
        sources = [
            source.model_dump(mode="json", exclude_unset=True) for source in stored_config.sources
        ]

    for folder in added:
        before = _same_folder(sources, folder) or _moved(root, sources, folder)
        if before is None:
            name = _free_name(folder, {source["name"] for source in sources})
            sources.append({"kind": "folder", "name": name, "path": str(folder)})
        else:
            before["path"] = str(folder)

    if not sources:
        raise ArgumentError("index add: expected a folder of videos")
    _exclude(sources, added, exclude)
    comment = "The folders of the collection, written by `hapvr index add`."
    _write(stored, {"sources": sources}, comment)


def _exclude(
    sources: Sequence[dict[str, Any]], folders: Sequence[Path], patterns: Sequence[str]
) -> None:
    """Add patterns to the sources of these folders, or to all folders where none is named."""
    named = {str(folder) for folder in folders}
    for source in sources:
        is_meant = not named or source.get("path") in named
        if patterns and is_meant and "path" in source and source["kind"] != "list":
            patterns_before = source.get("exclude", ())
            source["exclude"] = list(dict.fromkeys([*patterns_before, *patterns]))


def _same_folder(sources: Sequence[dict[str, str]], folder: Path) -> dict[str, str] | None:
    """The source that is this folder, by whatever path."""
    for source in sources:
        path = source.get("path", "")
        if os.path.exists(path) and os.path.samefile(path, folder):
            return source
    return None


def _free_name(folder: Path, names: set[str]) -> str:
    """A name for a source after its folder, none of whose parts is a part of another source."""
    taken = {f"{name}{part}" for name in names for part in PARTS}
    base = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_")[:50] or "videos"
    for number in count(1):
        name = base if number == 1 else f"{base}-{number}"
        if taken.isdisjoint(f"{name}{part}" for part in PARTS):
            return name

    raise AssertionError("there are more numbers than names")


Bar = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of what it is given the name of."""

WORDS = {
    "video_manifest": "looking for new files",
    "videos": "checking files",
    "frames": "reading videos",
    "whitening": "preparing the comparison",
    "features": "describing pictures",
    "frame_descriptors": "making pictures comparable",
    "search_index": "making videos searchable",
    "duplicate_pairs": "looking for copies",
    "duplicate_groups": "grouping copies",
}
"""What each step of `update_collection` is called where people wait for it."""


def update_collection(
    project: Project, bar: Bar
) -> tuple[list[IndexRow], list[GroupMember] | None]:
    """Bring everything up to date with the folders, up to the groups of copies; what is there is
    left alone.

    Returns every video with its status and, where it cannot be used, the reason; and the copies,
    None where the model is not calibrated, so that nobody has looked for them.

    The model is the champion of the collection's registry; where nothing was registered, the
    untrained baseline in its folder."""

    def run(name: str, **options: Any) -> Any:
        step = CHAIN[name]
        result = None
        with bar(WORDS[name]) as progress:
            shards = shards_of(project, step)
            overall = FilesOfShards(progress, _num_files(project, shards))
            for key in shards:
                result = step.run(project, key, progress=overall.of(key), **options)
                overall.finish(key)

        return result

    run("video_manifest")
    run("videos", retry_failed=True, retry_gone=False)
    run("frames", retry_changeable=True)
    _require_usable_videos(_rows_as_read(project))
    for name in ("whitening", "features"):
        run(name)
    with bar(WORDS["whitening"]) as progress:
        model = _model(project, progress)
    for name in ("frame_descriptors", "search_index"):
        run(name, model=model)
    videos = collection_rows(project)
    _require_usable_videos(videos)
    searcher = Searcher.open(project)
    if searcher.evidence is None:
        return videos, None
    run("duplicate_pairs", searcher=searcher)
    copies = run("duplicate_groups", searcher=searcher)
    return videos, copies


def collection_rows(project: Project) -> list[IndexRow]:
    """Every video of the collection with its status and, where it cannot be used, the reason: as it
    was read and, once there is an index, as that has it. Raises DataError where the files were not
    read yet."""
    rows = _rows_as_read(project)
    index = serving_index(project.root)
    if index is None:
        return rows

    left_out: dict[str, IndexRow] = {}
    for key in collection_keys(project.root, shard_keys(project.root)):
        left_out |= _left_out(project.root, index.digest, key)

    return [
        row | left_out.get(row["video_id"], {}) if row["status"] == STATUS_OK else row
        for row in rows
    ]


def _rows_as_read(project: Project) -> list[IndexRow]:
    """Every video with its status after its file was read. Raises as `collection_rows`."""
    keys = collection_keys(project.root, shard_keys(project.root))
    return [row for key in keys for row in project.shard("frames", key).rows()]


def _require_usable_videos(videos: Sequence[IndexRow]) -> None:
    """Raises DataError where no video can be used, with the first reasons."""
    if any(row["status"] == STATUS_OK for row in videos):
        return
    reasons = "; ".join(
        f"{row['video_id']}: {said_of(row['reason'] or '', row['message'])}" for row in videos[:5]
    )
    raise DataError(f"none of the {len(videos)} videos can be used. {reasons}")


def _left_out(root: DataRoot, digest: str, key: str) -> dict[str, IndexRow]:
    """Videos of a shard that the index of this network has not, and why."""
    described = descriptor_shard(root, digest, key).find()
    if described is None:
        return {}
    left_out = {}
    for row in described.rows():
        if row["status"] != STATUS_OK:
            left_out[row["video_id"]] = {name: row[name] for name in CAUSE}
        elif row["num_kept"] == 0:
            left_out[row["video_id"]] = SHOWS_NOTHING

    return left_out


def _num_files(project: Project, shards: Sequence[str]) -> dict[str, int]:
    """How many files each shard has; none for a step that is made once."""
    return {key: len(read_manifest_shard(project.root, key)) if key else 0 for key in shards}


def _model(project: Project, progress: Progress) -> SearchModel:
    """The champion of the registry where the collection has one, else the local baseline."""
    if not has_registry(project):
        return search_model(project, str(local_baseline(project, progress=progress)))
    if not is_installed("sqlalchemy"):
        raise MissingPartError(
            f"index add: the models of {project.root.url} are in a registry, which needs MLflow; "
            f"{FULL_HINT}"
        )

    ensure_baseline(project, progress=progress)
    return search_model(project)


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
        if _holds_most(folder, sizes, before):
            return source

    return None


def _holds_most(folder: Path, sizes: Mapping[Path, int], before: Path) -> bool:
    """Whether more than half of the files below `before`, of these sizes, are in a folder now. A
    clip that was moved into another source's folder is not below it."""
    moved = {
        path: folder / path.relative_to(before) for path in sizes if path.is_relative_to(before)
    }
    is_there = [
        place.is_file() and place.stat().st_size == sizes[path] for path, place in moved.items()
    ]
    return sum(is_there) * 2 > len(moved)
