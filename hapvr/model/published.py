"""Checkpoints of the HAP-VR, S2VS, DnS, ViSiL and VVS releases as networks of this package, told
apart by what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_sha256
from hapvr.model.archive import read_archive
from hapvr.model.checkpoint import build_network, describe_mismatches
from hapvr.model.family import VideoNetwork
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, VvsSettings, needs_extras
from hapvr.settings import first_line

PREFIXES = (
    ("comparator_module.", "comparator.", "hap-vr"),
    ("visil_head.video_comperator.", "comparator.", "visil"),
    ("visil_head.attention.", "attention.", ""),
    ("visil_head.", "comparator.", "s2vs"),
    ("video_comperator.", "comparator.", "visil"),
    ("attention.", "attention.", ""),
    ("binarization.W", "binarization.projection", ""),
    ("ddm/ddm_layer", "distractor.layer", "vvs"),
    ("swg/topic_guidance_layer.weight_comperator_layer.", "topic.", "vvs"),
    ("swg/comperator_layer.", "comparator.", "vvs"),
    ("swg/selfsim_encoder.bottleneck_layer.", "saliency.", "vvs"),
    ("swg/selfsim_encoder.attention_layer.", "saliency.encoder.", "vvs"),
)
"""Beginnings of tensor names in the releases, what replaces them here, and the release, if they
tell it. "s2vs" includes the fine-grained students of DnS, which have the same names."""

LAST_LAYERS = {
    "comparator.fconv.": "comparator.output.",
    "topic.fconv.": "topic.last.",
    "topic.aconv.": "topic.join.",
}

PCA = "swg/pca_layer."
"""The PCA in a file of VVS: mean, components, and denominator, the square roots of the
variances."""

IGNORED = (
    "cnn.",
    "feature_extractor.",
    "normalizer.",
    PCA,
    "swg/zero",
    "swg/gamma",
    "swg/saliency_thr",
    "ddm/pca_layer.",
    "ddm/zero",
    "ddm/gamma",
    "ddm/saliency_thr",
)
"""Tensors of a backbone, which is configured elsewhere, of a PCA, which is read by itself, and
constants of losses."""

DIMENSIONS = (("attention.context_vector.weight", 1), ("binarization.projection", 0))
"""Tensors that show the values of a region, and along which axis."""

POOLING_RATES = {"Chamfer": 0.0, "Average": 1.0}
"""The top-k rates that correspond to fixed ways of pooling, by the name that releases record."""

VVS_NOTES = (
    "the file records no temperatures: those of the paper are used (512 for topic guidance, "
    "1 for the others)",
    "the vectors need this file's own PCA: `hapvr models import --pca` makes it the "
    "whitening of a data root",
)


@dataclass(frozen=True)
class ReleasedTensors:
    """The identified tensors of a released file."""

    release: str
    """"hap-vr", "s2vs" (also DnS students), "visil" or "vvs"."""
    names: dict[str, str]
    """Our name of each published tensor that is a weight of the network."""
    ignored: list[str]
    """The published names of those that are not."""


def own_name(published: str) -> tuple[str, str]:
    """The name of a published tensor here, and the release that it indicates, "" if several have
    it; ("", "") for other tensors."""
    for prefix, own, release in PREFIXES:
        if published.startswith(prefix):
            name = own + published.removeprefix(prefix)
            last = next((layer for layer in LAST_LAYERS if name.startswith(layer)), "")
            return LAST_LAYERS.get(last, "") + name.removeprefix(last), release

    return "", ""


def import_released(
    file: Path, *, dims: int | None = None, symmetric_chamfer: bool = False
) -> tuple[VideoNetwork, dict[str, Any]]:
    """Read a released checkpoint of any family. Its tensors tell the architecture and sizes; no
    code in it is run.

    dims: values per region, needed only if no tensor tells.
    symmetric_chamfer: the file is ViSiL_sym, whose tensors look like those of ViSiL_v.

    Returns the network and a report, as JSON can hold it: release, names of tensors and ignored
    ones, see `ReleasedTensors`; notes on the scores; sha256 of the file.

    Raises:
        DataError: it is not such a checkpoint. Each tensor that does not fit is named."""
    state, recorded = read_archive(file)
    tensors = _identify(file, state)
    weights = _own_weights(state, tensors.names)

    try:
        settings, notes = _settings(tensors.release, weights, recorded, symmetric=symmetric_chamfer)
        build = partial(
            build_network,
            settings,
            dims=_region_dims(state, weights, dims),
            extras_dims=_extras_dims(settings, weights),
        )
        # only shapes: a network that the tensors do not fit takes no memory
        with torch.device("meta"):
            wanted = build().state_dict()
    except (ValidationError, ArgumentError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(
            f"import: {file}: its settings or shapes cannot be used: {first_line(error)}"
        ) from error

    _add_step_counts(weights, wanted)
    _require_fit(file, tensors.names, wanted, weights)
    report = {
        "release": tensors.release,
        "tensors": tensors.names,
        "ignored": tensors.ignored,
        "notes": notes,
        "sha256": file_sha256(file),
    }
    return _filled(build, weights), report


def _identify(file: Path, state: Mapping[str, Tensor]) -> ReleasedTensors:
    """The release of a file, and our names of its tensors. Raises DataError if a tensor belongs to
    no release, or tensors belong to several."""
    ignored = [name for name in state if name.startswith(IGNORED)]
    names = {}
    releases = set()
    for published in state:
        if published not in ignored:
            names[published], release = own_name(published)
            releases.add(release)

    releases.discard("")

    unknown = [name for name, own in names.items() if not own]
    are_of_one_network = len(releases) <= 1 and len(set(names.values())) == len(names)
    if unknown or not names or not are_of_one_network:
        raise DataError(
            f"import: {file}: not a network of HAP-VR, S2VS, DnS (fine-grained), ViSiL or "
            "VVS, whose files are the ones that "
            f"can be imported; tensors that do not fit: {', '.join(unknown or state)}"
        )

    release = releases.pop() if releases else _release_without_comparator(names)
    return ReleasedTensors(release, names, ignored)


def _release_without_comparator(names: Iterable[str]) -> str:
    """The release of a network without a comparator, whose names several releases have."""
    first = next(iter(names))
    return "visil" if first.startswith("visil_head.") else "s2vs"


def _own_weights(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights by our names, in float32."""
    weights = {}
    for published, own in names.items():
        values = state[published].contiguous()
        weights[own] = values.float() if values.is_floating_point() else values

    return weights


