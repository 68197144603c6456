"""Steps 4 and 5: PCA whitening, fitted once on training frames (asset `whitening`), and whitened
region features of whole videos (asset `features`); and published ones of both."""

import hashlib
import itertools
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from hapvr.data.features import EXTRAS_SETTING, HASH_SETTING, IMPORTED, INDEX_COLUMNS, STAGE, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE, frames_digest
from hapvr.data.manifest import (
    FORGETTING,
    read_manifest_shard,
    shard_keys,
    source_of,
    training_shard_keys,
)
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, Shard, frame_columns, index_row
from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.files import file_sha256
from hapvr.model.settings import extras_rows
from hapvr.networks.extract import Embed, Frames, embed_by_networks, open_backbone, region_embedder
from hapvr.networks.settings import WhiteningConfig
from hapvr.networks.whitening import (
    PROVENANCE_NAME,
    RESTORE,
    STAGE as WHITENING_STAGE,
    Whitening,
    fit_whitening,
    load_whitening,
    save_whitening,
    whitening_provenance,
)
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, differences, environment
from hapvr.seeding import numpy_rng
from hapvr.settings import explain
from hapvr.steps.project import Project
from hapvr.steps.videos import open_frames
from hapvr.video.frames import (
    HASH_VERSION,
    NO_HASH,
    Hashes,
    center_crop,
    decode_jpegs,
    frame_hashes,
    in_threads,
)
from hapvr.video.settings import SourceName

DECODED_FRAMES = 8
"""Frames that a thread holds at their stored size."""


@dataclass(frozen=True)
class WhiteningResult:
    """done: False if it was there. provenance: its environment has `num_regions`, the vectors that
    it was fitted on."""

    whitening: Whitening
    provenance: Provenance
    done: bool


def make_whitening(project: Project, *, progress: Progress = no_progress) -> WhiteningResult:
    """Fit on regions of a seeded sample of the frames of the training shards; only one process at a
    time does. An existing one is kept while its settings hold, whatever arrives or leaves later,
    since all features would have to be made again. A few videos give fewer dimensions than
    `whitening.dims`; then others move it, until a model is trained. Raises DataError without
    training frames, DamagedError where one that is damaged would become another."""
    config, root = project.config, project.root
    with root.lock(WHITENING_STAGE):
        shards = training_shard_keys(root)
        backbone = open_backbone(config.backbone, config.device)
        settings = {
            "whitening": config.whitening.model_dump(mode="json"),
            "backbone": backbone.settings,
            "crop_px": config.backbone.crop_px,
            "sampling": config.sampling.identity_fields(),
        }
        inputs = {key: frames_digest(project.shard(FRAMES_STAGE, key)) for key in shards}
        found, stored, wanted = whitening_provenance(root), None, ""
        with suppress(DamagedError):  # it is fitted again
            stored = None if found is None else load_whitening(root)
        if (
            found is not None and IMPORTED in found.settings
        ):  # one that is damaged has to be imported again
            return WhiteningResult(stored or load_whitening(root), found, done=False)
        if found is not None and not differences(settings, found.settings):
            if stored is None:  # a damaged one is fitted on the same shards, and has to be the same
                inputs, wanted = (
                    dict(found.inputs),
                    root.read_json(PROVENANCE_NAME, hint=RESTORE).get("sha256", ""),
                )
            else:
                enough = (
                    stored.dims == min(config.whitening.dims, len(stored.mean))
                    or inputs == found.inputs
                )
                if enough or root.exists("models/current.json"):
                    return WhiteningResult(stored, found, done=False)
        if found is not None and root.exists(
            FORGETTING
        ):  # its inputs are named by their new digests at the end
            raise DataError("whitening: `hapvr forget` has not ended; let it end, or repeat it")
        regions = _sample_regions(
            project, list(inputs), region_embedder(backbone, None, config.device), progress
        )
        dims = min(config.whitening.dims, len(regions) - 1, regions.shape[1])
        if dims < config.whitening.dims:
            warnings.warn(
                f"whitening: so few frames give {dims} dimensions instead of "
                f"{config.whitening.dims}, and answers that are less "
                "sure; more videos give more, as long as no model is trained"
            )
        whitening = fit_whitening(regions, dims=dims)
        if wanted not in ("", whitening.sha256) and root.list_folders(STAGE):
            hint = (
                "copy whitening.safetensors from models/RUN/bundle, or remove whitening/ "
                "to begin anew"
            )
            raise DamagedError(
                f"whitening: it is damaged, and fitted again it would be another one; {hint}"
            )
        provenance = Provenance(
            WHITENING_STAGE, settings, inputs, environment() | {"num_regions": str(len(regions))}
        )
        save_whitening(root, whitening, provenance)
    return WhiteningResult(whitening, provenance, done=True)


