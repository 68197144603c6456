"""Step 1: the sources of a configuration, and which videos there are, in which shard (asset
`video_manifest`)."""

import hashlib
import json
import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape, iglob
from itertools import count, filterfalse
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from hapvr.config import digest
from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import (
    VIDEOS_STAGE,
    ManifestRow,
    read_manifest_shard,
    shard_keys,
    source_of,
)
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DataError
from hapvr.files import digest_of, file_sha256
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project
from hapvr.tables import TABLE_ERRORS, read_user_table
from hapvr.video.settings import PARTS, FilesSource, NamedSource, OwnVideosSource, Source
from hapvr.video.sources import (
    ManifestEntry,
    entries_of_files,
    is_remote,
    list_entry,
    path_of_text,
    read_list,
    scan_folder,
    text_of_path,
)

CORPUS_FOLDER = "corpus"
LOCAL: tuple[Literal["folder"], Literal["own_videos"]] = ("folder", "own_videos")
"""Kinds of sources whose files are the user's."""
TICK_PLACE = "watch/tick.json"
"""When the automation looked at the sources last."""


def resolve_sources(
    project: Project, *, progress: Progress = no_progress
) -> Iterator[tuple[str, str, tuple[ManifestEntry, ...]]]:
    """Scan, read or generate all sources: name, split and videos of each; generated ones that are
    already there are left alone. Raises DataError, ConfigError."""
    for source in project.config.sources:
        found = None if isinstance(source, NamedSource) else _scan(project, source, notices=True)
        if found is None and source.kind in LOCAL:
            said = (
                "none of its files is there; its videos stay as they are, and new ones "
                "are left out, until their drive is back"
            )
            hint = f"If they are gone for good: `hapvr forget --offline {source.name}`"
            warnings.warn(f"source {source.name}: {said}. {hint}")
        elif isinstance(source, FilesSource):
            yield source.name, source.split, found or ()
        elif source.kind == "benchmark":
            from hapvr.benchmark.definition import (
                load_definition,
            )  # what folders alone need none of

            video_ids = load_definition(source.name).video_ids
            yield (
                source.name,
                "test",
                tuple(list_entry(one, None, source=source.name) for one in video_ids),
            )
        elif found != ():
            yield from _generated(project, source, progress)


def snapshot_sources(project: Project, *, settle_s: float) -> tuple[str, list[Path]]:
    """Look at the sources without decoding anything: a digest that changes when a video or row is
    added, removed or renamed, and the files that may still be being copied, as they were written to
    in the last settle_s seconds. A file whose time lies further than that in the future, as the
    clock was set back, is none. Raises DataError for a source that never had a video."""
    state: dict[str, object] = {}
    unsettled: list[Path] = []
    now = time.time()
    for source in project.config.sources:
        if source.kind in LOCAL:
            found = _scan(project, source)
            state[source.name] = "away" if found is None else [entry.video_id for entry in found]
            for path in (path_of_text(entry.uri) for entry in found or ()):
                with suppress(OSError):  # it may be gone by now
                    unsettled += [path] if abs(now - path.stat().st_mtime) < settle_s else []
        elif source.kind == "list":
            state[source.name] = [
                (entry.video_id, entry.uri) for entry in _scan(project, source) or ()
            ]
        else:
            state[source.name] = digest(source)
    return digest_of(state), unsettled


def _generated(
    project: Project, source: NamedSource | OwnVideosSource, progress: Progress
) -> Iterator[tuple[str, str, tuple[ManifestEntry, ...]]]:
    from hapvr.demo.clips_benchmark import split_user_videos
    from hapvr.demo.corpus import make_demo_corpus

    folder, train = project.root.local_path(CORPUS_FOLDER), f"{source.name}-train"
    if isinstance(source, NamedSource):
        make_demo_corpus(folder, name=source.name, progress=progress)
        yield train, manifest.TRAIN, scan_folder(folder / train / "videos", source=train)
    else:
        videos, held_out = project.path(source.path), f"{source.name}-held-out"
        trained, held = (
            {row.uri for row in _known(project.root, name)} for name in (train, held_out)
        )
        entries = _not_forgotten(
            project.root,
            scan_folder(videos, source=source.name, exclude=source.exclude, notices=False),
        )
        used = frozenset(path_of_text(entry.uri) for entry in entries)
        scenes = source_scenes(project, source)
        train_files, held_files = split_user_videos(
            videos, folder, source, files=used, scenes=scenes, trained=trained, progress=progress
        )
        rest = ((train, manifest.TRAIN, train_files, held), (held_out, "test", held_files, trained))
        for name, split, files, other in rest:
            mine = [file for file in files if text_of_path(file) not in other]
            yield name, split, entries_of_files(mine, root=videos, source=name)
    for part in ("validation", "test"):
        name, split = (
            f"{source.name}-{part}",
            part if isinstance(source, NamedSource) else manifest.GENERATED,
        )
        yield name, split, scan_folder(folder / name / "videos", source=name)


