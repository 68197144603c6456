"""Checkpoints of the HAP-VR, S2VS, DnS and ViSiL releases as networks of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from hapvr.errors import ArgumentError, DataError
from hapvr.model.archive import plain_values, read_archive
from hapvr.model.checkpoint import describe_mismatches
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.model.vvs.published import is_vvs, vvs_pca
from hapvr.provenance import file_sha256
from hapvr.settings import explain

COMPARATOR_PREFIXES = {
    "comparator_module.": "hap-vr",
    "visil_head.video_comperator.": "visil",
    "video_comperator.": "visil",
    "visil_head.": "s2vs",
}
"""The CNN's name in each release. "s2vs" includes the fine-grained students of DnS, which have the same names."""

ATTENTION_PREFIXES = ("visil_head.attention.", "attention.")
BACKBONE_PREFIXES = ("cnn.", "feature_extractor.", "normalizer.")
SIMILARITY_MODULES = {"Chamfer": ("chamfer", 0.0), "Average": ("chamfer", 1.0), "Max": ("max", 0.0)}


@dataclass(frozen=True)
class ImportReport:
    """What an import found and did.

    release: "hap-vr", "s2vs" (also DnS students) or "visil"; settings: `scoring_settings` of the network; tensors: our
    name of each published tensor; ignored: tensors of a backbone, which is configured elsewhere; recorded: settings that
    the file holds; inert: classes that the file names, which were not loaded; notes: what a reader should know about the
    scores; sha256: of the file.
    """

    release: str
    settings: Mapping[str, Any]
    tensors: Mapping[str, str]
    ignored: tuple[str, ...]
    recorded: Mapping[str, Any]
    inert: tuple[str, ...]
    notes: tuple[str, ...]
    sha256: str

    def as_metadata(self) -> dict[str, Any]:
        """As JSON can hold it, for `save_network`."""
        return asdict(self)


def import_published(
    file: Path,
    *,
    dims: int | None = None,
    spatial_rate: float | None = None,
    temporal_rate: float | None = None,
    symmetric_chamfer: bool = False,
) -> tuple[SimilarityNetwork, ImportReport]:
    """Read a released checkpoint. Its tensors tell architecture and sizes; no code in it is run.

    dims: values per region, needed only if no tensor tells. spatial_rate, temporal_rate: replace the rates that the file
    records, or the release's own. symmetric_chamfer: the file is ViSiL_sym, whose tensors look like those of ViSiL_v.
    Raises DataError, which names each tensor that does not fit.
    """
    archive = read_archive(file)
    state = _find_state(archive.content, file)
    recorded = plain_values(archive.content.get("args")) if isinstance(archive.content, Mapping) else {}
    release, tensors, ignored = _own_names(state, file)
    weights = {own: state[published].float().contiguous() for published, own in tensors.items()}
    dims = _dims(weights, dims, file)
    settings, notes = _settings(
        release,
        weights,
        recorded,
        rates=(spatial_rate, temporal_rate),
        symmetric_chamfer=symmetric_chamfer,
        file=file,
    )
    network = SimilarityNetwork(settings, dims=dims, generator=torch.Generator())
    take_weights(network, weights, tensors, file=file)
    report = ImportReport(
        release=release,
        settings=network.scoring_settings(),
        tensors=tensors,
        ignored=ignored,
        recorded=recorded,
        inert=archive.inert,
        notes=tuple(notes),
        sha256=file_sha256(file),
    )
    return network.eval(), report


def take_weights(network: nn.Module, weights: Mapping[str, Tensor], tensors: Mapping[str, str], *, file: Path) -> None:
    """Load weights under own names. tensors: own names by published ones, for the DataError that names what does not fit."""
    published = {own: name for name, own in tensors.items()}
    if mismatches := describe_mismatches(network.state_dict(), weights, published):
        raise DataError(f"import: {file} does not fit the network that its tensors tell of: {'; '.join(mismatches)}")
    network.load_state_dict(weights)


@dataclass(frozen=True)
class PublishedPca:
    """mean [C]; eigenvectors [C, D], columns by falling eigenvalue; eigenvalues [D]; float32. eps: what the release adds to
    eigenvalues, None where it does not say."""

    mean: Tensor
    eigenvectors: Tensor
    eigenvalues: Tensor
    eps: float | None = None


def import_pca(file: Path, *, dims: int | None = None) -> PublishedPca:
    """Read a released PCA: a .pth or .npz file with mean [C], d [C] and V [C, C], or a checkpoint of VVS, which has its own.

    dims: how many of the largest eigenvalues are kept, None for all. Raises DataError, which names the array that is missing or does not
    fit, and ArgumentError for more dims than the file has.
    """
    content = read_archive(file).content
    arrays, eps = (vvs_pca(content), 0.0) if is_vvs(content) else (content, None)
    for name in ("mean", "d", "V"):
        if not isinstance(arrays, Mapping) or not isinstance(arrays.get(name), Tensor):
            raise DataError(f"import: {file} has no array {name!r}; wanted mean [C], d [C] and V [C, C] of a PCA")
    mean, values, vectors = (arrays[name].double() for name in ("mean", "d", "V"))
    mean = mean.flatten()
    if values.ndim != 1 or vectors.shape != (len(mean), len(values)):
        shapes = ", ".join(f"{name} {tuple(arrays[name].shape)}" for name in ("mean", "d", "V"))
        raise DataError(f"import: {file}: shapes do not fit: {shapes}; wanted mean [C], d [K] and V [C, K]")
    if not all(tensor.isfinite().all() for tensor in (mean, values, vectors)):
        raise DataError(f"import: {file}: NaN or infinite values in mean, d or V")
    kept = len(values) if dims is None else dims
    if not 1 <= kept <= len(values):
        raise ArgumentError(f"dims: got {dims}, wanted 1 to {len(values)}, the eigenvalues in {file}")
    if eps == 0 and not bool((values > 0).all()):
        raise DataError(f"import: {file}: the PCA has variances that are not above 0")
    order = values.argsort(descending=True)[:kept]
    return PublishedPca(mean.float(), vectors[:, order].float().contiguous(), values[order].float(), eps)