def _region_dims(
    state: Mapping[str, Tensor], weights: Mapping[str, Tensor], dims: int | None
) -> int:
    """Values per region, of the first tensor that tells, or else `dims`.

    Raises:
        ArgumentError: nothing tells.
        IndexError: a tensor that should tell has too few dimensions."""
    sizes = [weights[name].shape[axis] for name, axis in DIMENSIONS if name in weights]
    components = state.get(f"{PCA}components")
    if components is not None:
        sizes.append(components.shape[-1])
    if not sizes:
        sizes = [dims or 0]
    if 0 in sizes:
        raise ArgumentError("no tensor tells the dimensions of a region; give dims, e.g. dims=512")
    return sizes[0]


def _extras_dims(settings: AnyNetworkSettings, weights: Mapping[str, Tensor]) -> int:
    """Values of a frame's pooled vector, 0 where the network reads none."""
    return weights["distractor.layer1.weight"].shape[1] if needs_extras(settings) else 0


def _add_step_counts(weights: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Add the counts of steps, which older files lack and nothing reads, as 0."""
    for name in wanted:
        if name.endswith("num_batches_tracked"):
            weights.setdefault(name, torch.zeros((), dtype=torch.long))


def _require_fit(
    file: Path,
    names: Mapping[str, str],
    wanted: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> None:
    """Raise DataError where weights do not fill the network, with the names that the file has."""
    published = {own: name for name, own in names.items()}

    def as_published(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            published.get(name, f"{name} (as named here)"): tensor
            for name, tensor in tensors.items()
        }

    mismatches = describe_mismatches(as_published(wanted), as_published(weights))
    if mismatches:
        raise DataError(
            f"import: {file} does not fit the network that its tensors tell of: "
            f"{'; '.join(mismatches)}"
        )


def _filled(build: Callable[[], VideoNetwork], weights: Mapping[str, Tensor]) -> VideoNetwork:
    """A network with these weights, in evaluation mode."""
    network = build()
    network.load_state_dict(weights)
    return network.eval()


def _settings(
    release: str, weights: Mapping[str, Tensor], recorded: Mapping[str, Any], *, symmetric: bool
) -> tuple[AnyNetworkSettings, list[str]]:
    """The settings of a network, from its weights and recorded settings, and notes on it."""
    if release == "vvs":
        return _vvs_settings(weights), list(VVS_NOTES)
    symmetric = symmetric or recorded.get("symmetric") is True
    settings = _similarity_settings(release, weights, recorded, symmetric=symmetric)
    return settings, _similarity_notes(release, settings, recorded)


def _vvs_settings(weights: Mapping[str, Tensor]) -> VvsSettings:
    """The modules that a network of VVS has, and their widths."""
    parts = _parts(weights)
    values: dict[str, Any] = {
        "distractor_discrimination": "distractor" in parts,
        "temporal_saliency": "saliency" in parts,
        "topic_guidance": "topic" in parts,
        "topic": {"hierarchy": "topic.join.weight" in weights or "topic" not in parts},
    }
    if "distractor" in parts:
        layers = (weights["distractor.layer1.weight"], weights["distractor.layer2.weight"])
        values["distractor"] = {"hidden": [layer.shape[0] for layer in layers]}

    if "saliency" in parts:
        values["saliency"] = {"width": weights["saliency.conv1.weight"].shape[0]}
    return VvsSettings.model_validate(values)


def _similarity_settings(
    release: str, weights: Mapping[str, Tensor], recorded: Mapping[str, Any], *, symmetric: bool
) -> NetworkSettings:
    """The settings of a network of HAP-VR, S2VS, DnS or ViSiL."""
    parts = _parts(weights)
    paper = NetworkSettings()
    is_visil = release == "visil"
    return NetworkSettings(
        spatial_rate=_rate(release, recorded, "f", paper.spatial_rate),
        temporal_rate=_rate(release, recorded, "v", paper.temporal_rate),
        attention="attention" in parts,
        attention_form=_attention_form(release, weights),
        binary_bits=weights["binarization.projection"].shape[1] if "binarization" in parts else 0,
        comparator="comparator" in parts,
        padding_mode="replicate" if is_visil else "zeros",
        min_frames=8 if release == "hap-vr" else 4,
        symmetric_chamfer=symmetric,
    )


def _rate(release: str, recorded: Mapping[str, Any], level: str, of_paper: float) -> Any:
    """The top-k rate of a level, "f" (regions of frames) or "v" (frames of videos). Raises KeyError
    for a way of pooling that no release has."""
    pooling = str(recorded.get(f"{level}2{level}_sim_module", "TopKChamfer"))
    if pooling != "TopKChamfer":
        return POOLING_RATES[pooling]
    return recorded.get(f"{level}_topk_rate", of_paper) if release == "hap-vr" else 0.0


def _attention_form(
    release: str, weights: Mapping[str, Tensor]
) -> Literal["gated", "linear", "cosine"]:
    """See `NetworkSettings.attention_form`."""
    if "attention.transform.weight" in weights:
        return "gated"
    return "linear" if release == "visil" else "cosine"


def _similarity_notes(
    release: str, settings: NetworkSettings, recorded: Mapping[str, Any]
) -> list[str]:
    """Notes for those who compare scores with those of the release."""
    rates = (settings.spatial_rate, settings.temporal_rate)
    notes = []
    if release == "hap-vr" and "f_topk_rate" not in recorded:
        notes.append(
            f"the file records no top-k rates: the paper's {rates[0]} and {rates[1]} are used"
        )

    if settings.symmetric_chamfer and max(rates) > 0:
        notes.append(
            "symmetric: both directions use the recorded rates; the release's code falls "
            "back to 0.3 there"
        )

    if release == "visil" and not settings.symmetric_chamfer:
        notes.append(
            "scored as ViSiL_v; if the file is ViSiL_sym, import it again with --symmetric-chamfer"
        )

    return notes


def _parts(weights: Mapping[str, Tensor]) -> set[str]:
    """The modules of a network that has these weights."""
    return {name.partition(".")[0] for name in weights}