def _known(root: DataRoot, *sources: str) -> list[ManifestRow]:
    """The videos that the manifest has of some sources; of all where none is named."""
    keys = (key for key in shard_keys(root) if not sources or source_of(key) in sources)
    return [row for key in keys for row in read_manifest_shard(root, key)]


def _scan(
    project: Project, source: FilesSource | OwnVideosSource, *, notices: bool = False
) -> tuple[ManifestEntry, ...] | None:
    """The videos of a source; None where it is away, () with a warning where it cannot be read.
    notices: also name what is left out, which once in a run is enough. DataError where it never had
    any."""
    if source.kind in LOCAL and is_away(project, source.name):
        return None
    try:
        path = project.path(source.path)
        if source.kind == "list":
            return read_list(path, source=source.name)
        return scan_folder(path, source=source.name, exclude=source.exclude, notices=notices)
    except DataError as error:
        if {f"{source.name}{part}" for part in PARTS}.isdisjoint(
            map(source_of, shard_keys(project.root))
        ):
            raise
        if not _is_set_aside(project, source.name):
            warnings.warn(f"{error}. Correct that, or take it out of the sources")
        return ()


def _scan_quietly(
    project: Project, source: FilesSource | OwnVideosSource
) -> tuple[ManifestEntry, ...]:
    """The videos of a folder. Raises DataError as `scan_folder` does."""
    path = project.path(source.path)
    return scan_folder(path, source=source.name, exclude=source.exclude, notices=False)


def _is_set_aside(project: Project, name: str) -> bool:
    """Whether plans have moved all files of a source that are not there."""
    planned = manifest.planned_moves(project.root)
    rows = _known(project.root, *(f"{name}{part}" for part in PARTS))
    gone = [row.uri for row in rows if not os.path.exists(path_of_text(row.uri))]
    return bool(gone) and all(manifest.name_digest(uri) in planned for uri in gone)


def _folders(project: Project) -> dict[str, Path]:
    """Name of a source in the manifest -> its folder, as the manifest has paths."""
    local = [source for source in project.config.sources if source.kind in LOCAL]
    return {
        f"{one.name}{part}": path_of_text(text_of_path(project.path(one.path)))
        for one in local
        for part in PARTS
    }


def is_away(project: Project, name: str) -> bool:
    """Whether a source had files, and all are gone but those that moved elsewhere or that a plan
    has set aside. name: of the source, or as the configuration has it."""
    folder, names = _folders(project).get(name), [f"{name}{part}" for part in PARTS]
    planned = manifest.planned_moves(project.root)
    keys = [key for key in shard_keys(project.root) if source_of(key) in names]
    rows = (row for key in keys for row in read_manifest_shard(project.root, key))
    uris = (row.uri for row in rows if manifest.name_digest(row.uri) not in planned)
    found = (
        (path, os.path.exists(path)) for path in map(path_of_text, filterfalse(is_remote, uris))
    )
    there = (exists for path, exists in found if path.is_relative_to(folder or path) or not exists)
    if folder is not None and not any(iglob(f"{escape(str(folder))}/*")):
        return any(True for _ in there)  # of a whole drive this is asked for each shard
    return next(there, None) is False and not any(there)