def _find_state(content: object, file: Path) -> dict[str, Tensor]:
    candidates = [content.get("model"), content.get("state_dict"), content] if isinstance(content, Mapping) else []
    for candidate in candidates:
        if isinstance(candidate, Mapping):
            tensors = {str(name): value for name, value in candidate.items() if isinstance(value, Tensor)}
            if tensors:
                # DataParallel and DDP put a prefix before every name.
                return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    raise DataError(f"import: {file} holds no state dict; wanted one, or one under the key 'model' or 'state_dict'")


def _own_names(state: Mapping[str, Tensor], file: Path) -> tuple[str, dict[str, str], tuple[str, ...]]:
    renames = {f"conv{n}.{kind}": f"comparator.conv{n}.{kind}" for n in (1, 2, 3) for kind in ("weight", "bias")}
    renames |= {f"fconv.{kind}": f"comparator.output.{kind}" for kind in ("weight", "bias")}
    known = {
        prefix + name: (own, release)
        for prefix, release in COMPARATOR_PREFIXES.items()
        for name, own in renames.items()
    }
    tensors, releases = {}, set()
    for name in state:
        if name in known:
            tensors[name], release = known[name]
            releases.add(release)
        elif name == "binarization.W":
            tensors[name] = "binarization.projection"
        elif name.startswith(ATTENTION_PREFIXES):
            tensors[name] = "attention." + name.split("attention.", 1)[1]
    ignored = tuple(name for name in state if name.startswith(BACKBONE_PREFIXES))
    unknown = [name for name in state if name not in tensors and name not in ignored]
    unknown += [name for name in tensors if not state[name].is_floating_point() or state[name].layout != torch.strided]
    if unknown or not tensors or len(releases) > 1 or len(set(tensors.values())) < len(tensors):
        listed = ", ".join(unknown or state)
        raise DataError(
            f"import: {file}: not a network of HAP-VR, S2VS, DnS (fine-grained), ViSiL or VVS, whose files are the ones that "
            f"can be imported; tensors that do not fit: {listed}"
        )
    release = releases.pop() if releases else ("visil" if "visil_head." in next(iter(tensors)) else "s2vs")
    return release, tensors, ignored


def _dims(weights: Mapping[str, Tensor], dims: int | None, file: Path) -> int:
    """Values per region, as the weights tell, or else the caller."""
    for name, axis in (("attention.context_vector.weight", -1), ("binarization.projection", 0)):
        if name in weights:
            return weights[name].shape[axis] if weights[name].ndim else 0
    if dims is None:
        raise DataError(f"import: {file}: no tensor tells the dimensions of a region; give dims, e.g. dims=512")
    return dims


def _settings(
    release: str,
    weights: Mapping[str, Tensor],
    recorded: Mapping[str, Any],
    *,
    rates: tuple[float | None, float | None],
    symmetric_chamfer: bool,
    file: Path,
) -> tuple[NetworkSettings, list[str]]:
    notes: list[str] = []
    pooling, rate = [], []
    paper = NetworkSettings()
    for level, key, default, wanted in (
        ("f", "f2f_sim_module", paper.spatial_rate, rates[0]),
        ("v", "v2v_sim_module", paper.temporal_rate, rates[1]),
    ):
        module, top = recorded.get(key), recorded.get(f"{level}_topk_rate", default)
        way, fixed = SIMILARITY_MODULES.get(str(module), ("chamfer", top if release == "hap-vr" else 0.0))
        pooling.append(way)
        rate.append(fixed if wanted is None else wanted)
    if release == "hap-vr" and "f_topk_rate" not in recorded and None in rates:
        notes.append(
            f"the file records no top-k rates: the paper's {paper.spatial_rate} and {paper.temporal_rate} are used"
        )
    symmetric = symmetric_chamfer or recorded.get("symmetric") is True
    if symmetric and max(rate) > 0:
        notes.append("symmetric: both directions use the recorded rates; the release's code falls back to 0.3 there")
    gated = "attention.transform.weight" in weights
    context, projection = weights.get("attention.context_vector.weight"), weights.get("binarization.projection")
    if release == "visil" and not symmetric:
        notes.append("scored as ViSiL_v; if the file is ViSiL_sym, import it again with --symmetric-chamfer")
    if context is not None and not gated and release == "visil":
        notes.append(f"the context vector has norm {context.norm():.4g} and is used as it is, like in the release")
    try:
        settings = NetworkSettings(
            spatial_rate=rate[0],
            temporal_rate=rate[1],
            spatial_pooling=pooling[0],
            temporal_pooling=pooling[1],
            attention=context is not None,
            attention_form="gated" if gated or context is None else "linear" if release == "visil" else "cosine",
            binary_bits=0 if projection is None or not projection.ndim else projection.shape[-1],
            comparator=any(name.startswith("comparator.") for name in weights),
            padding_mode="replicate" if release == "visil" else "zeros",
            min_frames=8 if release == "hap-vr" else 4,
            symmetric_chamfer=symmetric,
        )
    except ValidationError as error:
        raise DataError(f"import: {file}: its settings cannot be used: {explain(error)}") from error
    return settings, notes
