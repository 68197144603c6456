"""Step 5: whitened frame vectors of whole videos (asset `features`); and published ones."""

import hashlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from hapvr.data.features import EXTRAS_SETTING, HASH_SETTING, IMPORTED, INDEX_COLUMNS, STAGE, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE, frames_digest
from hapvr.data.manifest import (
    read_manifest_shard,
    shard_keys,
    source_of,
)
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, Shard, frame_columns, index_row
from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_sha256
from hapvr.model.settings import extras_rows
from hapvr.networks.batches import Embed, Frames, embed_by_networks
from hapvr.networks.encoder import open_encoder
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.settings import explain
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.decoded import DecodedFrames
from hapvr.video.frames import HASH_VERSION, NO_HASH, Hashes
from hapvr.video.settings import SourceName


@dataclass(frozen=True)
class Extractor:
    """Frames to whitened vectors, as a project computes them."""

    embed: Embed
    """[B, 3, S, S] uint8 -> [B, R, D], the rows of the frame extras included"""
    settings: dict[str, Any]
    """what determines the vectors; without the extras"""
    extras: dict[str, int]
    """what EXTRAS_SETTING records of the extras, empty without any"""
    num_vectors: int
    """R"""
    dims: int
    """D"""


def open_extractor(project: Project, *, extras: bool) -> Extractor:
    """The encoder with the whitening of the project. extras: with the pooled vectors that
    `features.pooled` asks for."""
    config = project.config
    whitening = load_whitening(project.root)
    encoder = open_encoder(config.backbone, config.device, extras=extras)
    num_vectors = encoder.num_vectors
    of_extras = {}
    if extras:
        pooled_dims = len(whitening.mean)
        num_vectors += extras_rows(pooled_dims, whitening.dims)
        of_extras = {EXTRAS_SETTING: pooled_dims}

    settings = {
        "sampling": config.sampling.identity_fields(),
        "backbone": encoder.settings,
        "crop_px": encoder.crop_px,
        "whitening": whitening.sha256,
    }
    return Extractor(
        embed=encoder.embedder(whitening, config.device, extras=extras),
        settings=settings,
        extras=of_extras,
        num_vectors=num_vectors,
        dims=whitening.dims,
    )


