"""Step 4: the whitening of region vectors, fitted once on training frames (asset `whitening`), or
imported with a published model."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hapvr.data.features import IMPORTED, STAGE as FEATURES_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE, frames_digest
from hapvr.data.manifest import FORGETTING, training_shard_keys
from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.files import file_sha256
from hapvr.networks.batches import Frames, embed_by_networks
from hapvr.networks.encoder import FrameEncoder, open_encoder
from hapvr.networks.settings import WhiteningConfig
from hapvr.networks.whitening import (
    PROVENANCE_NAME,
    RESTORE,
    STAGE,
    Whitening,
    fit_whitening,
    load_whitening,
    save_whitening,
    unwhitened,
    whitening_provenance,
)
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, differences, environment
from hapvr.seeding import numpy_rng
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.content import cut_to, seen_box
from hapvr.video.frames import decode_jpegs, in_threads, square
from hapvr.video.settings import Picture

if TYPE_CHECKING:
    from torch import Tensor

DECODED_FRAMES = 8
"""How many frames a thread holds at their stored size."""
VVS_NAMES = {"mean": "mean", "values": "denominator", "vectors": "components"}
"""The names of the parts of the PCA in a checkpoint of VVS."""


@dataclass(frozen=True)
class WhiteningResult:
    """A whitening and where it comes from."""

    whitening: Whitening
    provenance: Provenance
    """its environment has `num_regions`, the number of vectors that it was fitted on"""
    done: bool
    """False if it existed already"""


def make_whitening(project: Project, *, progress: Progress = no_progress) -> WhiteningResult:
    """Fit on regions of a seeded sample of the frames of the training shards, in one process at a
    time.

    An existing whitening is kept while its settings hold, whatever videos arrive or leave later,
    since another one would mean extracting all features again. Only a few videos give fewer
    dimensions than `whitening.dims`; then more videos lead to a new fit, until a model is trained.
    Vectors of a network that was made for copies are not whitened: nothing is fitted, and the
    whitening leaves them as they are. Raises DataError without training frames, DamagedError if a
    damaged whitening would be replaced by another one.
    """
    with project.root.lock(STAGE):
        encoder = open_encoder(project.config.backbone, project.config.device)
        earlier = _find_earlier(project)
        if earlier is not None and earlier.is_imported:
            # A damaged one has to be imported again.
            whitening = earlier.whitening or load_whitening(project.root)
            return WhiteningResult(whitening, earlier.provenance, done=False)

        plan = _plan(project, encoder, earlier)
        if plan.kept is not None:
            return plan.kept
        if earlier is not None and project.root.exists(FORGETTING):
            # At its end, the inputs are named by their new digests.
            raise DataError("whitening: `hapvr forget` has not ended; let it end, or repeat it")

        whitening, num_regions = _fit(project, encoder, list(plan.inputs), progress)
        _require_same(project, whitening, plan.wanted_sha256)
        fitted_on = environment() | {"num_regions": str(num_regions)}
        provenance = Provenance(STAGE, plan.settings, plan.inputs, fitted_on)
        save_whitening(project.root, whitening, provenance)

    return WhiteningResult(whitening, provenance, done=True)


@dataclass(frozen=True)
class _Earlier:
    """The whitening that a data root has."""

    provenance: Provenance
    whitening: Whitening | None
    """None where it is damaged"""

    @property
    def is_imported(self) -> bool:
        return IMPORTED in self.provenance.settings


def _find_earlier(project: Project) -> _Earlier | None:
    """The existing whitening; None if there is none."""
    provenance = whitening_provenance(project.root)
    if provenance is None:
        return None
    whitening = None
    with suppress(DamagedError):  # it is fitted again
        whitening = load_whitening(project.root)
    return _Earlier(provenance, whitening)


@dataclass(frozen=True)
class _Plan:
    """Whether the whitening is kept or fitted."""

    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    """training shard -> digest of its frames"""
    kept: WhiteningResult | None = None
    wanted_sha256: str = ""
    """of the required result, if it replaces a damaged whitening; "" if any is allowed"""


def _plan(project: Project, encoder: FrameEncoder, earlier: _Earlier | None) -> _Plan:
    """Whether an earlier whitening stays, and on what a new one is fitted."""
    settings = _settings(project, encoder)
    inputs = _inputs(project)
    if earlier is None or differences(settings, earlier.provenance.settings):
        return _Plan(settings, inputs)
    if earlier.whitening is None:
        wanted_sha256 = project.root.read_json(PROVENANCE_NAME, hint=RESTORE).get("sha256", "")
        return _Plan(settings, dict(earlier.provenance.inputs), wanted_sha256=wanted_sha256)
    if _is_final(project, earlier.whitening, earlier.provenance, inputs):
        kept = WhiteningResult(earlier.whitening, earlier.provenance, done=False)
        return _Plan(settings, inputs, kept=kept)

    return _Plan(settings, inputs)


def _require_same(project: Project, whitening: Whitening, wanted_sha256: str) -> None:
    """Raise DamagedError if the new whitening is not the damaged one with which features were
    computed."""
    if wanted_sha256 in ("", whitening.sha256) or not project.root.list_folders(FEATURES_STAGE):
        return
    raise DamagedError(
        "whitening: it is damaged, and fitted again it would be another one; copy "
        "whitening.safetensors from models/RUN/bundle, or remove whitening/ to begin anew"
    )


def _settings(project: Project, encoder: FrameEncoder) -> dict[str, Any]:
    """The settings that determine a whitening, besides the frames."""
    config = project.config
    settings = {
        "backbone": encoder.settings,
        "crop_px": encoder.crop_px,
        "sampling": config.sampling.identity_fields(),
    }
    if config.backbone.is_copy_network:
        return settings
    return settings | {"whitening": config.whitening.model_dump(mode="json")}


def _inputs(project: Project) -> dict[str, str]:
    """Training shard -> digest of its frames; none where nothing is fitted."""
    if project.config.backbone.is_copy_network:
        return {}
    keys = training_shard_keys(project.root)
    return {key: frames_digest(project.shard(FRAMES_STAGE, key)) for key in keys}


def _is_final(
    project: Project, stored: Whitening, recorded: Provenance, inputs: Mapping[str, str]
) -> bool:
    """Whether a whitening of the same settings stays, whatever arrived since."""
    wanted_dims = min(project.config.whitening.dims, len(stored.mean))
    complete = stored.dims == wanted_dims or project.config.backbone.is_copy_network
    return complete or inputs == recorded.inputs or project.root.exists("models/current.json")


def _fit(
    project: Project, encoder: FrameEncoder, shards: Sequence[str], progress: Progress
) -> tuple[Whitening, int]:
    """The whitening, and the number of regions that it was fitted on."""
    network = project.config.backbone.copy_network
    if network is not None:
        return unwhitened(network.dims), 0
    regions = _sample_regions(project, encoder, shards, progress)
    wanted = project.config.whitening.dims
    dims = min(wanted, len(regions) - 1, regions.shape[1])
    if dims < wanted:
        warnings.warn(
            f"whitening: so few frames give {dims} dimensions instead of {wanted}, and less "
            "certain answers; more videos give more dimensions, as long as no model is trained"
        )

    return fit_whitening(regions, dims=dims), len(regions)


def _sample_regions(
    project: Project, encoder: FrameEncoder, shards: Sequence[str], progress: Progress
) -> NDArray[np.float32]:
    """[N, C] region vectors of at most `whitening.max_regions` / R frames, every training frame
    equally likely."""
    config = project.config
    rows = [
        (key, row["video_id"], row["num_rows"])
        for key in shards
        for row in project.shard(FRAMES_STAGE, key).rows()
    ]
    ends = np.cumsum([count for *_, count in rows])
    if not rows or not ends[-1]:
        raise DataError(
            "whitening: the training shards hold no frames; see the videos' rows for the "
            "reasons, or add training videos"
        )

    wanted = min(ends[-1], -(-config.whitening.max_regions // config.backbone.num_vectors))
    chosen = np.sort(numpy_rng(0, STAGE).choice(ends[-1], wanted, replace=False))
    videos = np.searchsorted(ends, chosen, "right")
    places = (
        (*rows[video][:2], frame - ends[video])  # from the end of the video's frames
        for video, frame in zip(videos, chosen, strict=True)
    )

    def clips() -> Iterator[tuple[str, Frames]]:
        for key, of_shard in itertools.groupby(places, key=lambda place: place[0]):
            reader = open_frames(project, key)
            for video_id, of_video in itertools.groupby(of_shard, key=lambda place: place[1]):
                jpegs = reader.read(video_id).jpegs
                shown = [jpegs[frame] for _, _, frame in of_video]
                yield video_id, squares(shown, encoder.crop_px, config.backbone.picture)

    regions: list[NDArray[np.float32]] = []
    num_done = 0
    embed = encoder.embedder(None, config.device)
    for _, (values,) in embed_by_networks(clips(), [embed]):
        regions.append(values.reshape(-1, values.shape[-1]))
        num_done += len(values)
        progress(num_done, wanted)

    return np.concatenate(regions)[: config.whitening.max_regions]


def squares(jpegs: Sequence[bytes], size_px: int, picture: Picture) -> Frames:
    """[N, 3, size_px, size_px], frames of one video as a network sees them. A long video is never
    in memory as a whole at its full size."""
    box = seen_box(jpegs, picture)
    parts = [
        jpegs[start : start + DECODED_FRAMES] for start in range(0, len(jpegs), DECODED_FRAMES)
    ]
    return np.concatenate(
        in_threads(lambda part: square(cut_to(decode_jpegs(part), box), size_px, picture), parts)
    )


def import_whitening(root: DataRoot, file: Path, *, dims: int | None) -> Whitening:
    """Make a published PCA the whitening of a data root; fitting then leaves it alone. Arguments
    and errors: see `read_pca`, and ArgumentError if there is another whitening."""
    whitening = read_pca(file, dims=dims)
    is_there = whitening_provenance(root) is not None
    if is_there and root.read_json(PROVENANCE_NAME).get("sha256") != whitening.sha256:
        raise ArgumentError(
            f"import: {root.url} has a whitening already, and another one means extracting all "
            "features again; remove whitening/ for that"
        )

    origin = {"file": file.name, "sha256": file_sha256(file)}
    settings = {IMPORTED: origin, "dims": whitening.dims}
    provenance = Provenance(STAGE, settings, {}, environment() | {"num_regions": "0"})
    save_whitening(root, whitening, provenance)
    return whitening


def read_pca(file: Path, *, dims: int | None) -> Whitening:
    """The released PCA of a .pth or .npz file with mean [C], d [K] and V [C, K], or of a checkpoint
    of VVS. dims: how many of the largest eigenvalues are kept; None: all that a checkpoint of VVS
    has, 512 of another file. Raises DataError, which says what is missing or does not fit, and
    ArgumentError for more dims than the file has."""
    import torch

    from hapvr.model.archive import read_archive
    from hapvr.model.published import PCA

    arrays = read_archive(file)[0]
    is_of_vvs = any(name.startswith(PCA) for name in arrays)
    names = {"mean": "mean", "values": "d", "vectors": "V"}
    if is_of_vvs:
        names = {part: f"{PCA}{name}" for part, name in VVS_NAMES.items()}
    parts = {part: arrays.get(name, torch.empty(0, 0, 0)).double() for part, name in names.items()}
    mean = parts["mean"].flatten()
    values = parts["values"]
    vectors = parts["vectors"]
    if not _is_pca(mean, values, vectors, positive=is_of_vvs):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (mean, values, vectors))
        raise DataError(
            f"import: {file}: expected finite mean [C], d [K] above 0 and V [C, K] of a PCA, "
            f"got {shapes}"
        )

    kept = dims
    if kept is None:
        kept = len(values) if is_of_vvs else WhiteningConfig().dims
    usable = int((values >= 0).sum())  # fewer samples than channels leave negative ones
    if not 1 <= kept <= usable:
        raise ArgumentError(
            f"dims: got {kept}, expected 1 to {usable}, the eigenvalues in {file} that are not "
            "negative"
        )

    order = values.argsort(descending=True)[:kept]
    variances = values.square() if is_of_vvs else values
    whitening = Whitening(
        mean=mean.float().contiguous().numpy(),
        eigenvectors=vectors[:, order].float().contiguous().numpy(),
        eigenvalues=variances[order].float().contiguous().numpy(),
    )
    return replace(whitening, eps=0.0) if is_of_vvs else whitening


def _is_pca(mean: Tensor, values: Tensor, vectors: Tensor, *, positive: bool) -> bool:
    """Whether these are finite and fit together, and the vectors have about unit length. positive:
    whether all values have to be above 0."""
    if values.ndim != 1 or vectors.shape != (len(mean), len(values)):
        return False
    if positive and not bool((values > 0).all()):
        return False
    lengths = vectors.norm(dim=0)
    if not bool(((lengths > 0.01) & (lengths < 100)).all()):
        return False
    return all(bool(tensor.float().isfinite().all()) for tensor in (mean, values, vectors))