def import_whitening(root: DataRoot, file: Path, *, dims: int | None) -> Whitening:
    """Make a published PCA the whitening of a data root; fitting then leaves it alone. Arguments
    and errors: `read_pca`, and ArgumentError where there is another one."""
    whitening = read_pca(file, dims=dims)
    settings = {IMPORTED: {"file": file.name, "sha256": file_sha256(file)}, "dims": whitening.dims}
    if (
        whitening_provenance(root) is not None
        and root.read_json(PROVENANCE_NAME).get("sha256") != whitening.sha256
    ):
        hint = "with another all features have to be made again; remove whitening/ for that"
        raise ArgumentError(f"import: {root.url} has a whitening already, and {hint}")
    save_whitening(
        root,
        whitening,
        Provenance(WHITENING_STAGE, settings, {}, environment() | {"num_regions": "0"}),
    )
    return whitening


def read_pca(file: Path, *, dims: int | None) -> Whitening:
    """The released PCA of a .pth or .npz file with mean [C], d [K] and V [C, K], or of a checkpoint
    of VVS. dims: how many of the largest eigenvalues are kept; None: all that a checkpoint of VVS
    has, 512 of another file. Raises DataError, which says what is missing or does not fit, and
    ArgumentError for more dims than the file has."""
    import torch

    from hapvr.model.published import PCA, read_archive

    arrays = read_archive(file)[0]
    of_vvs = any(name.startswith(PCA) for name in arrays)
    names = (
        [f"{PCA}{part}" for part in ("mean", "denominator", "components")]
        if of_vvs
        else ["mean", "d", "V"]
    )
    mean, values, vectors = (arrays.get(name, torch.empty(0, 0, 0)).double() for name in names)
    mean = mean.flatten()
    fits = (
        values.ndim == 1
        and vectors.shape == (len(mean), len(values))
        and not (of_vvs and (values <= 0).any())
    )
    fits = fits and bool(
        ((lengths := vectors.norm(dim=0)) > 0.01).all() and (lengths < 100).all()
    )  # about 1
    if not fits or not all(tensor.float().isfinite().all() for tensor in (mean, values, vectors)):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (mean, values, vectors))
        raise DataError(
            f"import: {file}: wanted finite mean [C], d [K] above 0 and V [C, K] of a PCA, "
            f"got {shapes}"
        )
    kept = dims if dims is not None else len(values) if of_vvs else WhiteningConfig().dims
    usable = int((values >= 0).sum())  # fewer samples than channels leave negative ones
    if not 1 <= kept <= usable:
        raise ArgumentError(
            f"dims: got {kept}, wanted 1 to {usable}, the eigenvalues in {file} that are not "
            "negative"
        )
    order = values.argsort(descending=True)[:kept]
    variances = values.square() if of_vvs else values
    parts = (
        part.float().contiguous().numpy() for part in (mean, vectors[:, order], variances[order])
    )
    center, eigenvectors, eigenvalues = parts
    whitening = Whitening(center, eigenvectors, eigenvalues)
    return replace(whitening, eps=0.0) if of_vvs else whitening