def make_features(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Extract [T, 9, D] features of every video of the shard that has frames; the others keep their
    failed row. Videos whose frames and settings are those of an earlier run are not extracted
    again. Raises DataError for imported ones, which cannot be extracted again."""
    _require_not_imported(project.shard(STAGE, key))
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": project.config.sampling.identity_fields()})
    rows = frames.rows()
    inputs = {"frames": frames_digest(frames)}
    digests = {row["video_id"]: row["frames_sha256"] for row in rows if row["status"] == STATUS_OK}
    extractor = open_extractor(project, extras=project.config.features.pooled)
    backbone = project.config.backbone

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        wanted = frozenset(video_ids)
        shown = deque[tuple[Sequence[float], Hashes]]()

        def clips() -> Iterator[tuple[str, Frames]]:
            reader = open_frames(project, key)
            for video_id in reader.video_ids:
                if video_id not in wanted:
                    continue
                video = reader.read(video_id)
                frames = DecodedFrames(video.jpegs, backbone.picture)
                pictures, hashes = frames.squares(backbone.crop_px)
                shown.append((video.timestamps_s, hashes))
                yield video_id, pictures

        for video_id, (values,) in embed_by_networks(clips(), [extractor.embed]):
            row = index_row(video_id, len(values), frames_sha256=digests[video_id])
            times, hashes = shown.popleft()
            yield row, frame_columns(video_id, times, hashes, values)

    recipe = ShardRecipe(
        shard=project.shard(STAGE, key),
        settings=extractor.settings | extractor.extras | {HASH_SETTING: HASH_VERSION},
        inputs=inputs,
        columns=fields(num_regions=extractor.num_vectors, dims=extractor.dims),
        index_columns=INDEX_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(digests),
        make=make,
        lost=failed_rows(rows, frames_sha256=""),
        reuse=lambda row, _: digests.get(row["video_id"]) == row.get("frames_sha256"),
        progress=progress,
    )


def _require_not_imported(shard: Shard) -> None:
    """Raise DataError for features that would be replaced, and cannot be extracted again."""
    index = shard.find()
    if index is None or IMPORTED not in index.provenance.settings:
        return
    source = source_of(shard.key)
    raise DataError(
        f"features: those of shard {shard.key} were imported, and would be replaced; give the "
        f"source {source} another name, or move features/{source}-* to another data root"
    )


def import_features(
    root: DataRoot,
    file: Path,
    *,
    name: str,
    fps: float = 1.0,
    shard_videos: int = 512,
    progress: Progress = no_progress,
) -> list[StageResult]:
    """Write every dataset of an HDF5 file as features into the shards `<name>-00000`, ... below
    `root`.

    An unusable dataset becomes a failed row, with the reasons of `read_hdf5_features`. Ids stay as
    they are. Finished shards of the same file are left alone.

    fps: frames per second of the features, which the file does not tell; it dates the frames.

    Raises: DataError for a file that is not an HDF5 file or holds no features, ArgumentError for a
    wrong fps, and for a name or ids that are taken.
    """
    from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5

    _require_import_arguments(name, fps)
    video_ids, shape = survey_hdf5(file)
    num_regions, dims = shape
    settings = {
        IMPORTED: {"format": "hdf5", "sha256": file_sha256(file)},
        "fps": fps,
        "num_regions": num_regions,
        "dims": dims,
    }
    _require_free(root, name, video_ids, origin=settings[IMPORTED])

    def make(pending: Sequence[str]) -> Generator[VideoEntry, None, None]:
        for video_id, features, reason, message in read_hdf5_features(file, pending, shape):
            if features is None:
                yield index_row(video_id, 0, reason=reason, message=message), None
                continue

            num_frames = len(features)
            times_s = (np.arange(num_frames) / fps).tolist()
            hashes = [NO_HASH] * num_frames
            columns = frame_columns(video_id, times_s, hashes, features)
            yield index_row(video_id, num_frames), columns

    results = []
    for number, start in enumerate(range(0, len(video_ids), shard_videos)):
        ids = video_ids[start : start + shard_videos]
        recipe = ShardRecipe(
            shard=Shard(root, STAGE, f"{name}-{number:05d}"),
            settings=settings,
            inputs={"video_ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()},
            columns=fields(num_regions=num_regions, dims=dims),
        )
        results.append(build_shard(recipe, video_ids=ids, make=make))
        progress(start + len(ids), len(video_ids))

    return results


def _require_import_arguments(name: str, fps: float) -> None:
    """Raise ArgumentError for a name that no source may have, or a wrong rate."""
    wanted = tuple[SourceName, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    try:
        TypeAdapter(wanted).validate_python((name, fps))
    except ValidationError as error:
        raise ArgumentError(
            f"name {name!r} or fps {fps} cannot be used: {explain(error)}"
        ) from None


def _require_free(root: DataRoot, name: str, video_ids: Sequence[str], *, origin: object) -> None:
    """Raise ArgumentError where the name or an id is taken, but by an earlier import of the same
    file under this name. origin: of the file, as its features record it."""
    names: set[str] = set()
    ids: set[str] = set()
    for key in shard_keys(root):
        names.add(source_of(key))
        ids |= {row.video_id for row in read_manifest_shard(root, key)}

    for key in root.list_folders(STAGE):
        index = Shard(root, STAGE, key).find()
        if index is None:
            continue
        is_same = source_of(key) == name and index.provenance.settings.get(IMPORTED) == origin
        if not is_same:
            names.add(source_of(key))
            ids |= {row["video_id"] for row in index.rows()}

    taken_ids = ids & set(video_ids)
    if name not in names and not taken_ids:
        return
    what = f"shards {name}" if name in names else f"a video {min(taken_ids)!r:.200}"
    raise ArgumentError(
        f"{root.url} has {what} already; choose another --name, or a data root of its own as --out"
    )
