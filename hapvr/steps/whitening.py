"""Step 4: PCA whitening, fitted once on training frames (asset `whitening`)."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.frames import frames_digest
from hapvr.data.manifest import read_manifest, training_shard_keys
from hapvr.errors import DamagedError, DataError
from hapvr.files import file_sha256
from hapvr.model.published import import_pca
from hapvr.networks.backbone import Backbone, center_crop, decode_frames, load_backbone
from hapvr.networks.extract import choose_device, embed_in_batches, region_embedder
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
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

IMPORTED = "imported"
TRAINED = "models/current.json"
"""Where a training has ended, the features that it read stay as they are."""


@dataclass(frozen=True)
class WhiteningResult:
    """done: False if it was there. num_regions: vectors it was fitted on; explained_rate: part of the variance kept."""

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
        shards = training_shard_keys(read_manifest(root))
        backbone = load_backbone(config.backbone)
        settings = {
            "whitening": config.whitening.model_dump(mode="json"),
            "backbone": backbone.settings,
            "crop_px": config.backbone.crop_px,
            "sampling": config.sampling.identity_fields(),
        }
        inputs = {key: frames_digest(project.shard(FRAMES_STAGE, key)) for key in shards}
        found = None
        try:
            found = whitening_provenance(root)
            stored = None if found is None else load_whitening(root)
        except DamagedError as error:
            if found is not None and IMPORTED in found.settings:
                raise
            warnings.warn(f"{error}. It is fitted again", stacklevel=2)
            stored = None
        if found is not None and stored is not None and IMPORTED in found.settings:
            if stored.dims != config.whitening.dims:
                raise DataError(
                    f"whitening: the imported one has {stored.dims} dimensions, whitening.dims is {config.whitening.dims}; "
                    "import it again with --dims, or change the configuration"
                )
            return WhiteningResult(stored, found, done=False)
        if (
            found is not None
            and not Provenance(STAGE, settings).differences(Provenance(STAGE, found.settings))
            and all(inputs.get(key) == digest for key, digest in found.inputs.items())
        ):
            if stored is None:  # a damaged one is fitted on the same shards
                shards = [key for key in shards if key in found.inputs]
                inputs = {key: inputs[key] for key in shards}
            elif stored.dims == config.whitening.dims or inputs == found.inputs or root.exists(TRAINED):
                return WhiteningResult(stored, found, done=False)
        regions = _sample_regions(project, shards, backbone, progress)
        dims = min(config.whitening.dims, len(regions) - 1, regions.shape[1])
        if dims < config.whitening.dims:
            warnings.warn(
                f"whitening: {len(regions)} regions of {regions.shape[1]} channels give {dims} dimensions, not "
                f"{config.whitening.dims}; it is fitted again once there are more videos and nothing is trained on it",
                stacklevel=2,
            )
        whitening = fit_whitening(regions, dims=dims)
        counts = {"num_regions": str(len(regions)), "num_shards": str(len(shards))}
        provenance = Provenance(STAGE, settings, inputs, environment() | counts)
        save_whitening(root, whitening, provenance)
    return WhiteningResult(whitening, provenance, done=True)


def import_whitening(root: DataRoot, file: Path, *, dims: int | None) -> Whitening:
    """Make a published PCA the whitening of a data root; fitting then leaves it alone.

    file: .pth or .npz with mean, d, V, or a checkpoint of VVS. dims: None for all that a checkpoint of VVS has, and for 512 of
    another file.
    Raises DataError for a file that holds something else, ArgumentError for more dims than it has.
    """
    pca = import_pca(file, dims=dims)
    if dims is None and pca.eps is None:
        pca = import_pca(file, dims=WhiteningConfig().dims)
    whitening = Whitening(pca.mean, pca.eigenvectors, pca.eigenvalues)
    if pca.eps is not None:
        whitening = replace(whitening, eps=pca.eps)
    settings = {IMPORTED: {"file": file.name, "sha256": file_sha256(file)}, "dims": whitening.dims}
    counts = {"num_regions": "0", "num_shards": "0"}
    save_whitening(root, whitening, Provenance(STAGE, settings, {}, environment() | counts))
    return whitening


def _sample_regions(project: Project, shards: list[str], backbone: Backbone, progress: Progress) -> Tensor:
    """[N, C] region vectors of at most `whitening.max_regions` / 9 frames, every training frame equally likely."""
    config = project.config
    places = [
        (key, video_id, frame)
        for key in shards
        for video_id, num_frames in project.shard(FRAMES_STAGE, key).index().select("video_id", "num_rows").iter_rows()
        for frame in range(num_frames)
    ]
    if not places:
        raise DataError(
            "whitening: the training shards hold no frames; see the videos' rows for the reasons, or add training videos"
        )
    wanted = min(len(places), -(-config.whitening.max_regions // config.backbone.num_regions))
    rng = numpy_rng(0, STAGE)
    chosen = [places[index] for index in np.sort(rng.choice(len(places), wanted, replace=False))]

    def clips() -> Iterator[tuple[str, Tensor]]:
        for key, of_shard in itertools.groupby(chosen, key=lambda place: place[0]):
            reader = open_frames(project, key)
            for video_id, of_video in itertools.groupby(of_shard, key=lambda place: place[1]):
                jpegs = reader.read(video_id).jpegs
                frames = decode_frames([jpegs[frame] for _, _, frame in of_video])
                yield video_id, center_crop(frames, config.backbone.crop_px)

    embed = region_embedder(backbone, None, choose_device(config.device))
    regions: list[Tensor] = []
    num_done = 0
    for _, values in embed_in_batches(clips(), embed):
        regions.append(values.flatten(0, 1))
        num_done += len(values)
        progress(num_done, wanted)
    sample = torch.cat(regions)
    return sample[: config.whitening.max_regions]