def _sample_regions(
    project: Project, shards: list[str], embed: Embed, progress: Progress
) -> NDArray[np.float32]:
    """[N, C] region vectors of at most `whitening.max_regions` / 9 frames, every training frame
    equally likely."""
    config = project.config
    made = [project.shard(FRAMES_STAGE, key) for key in shards]
    rows = [(shard.key, row["video_id"], row["num_rows"]) for shard in made for row in shard.rows()]
    ends = np.cumsum([count for *_, count in rows])
    if not rows or not ends[-1]:
        raise DataError(
            "whitening: the training shards hold no frames; see the videos' rows for the "
            "reasons, or add training videos"
        )
    wanted = min(ends[-1], -(-config.whitening.max_regions // config.backbone.num_regions))
    rng = numpy_rng(0, WHITENING_STAGE)
    chosen = np.sort(rng.choice(ends[-1], wanted, replace=False))
    places = (
        (*rows[video][:2], frame - ends[video])
        for video, frame in zip(np.searchsorted(ends, chosen, "right"), chosen, strict=True)
    )

    def clips() -> Iterator[tuple[str, Frames]]:
        for key, of_shard in itertools.groupby(places, key=lambda place: place[0]):
            reader = open_frames(project, key)
            for video_id, of_video in itertools.groupby(of_shard, key=lambda place: place[1]):
                jpegs = reader.read(video_id).jpegs
                yield (
                    video_id,
                    crops([jpegs[frame] for _, _, frame in of_video], config.backbone.crop_px),
                )

    regions, num_done = list[NDArray[np.float32]](), 0
    for _, (values,) in embed_by_networks(clips(), [embed]):
        regions.append(values.reshape(-1, values.shape[-1]))
        num_done += len(values)
        progress(num_done, wanted)
    return np.concatenate(regions)[: config.whitening.max_regions]


def open_extractor(
    project: Project, *, extras: bool
) -> tuple[Embed, dict[str, Any], dict[str, int], tuple[int, int]]:
    """The backbone with the whitening of the project. extras: with the pooled vectors that
    `features.pooled` asks for. Returns the network, what determines the regions that it makes, what
    `extras_setting` says of it, and [R, D] of a frame, the rows of its extras included."""
    config, whitening = project.config, load_whitening(project.root)
    backbone = open_backbone(config.backbone, config.device, extras=extras)
    settings = {
        "sampling": config.sampling.identity_fields(),
        "backbone": backbone.settings,
        "crop_px": backbone.crop_px,
        "whitening": whitening.sha256,
    }
    pooled, num_rows = len(whitening.mean) if extras else 0, config.backbone.num_regions
    if extras:
        num_rows += extras_rows(pooled, whitening.dims)
    embed = region_embedder(backbone, whitening, config.device, extras=extras)
    return embed, settings, {EXTRAS_SETTING: pooled} if pooled else {}, (num_rows, whitening.dims)


def make_features(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Extract [T, 9, D] features of every video of the shard that has frames; the others keep their
    failed row. Videos whose frames and settings are those of an earlier run are not extracted
    again. Raises DataError for imported ones, which cannot be made again."""
    stored, source = project.shard(STAGE, key).find(), source_of(key)
    if stored is not None and IMPORTED in stored.provenance.settings:
        hint = (
            f"give the source {source} another name, or move features/{source}-* to "
            "another data root"
        )
        raise DataError(
            f"features: those of shard {key} were imported, and would be replaced; {hint}"
        )
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": project.config.sampling.identity_fields()})
    rows, made_of = frames.rows(), frames_digest(frames)
    digests = {row["video_id"]: row["frames_sha256"] for row in rows if row["status"] == STATUS_OK}
    embed, settings, extras, (num_regions, dims) = open_extractor(
        project, extras=project.config.features.pooled
    )

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        wanted, shown = frozenset(video_ids), deque[tuple[Sequence[float], Hashes]]()

        def clips() -> Iterator[tuple[str, Frames]]:
            reader = open_frames(project, key)
            for video_id in (video_id for video_id in reader.video_ids if video_id in wanted):
                video = reader.read(video_id)
                shown.append((video.timestamps_s, frame_hashes(video.jpegs)))
                yield video_id, crops(video.jpegs, project.config.backbone.crop_px)

        for video_id, (values,) in embed_by_networks(clips(), [embed]):
            row = index_row(video_id, len(values), frames_sha256=digests[video_id])
            times, hashes = shown.popleft()
            yield row, frame_columns(video_id, times, hashes, values)

    recipe = ShardRecipe(
        shard=project.shard(STAGE, key),
        settings={**settings, **extras, HASH_SETTING: HASH_VERSION},
        inputs={"frames": made_of},
        columns=fields(num_regions=num_regions, dims=dims),
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


def crops(jpegs: Sequence[bytes], crop_px: int) -> Frames:
    """[N, 3, crop_px, crop_px]; a long video is never whole in memory at its full size."""
    parts = [
        jpegs[start : start + DECODED_FRAMES] for start in range(0, len(jpegs), DECODED_FRAMES)
    ]
    return np.concatenate(in_threads(lambda part: center_crop(decode_jpegs(part), crop_px), parts))


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
    `root`. fps: frames per second of the features, which the file does not tell; it dates the
    frames. An unusable dataset becomes a failed row, with the reasons of `read_hdf5_features`. Ids
    stay as they are. Finished shards of the same file are left alone. Raises DataError for a file
    that is not an HDF5 file or holds no features, ArgumentError for a wrong fps, and for a name or
    ids that are taken."""
    from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5

    try:
        TypeAdapter(
            tuple[SourceName, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
        ).validate_python((name, fps))
    except ValidationError as error:
        raise ArgumentError(
            f"name {name!r} or fps {fps} cannot be used: {explain(error)}"
        ) from None
    video_ids, (num_regions, dims) = survey_hdf5(file)
    shape = {"num_regions": num_regions, "dims": dims}
    settings = {IMPORTED: {"format": "hdf5", "sha256": file_sha256(file)}, "fps": fps, **shape}
    names = {source_of(key) for key in shard_keys(root)}
    taken = {row.video_id for key in shard_keys(root) for row in read_manifest_shard(root, key)}
    for key in root.list_folders(STAGE):
        found = Shard(root, STAGE, key).find()
        imported = None if found is None else found.provenance.settings.get(IMPORTED)
        if found is not None and (source_of(key), imported) != (name, settings[IMPORTED]):
            names.add(source_of(key))
            taken.update(row["video_id"] for row in found.rows())
    if name in names or not taken.isdisjoint(video_ids):
        what = (
            f"shards {name}" if name in names else f"a video {min(taken & set(video_ids))!r:.200}"
        )
        raise ArgumentError(
            f"{root.url} has {what} already; choose another --name, or a data root of its "
            "own as --out"
        )
    results = []
    for number, start in enumerate(range(0, len(video_ids), shard_videos)):
        ids = video_ids[start : start + shard_videos]
        recipe = ShardRecipe(
            shard=Shard(root, STAGE, f"{name}-{number:05d}"),
            settings=settings,
            inputs={"video_ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()},
            columns=fields(**shape),
        )

        def make(pending: Sequence[str]) -> Generator[VideoEntry, None, None]:
            for video_id, features, reason, message in read_hdf5_features(
                file, pending, (num_regions, dims)
            ):
                if features is None:
                    yield index_row(video_id, 0, reason=reason, message=message), None
                else:
                    times, hashes = (
                        (np.arange(len(features)) / fps).tolist(),
                        [NO_HASH] * len(features),
                    )
                    yield (
                        index_row(video_id, len(features)),
                        frame_columns(video_id, times, hashes, features),
                    )

        results.append(build_shard(recipe, video_ids=ids, make=make))
        progress(start + len(ids), len(video_ids))
    return results
