"""Step 4: PCA whitening, fitted once on training frames (asset `whitening`)."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.frames import frames_digest
from hapvr.data.manifest import training_shard_keys
from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.files import file_sha256
from hapvr.networks.extract import Embed, Frames, embed_by_networks, open_backbone, region_embedder
from hapvr.networks.settings import WhiteningConfig
from hapvr.networks.whitening import (
    STAGE,
    Whitening,
    fit_whitening,
    load_whitening,
    save_whitening,
    whitening_provenance,
)
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng
from hapvr.steps.project import Project
from hapvr.steps.videos import open_frames
from hapvr.video.frames import center_crop, decode_jpegs

IMPORTED = "imported"


@dataclass(frozen=True)
class WhiteningResult:
    """done: False if it was there. provenance: its environment has `num_regions`, the vectors that it was fitted on."""

    whitening: Whitening
    provenance: Provenance
    done: bool


def make_whitening(project: Project, *, progress: Progress = no_progress) -> WhiteningResult:
    """Fit on regions of a seeded sample of the frames of the training shards; only one process at a time does.

    An existing one is kept while its settings hold and the shards it was fitted on are unchanged: shards that arrived
    later do not move it, since all features would have to be made again. A few videos give fewer dimensions than
    `whitening.dims`; then more videos do move it, until a model is trained. Raises DataError without training frames.
    """
    config, root = project.config, project.root
    with root.lock(STAGE):
        shards = training_shard_keys(root)
        backbone = open_backbone(config.backbone, config.device)
        settings = {
            "whitening": config.whitening.model_dump(mode="json"),
            "backbone": backbone.settings,
            "crop_px": config.backbone.crop_px,
            "sampling": config.sampling.identity_fields(),
        }
        inputs = {key: frames_digest(project.shard(FRAMES_STAGE, key)) for key in shards}
        found, stored = None, None
        with suppress(DamagedError):  # it is fitted again
            found = whitening_provenance(root)
            stored = None if found is None else load_whitening(root)
        if found is not None and IMPORTED in found.settings:  # one that is damaged has to be imported again
            return WhiteningResult(stored or load_whitening(root), found, done=False)
        if (
            found is not None
            and not Provenance(STAGE, settings).differences(Provenance(STAGE, found.settings))
            and all(inputs.get(key) == digest for key, digest in found.inputs.items())
        ):
            if stored is None:  # a damaged one is fitted on the same shards
                shards = [key for key in shards if key in found.inputs]
                inputs = {key: inputs[key] for key in shards}
            elif stored.dims == config.whitening.dims or inputs == found.inputs or root.exists("models/current.json"):
                return WhiteningResult(stored, found, done=False)
        regions = _sample_regions(project, shards, region_embedder(backbone, None, config.device), progress)
        dims = min(config.whitening.dims, len(regions) - 1, regions.shape[1])
        if dims < config.whitening.dims:
            warnings.warn(
                f"whitening: so few frames give {dims} dimensions instead of {config.whitening.dims}, and answers that are less "
                "sure; more videos give more, as long as no model is trained",
                stacklevel=2,
            )
        whitening = fit_whitening(regions, dims=dims)
        provenance = Provenance(STAGE, settings, inputs, environment() | {"num_regions": str(len(regions))})
        save_whitening(root, whitening, provenance)
    return WhiteningResult(whitening, provenance, done=True)


def import_whitening(root: DataRoot, file: Path, *, dims: int | None) -> Whitening:
    """Make a published PCA the whitening of a data root; fitting then leaves it alone. Arguments and errors: `read_pca`."""
    whitening = read_pca(file, dims=dims)
    settings = {IMPORTED: {"file": file.name, "sha256": file_sha256(file)}, "dims": whitening.dims}
    save_whitening(root, whitening, Provenance(STAGE, settings, {}, environment() | {"num_regions": "0"}))
    return whitening


def read_pca(file: Path, *, dims: int | None) -> Whitening:
    """The released PCA of a .pth or .npz file with mean [C], d [K] and V [C, K], or of a checkpoint of VVS.

    dims: how many of the largest eigenvalues are kept; None: all that a checkpoint of VVS has, 512 of another file. Raises
    DataError, which says what is missing or does not fit, and ArgumentError for more dims than the file has.
    """
    import torch

    from hapvr.model.published import PCA, read_archive

    arrays = read_archive(file)[0]
    of_vvs = any(name.startswith(PCA) for name in arrays)
    names = [f"{PCA}{part}" for part in ("mean", "denominator", "components")] if of_vvs else ["mean", "d", "V"]
    mean, values, vectors = (arrays.get(name, torch.empty(0, 0, 0)).double() for name in names)
    mean = mean.flatten()
    fits = values.ndim == 1 and vectors.shape == (len(mean), len(values)) and not (of_vvs and (values <= 0).any())
    if not fits or not all(tensor.isfinite().all() for tensor in (mean, values, vectors)):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (mean, values, vectors))
        raise DataError(
            f"import: {file}: wanted finite mean [C], d [K] above 0 and V [C, K] of a PCA, got shapes {shapes}"
        )
    kept = dims if dims is not None else len(values) if of_vvs else WhiteningConfig().dims
    if not 1 <= kept <= len(values):
        raise ArgumentError(f"dims: got {kept}, wanted 1 to {len(values)}, the eigenvalues in {file}")
    order = values.argsort(descending=True)[:kept]
    variances = values.square() if of_vvs else values
    parts = (part.float().contiguous().numpy() for part in (mean, vectors[:, order], variances[order]))
    center, eigenvectors, eigenvalues = parts
    whitening = Whitening(center, eigenvectors, eigenvalues)
    return replace(whitening, eps=0.0) if of_vvs else whitening


def _sample_regions(project: Project, shards: list[str], embed: Embed, progress: Progress) -> NDArray[np.float32]:
    """[N, C] region vectors of at most `whitening.max_regions` / 9 frames, every training frame equally likely."""
    config = project.config
    places = [
        (key, row["video_id"], frame)
        for key in shards
        for row in project.shard(FRAMES_STAGE, key).rows()
        for frame in range(row["num_rows"])
    ]
    if not places:
        raise DataError(
            "whitening: the training shards hold no frames; see the videos' rows for the reasons, or add training videos"
        )
    wanted = min(len(places), -(-config.whitening.max_regions // config.backbone.num_regions))
    rng = numpy_rng(0, STAGE)
    chosen = [places[index] for index in np.sort(rng.choice(len(places), wanted, replace=False))]

    def clips() -> Iterator[tuple[str, Frames]]:
        for key, of_shard in itertools.groupby(chosen, key=lambda place: place[0]):
            reader = open_frames(project, key)
            for video_id, of_video in itertools.groupby(of_shard, key=lambda place: place[1]):
                jpegs = reader.read(video_id).jpegs
                frames = decode_jpegs([jpegs[frame] for _, _, frame in of_video])
                yield video_id, center_crop(frames, config.backbone.crop_px)

    regions: list[NDArray[np.float32]] = []
    num_done = 0
    for _, (values,) in embed_by_networks(clips(), [embed]):
        regions.append(values.reshape(-1, values.shape[-1]))
        num_done += len(values)
        progress(num_done, wanted)
    return np.concatenate(regions)[: config.whitening.max_regions]