def inspected_videos(root: DataRoot, shards: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Shard and row of each video of some shards that the step `videos` has looked at, failed ones
    too."""
    for key in shards:
        index = Shard(root, VIDEOS_STAGE, key).find()
        yield from ((key, row) for row in (index.rows() if index is not None else ()))


def lost_files(project: Project) -> dict[str, tuple[int, int]]:
    """Source -> of how many videos that could be read the file is not there now, and how many there
    are."""
    found: dict[str, tuple[int, int]] = {}
    for key, row in inspected_videos(project.root, shard_keys(project.root)):
        if row["status"] == STATUS_OK:
            lost, usable = found.get(source_of(key), (0, 0))
            found[source_of(key)] = (
                lost + (not os.path.exists(path_of_text(row["path"]))),
                usable + 1,
            )
    return found


def changed_shards(project: Project) -> dict[str, str]:
    """Shards with a file that is not the one that the step `videos` read; each with a digest of
    what its files are, and of the hour: what failed is tried again then. A file that is gone is not
    one that changed."""
    found, hour = {}, time.time() // 3600
    for key in shard_keys(project.root):
        index = Shard(project.root, VIDEOS_STAGE, key).find()
        inputs = {} if index is None else index.provenance.inputs
        states = {row.video_id: file_state(row) for row in read_manifest_shard(project.root, key)}
        if any(
            one in inputs and inputs[one] != now and not now.endswith(" missing")
            for one, now in states.items()
        ):
            found[key] = digest_of([states, hour])
    return found


def source_scenes(project: Project, source: Source) -> dict[str, str]:
    """What clips of a source show, by path below its folder, from a CSV file with the columns
    `file` and `scene`; clips that nobody named are left out. Raises DataError naming the file."""
    import polars as pl

    if not isinstance(source, OwnVideosSource) or source.scenes is None:
        return {}
    path = project.path(source.scenes)
    try:
        table = read_user_table(path).select("file", "scene")
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"own videos: {path} cannot be read as scenes ({str(error).splitlines()[0]}); "
            "wanted a CSV file with the columns "
            f"file (path below the folder of clips) and scene"
        ) from error
    return dict(table.drop_nulls().iter_rows())


@dataclass(frozen=True)
class ManifestResult:
    """shards: all keys there are, old and new; offer: digest of what the sources held just before,
    see `snapshot_sources`."""

    shards: tuple[str, ...]
    new_shards: tuple[str, ...]
    digest: str
    offer: str

    @property
    def done(self) -> bool:
        return bool(self.new_shards)


def _follow_moves(project: Project) -> None:
    """A known video whose file is gone, and whose bytes are in a file that is new, keeps its id:
    its path follows. So does one whose source is at another place. A file of a drive that is away
    did not move, whatever is elsewhere."""
    root = project.root
    known = {row.uri: row for row in _known(root)}
    scanned, folders = list[ManifestEntry](), _folders(project)
    for source in project.config.sources:
        with suppress(DataError):  # missing or empty: `resolve_sources` says so
            if source.kind in LOCAL:
                scanned += _scan_quietly(project, source)
    listed = {entry.uri for entry in scanned}
    scanned = [entry for entry in _not_forgotten(root, scanned) if entry.uri not in known]
    respelt = {entry.uri.casefold() for entry in scanned}  # the same file where case does not count
    local = ((row, path_of_text(row.uri)) for row in known.values() if not is_remote(row.uri))
    gone = {
        row.video_id: row
        for row, path in local
        if not (os.path.exists(path) and path.is_relative_to(folders.get(row.source, path)))
        or (row.uri not in listed and row.uri.casefold() in respelt)
    }
    shards = {row.shard for row in gone.values()} if scanned else ()
    contents = {row["video_id"]: row for _, row in inspected_videos(root, shards)}
    away = {source: is_away(project, source) for source in {row.source for row in gone.values()}}
    by_size = defaultdict[int, list[str]](list)
    for one in sorted(gone.keys() & contents.keys()):
        by_size[contents[one]["num_bytes"]].append(one)
    # a file takes its id before a copy of it does
    for entry in sorted(scanned, key=lambda entry: gone.keys().isdisjoint(_ids(entry))):
        path, base = path_of_text(entry.uri), entry.video_id.partition("/")[0]
        size = os.path.getsize(path) if os.path.isfile(path) else -1
        sources = [f"{base}{part}" for part in PARTS]
        by_name = [one for one in _ids(entry) if one in gone]
        alike = [one for one in by_size.get(size, ()) if one in gone]
        digest = "-"
        with suppress(OSError):  # one that cannot be read is a row of the step `videos`
            digest = file_sha256(path) if alike else "-"
        here = [one for one in alike if gone[one].source in sources or not away[gone[one].source]]
        same = [one for one in here if contents[one]["sha256"] == digest]
        for one in (*(set(same) & set(by_name)), *same, *by_name)[:1]:
            row = gone.pop(one)
            moved = replace(row, uri=entry.uri)
            rows = read_manifest_shard(root, row.shard)
            manifest.write_manifest_shard(
                root, row.shard, [moved if other == row else other for other in rows]
            )
            if one in same:
                _place_again(project.shard(VIDEOS_STAGE, row.shard), moved)


def _place_again(shard: Shard, moved: ManifestRow) -> None:
    """Write down where a file is now, as the step `videos` would that reads it again."""
    with shard.lock():
        found = shard.read()
        rows = [
            row | {"path": moved.uri} if row["video_id"] == moved.video_id else row
            for row in found.rows()
        ]
        inputs = {**found.provenance.inputs, moved.video_id: file_state(moved)}
        shard.write_index(
            rows, provenance=replace(found.provenance, inputs=inputs), fields=manifest.VIDEO_COLUMNS
        )


def file_state(row: ManifestRow) -> str:
    """What tells whether a local file may have changed; remote ones count as unchanged once
    fetched."""
    if is_remote(row.uri):
        return row.uri
    try:
        status = path_of_text(row.uri).stat()
    except OSError:
        return f"{row.uri} missing"
    return f"{row.uri} {status.st_size} {status.st_mtime_ns}"


def _ids(entry: ManifestEntry) -> list[str]:
    """What the manifest may call a file that has no id yet."""
    source, _, name = entry.video_id.partition("/")
    return [f"{source}{part}/{name}" for part in PARTS]


def _not_forgotten(root: DataRoot, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    """Those of some entries whose name and place were not forgotten."""
    forgotten, kept = manifest.forgotten_digests(root), []
    for entry in entries:
        if forgotten.isdisjoint(map(manifest.name_digest, (entry.uri, *_ids(entry)))):
            kept.append(entry)
    return kept


def make_manifest(project: Project, *, progress: Progress = no_progress) -> ManifestResult:
    """Append the videos that the sources offer and the manifest lacks, as new shards. Of rows once
    written only the path changes, when a file has moved. One process at a time does this; another
    waits. Raises as `manifest.require_shards` does."""
    # This look comes before the manifest is made, so a file that arrives meanwhile is noticed next
    # time.
    root, (offer, _) = project.root, snapshot_sources(project, settle_s=0)
    with root.lock(manifest.MANIFEST_STAGE):
        manifest.require_shards(root, root.list_folders(VIDEOS_STAGE))
        if not manifest.root_id(root):
            root.write_json(manifest.IDENTITY, {"id": uuid4().hex})
        _follow_moves(project)
        uris = {row.video_id: row.uri for row in _known(root)}
        known_ids, known_uris = set(uris), set(uris.values())
        # one above the highest: shards below may be lost, and what others wrote is never written
        # over
        next_number = Counter[str]()
        for key in shard_keys(root):
            next_number[source_of(key)] = max(
                next_number[source_of(key)], int(key.rpartition("-")[2]) + 1
            )
        new_shards = []
        for source, split, offered in resolve_sources(project, progress=progress):
            # the id of a file that moved within the source is not free for another that took its
            # place
            moved = known_uris & {entry.uri for entry in offered}
            entries, remembered = list[ManifestEntry](), _not_forgotten(root, offered)
            if left_out := len(offered) - len(remembered):
                said = (
                    f"source {source}: {left_out} files are left out as their names were "
                    "forgotten; rename new ones"
                )
                warnings.warn(said)
            remote = (one for one in remembered if is_remote(one.uri) and one.uri not in known_uris)
            if kept := [one.video_id for one in remote if one.video_id in uris]:
                said = (
                    f"{len(kept)} ids have other addresses now, e.g. {kept[0]}, and keep "
                    "the old ones; give them new ids"
                )
                warnings.warn(f"source {source}: {said}")
            for entry in remembered:
                if entry.uri not in known_uris and uris.get(entry.video_id, "") in {"", *moved}:
                    names = (
                        f"{entry.video_id}{f'~{number}' if number > 1 else ''}"
                        for number in count(1)
                    )
                    video_id = next(name for name in names if name not in known_ids)
                    known_ids.add(video_id)
                    entries.append(ManifestEntry(video_id, entry.uri))
            for start in range(0, len(entries), project.config.shard_videos):
                key = f"{source}-{next_number[source]:05d}"
                next_number[source] += 1
                some = entries[start : start + project.config.shard_videos]
                rows = [
                    ManifestRow(entry.video_id, source, split, key, entry.uri) for entry in some
                ]
                manifest.write_manifest_shard(root, key, rows)
                new_shards.append(key)
        text = json.dumps(manifest.manifest_table(root).to_pylist())
    digest = hashlib.sha256(text.encode()).hexdigest()
    return ManifestResult(tuple(shard_keys(root)), tuple(new_shards), digest, offer)
