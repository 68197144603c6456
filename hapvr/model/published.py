"""Checkpoints of the HAP-VR, S2VS, DnS, ViSiL and VVS releases as networks of this package, told
apart by what they hold.

Files that others pickled are read without running any code of theirs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_sha256, require_regular
from hapvr.model.checkpoint import build_network, describe_mismatches
from hapvr.model.family import VideoNetwork
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, VvsSettings, needs_extras
from hapvr.settings import first_line

MAX_UNPACKED_BYTES = 1 << 30
VVS_PARTS = {"tsm_tgm_model": "swg/", "ddm_model": "ddm/"}
"""The two networks of a file of VVS, and what their tensors are called by here."""

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
"""What tensor names of the releases begin with, what replaces it here, and the release, where it
tells. "s2vs" includes the fine-grained students of DnS, which have the same names."""

LAST_LAYERS = {
    "comparator.fconv.": "comparator.output.",
    "topic.fconv.": "topic.last.",
    "topic.aconv.": "topic.join.",
}

IGNORED = (
    *("cnn.", "feature_extractor.", "normalizer."),
    *(
        f"{part}{name}"
        for part in VVS_PARTS.values()
        for name in ("pca_layer.", "zero", "gamma", "saliency_thr")
    ),
)
"""Tensors of a backbone, which is configured elsewhere, of a PCA, which is read by itself, and
constants of losses."""

PCA = "swg/pca_layer."
"""Of a file of VVS: mean, components, and denominator, the square roots of the variances."""

VVS_NOTES = (
    "the file records no temperatures: those of the paper are used (512 for topic guidance, "
    "1 for the others)",
    "the vectors need this file's own PCA: `hapvr models import --pca` makes it the "
    "whitening of a data root",
)


class Inert:
    """Replaces a class or function of the file: takes any arguments, runs nothing, and keeps the
    state."""

    state: Mapping[str, Any] = {}

    def __new__(cls, *arguments: object, **options: object) -> Inert:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        self.state = dict(state) if isinstance(state, dict) else {}


def read_archive(file: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The network's tensors in a .pth or .pt, a .safetensors or a .npz file, on the CPU, by
    published name; and the settings that the file holds. No class or function that it names is run.

    Pickles are read with weights_only=True; `Inert` replaces every name that is not on torch's own
    list. Raises DataError for a file that is missing, no regular file, of another format, or names
    something that torch refuses even so."""
    content: Any
    # A damaged or hostile file can make the readers raise any exception; all of them mean that the
    # file is refused.
    try:
        require_regular(file)  # a device may never end
        unpacked = (
            sum(one.file_size for one in zipfile.ZipFile(file).infolist())
            if zipfile.is_zipfile(file)
            else 0
        )
        if unpacked > max(MAX_UNPACKED_BYTES, 2 * file.stat().st_size):  # torch does not compress
            raise ValueError(f"it unpacks to {unpacked} bytes")
        if unpacked and (part := zipfile.ZipFile(file).testzip()):  # torch compares no checksums
            raise ValueError(f"{part} in it is damaged")
        if file.suffix == ".safetensors":
            content = load_file(file)
        elif file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                content = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        else:
            names = (
                sorted(get_unsafe_globals_in_checkpoint(file)) if zipfile.is_zipfile(file) else []
            )
            with safe_globals([(type("Inert", (Inert,), {}), name) for name in names]):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's message advises to load without protection, so only its cause is passed on.
        reason = first_line(error.__context__ or error)
        raise DataError(
            f"weights: {file} cannot be read: {reason}; wanted a state dict saved by "
            "torch.save, a .safetensors or a .npz file"
        ) from error
    content = content if isinstance(content, Mapping) else {}
    places = [{own: content.get(name) for name, own in VVS_PARTS.items()}]
    places += [{"": content.get(key)} for key in ("model", "state_dict", "teacher")] + [
        {"": content}
    ]
    for parts in places:
        # DataParallel and DDP put a prefix before every name.
        tensors = {
            f"{part}{str(name).removeprefix('module.')}": value.detach()
            for part, state in parts.items()
            for name, value in (state.items() if isinstance(state, Mapping) else ())
            if isinstance(value, Tensor)
            and value.layout == torch.strided
            and value.device.type == "cpu"
            if value.dtype != torch.float4_e2m1fn_x2 and not value.is_quantized
            if value.nbytes <= value.untyped_storage().nbytes()  # not expanded
        }
        if tensors:
            settings = content.get("args")
            settings = settings.state if isinstance(settings, Inert) else settings
            return tensors, settings if isinstance(settings, Mapping) else {}
    raise DataError(
        f"weights: {file} holds no state dict; wanted one, or one under the key 'model' or "
        "'state_dict'"
    )


def own_name(published: str) -> tuple[str, str]:
    """The name of a published tensor here, and the release that it shows, "" if it is in several;
    ("", "") for others."""
    for prefix, own, release in PREFIXES:
        if published.startswith(prefix):
            name = own + published.removeprefix(prefix)
            last = next((layer for layer in LAST_LAYERS if name.startswith(layer)), "")
            return LAST_LAYERS.get(last, "") + name.removeprefix(last), release
    return "", ""


def import_released(
    file: Path, *, dims: int | None = None, symmetric_chamfer: bool = False
) -> tuple[VideoNetwork, dict[str, Any]]:
    """Read a released checkpoint of any family. Its tensors tell architecture and sizes; no code in
    it is run.

    Returns the network and a report, as JSON can hold it: release, "hap-vr", "s2vs" (also DnS
    students), "visil" or "vvs"; tensors, our name of each published tensor; ignored, those that are
    not weights of the network; notes on the scores; sha256 of the file.

    dims: values per region, needed only if no tensor tells. symmetric_chamfer: the file is
    ViSiL_sym, whose tensors look like those of ViSiL_v. Raises DataError, which names each tensor
    that does not fit."""
    state, recorded = read_archive(file)
    ignored = [name for name in state if name.startswith(IGNORED)]
    found = {name: own_name(name) for name in state if name not in ignored}
    names = {name: own for name, (own, _) in found.items()}
    shown = {release for _, release in found.values()} - {""}
    unknown = [name for name, own in names.items() if not own]
    if unknown or not names or len(shown) > 1 or len({*names.values()}) < len(names):
        raise DataError(
            f"import: {file}: not a network of HAP-VR, S2VS, DnS (fine-grained), ViSiL or "
            "VVS, whose files are the ones that "
            f"can be imported; tensors that do not fit: {', '.join(unknown or state)}"
        )
    release = (
        shown.pop()
        if shown
        else ("visil" if next(iter(names)).startswith("visil_head.") else "s2vs")
    )
    weights = {own: state[name].contiguous() for name, own in names.items()}
    weights = {
        own: value.float() if value.is_floating_point() else value for own, value in weights.items()
    }
    try:
        told = (("attention.context_vector.weight", 1), ("binarization.projection", 0))
        sizes = [weights[name].shape[axis] for name, axis in told if name in weights]
        sizes += [state[name].shape[-1] for name in (f"{PCA}components",) if name in state]
        if 0 in (sizes or [dims or 0]):
            raise ArgumentError(
                "no tensor tells the dimensions of a region; give dims, e.g. dims=512"
            )
        settings, notes = _settings(release, weights, recorded, symmetric=symmetric_chamfer)
        extras_dims = weights["distractor.layer1.weight"].shape[1] if needs_extras(settings) else 0
        build = partial(
            build_network, settings, dims=sizes[0] if sizes else dims or 0, extras_dims=extras_dims
        )
        with torch.device(
            "meta"
        ):  # shapes alone: a network that the tensors do not fit takes no memory
            wanted = build().state_dict()
    except (ValidationError, ArgumentError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(
            f"import: {file}: its settings or shapes cannot be used: {first_line(error)}"
        ) from error
    for name in wanted:
        if name.endswith("num_batches_tracked"):  # counts steps only, and older files leave it out
            weights.setdefault(name, torch.zeros((), dtype=torch.long))
    published = {own: name for name, own in names.items()}

    def as_published(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            published.get(name, f"{name} (as named here)"): tensor
            for name, tensor in tensors.items()
        }

    if mismatches := describe_mismatches(as_published(wanted), as_published(weights)):
        raise DataError(
            f"import: {file} does not fit the network that its tensors tell of: "
            f"{'; '.join(mismatches)}"
        )
    network = build()
    network.load_state_dict(weights)
    report = {
        "release": release,
        "tensors": names,
        "ignored": ignored,
        "notes": notes,
        "sha256": file_sha256(file),
    }
    return network.eval(), report


def _settings(
    release: str, weights: Mapping[str, Tensor], recorded: Mapping[str, Any], *, symmetric: bool
) -> tuple[AnyNetworkSettings, list[str]]:
    """What weights and recorded settings tell of a network, and notes on it."""
    parts = {name.partition(".")[0] for name in weights}
    if release == "vvs":
        values: dict[str, Any] = {
            "distractor_discrimination": "distractor" in parts,
            "temporal_saliency": "saliency" in parts,
            "topic_guidance": "topic" in parts,
            "topic": {"hierarchy": "topic.join.weight" in weights or "topic" not in parts},
        }
        if "distractor" in parts:
            values["distractor"] = {
                "hidden": [weights[f"distractor.layer{layer}.weight"].shape[0] for layer in (1, 2)]
            }
        if "saliency" in parts:
            values["saliency"] = {"width": weights["saliency.conv1.weight"].shape[0]}
        return VvsSettings.model_validate(values), list(VVS_NOTES)
    paper, rates, notes = NetworkSettings(), [], []
    for level, default in (("f", paper.spatial_rate), ("v", paper.temporal_rate)):
        way = str(recorded.get(f"{level}2{level}_sim_module", "TopKChamfer"))
        top = recorded.get(f"{level}_topk_rate", default) if release == "hap-vr" else 0.0
        rates.append({"TopKChamfer": top, "Chamfer": 0.0, "Average": 1.0}[way])
    if release == "hap-vr" and "f_topk_rate" not in recorded:
        notes.append(
            f"the file records no top-k rates: the paper's {rates[0]} and {rates[1]} are used"
        )
    symmetric = symmetric or recorded.get("symmetric") is True
    if symmetric and max(rates) > 0:
        notes.append(
            "symmetric: both directions use the recorded rates; the release's code falls "
            "back to 0.3 there"
        )
    if release == "visil" and not symmetric:
        notes.append(
            "scored as ViSiL_v; if the file is ViSiL_sym, import it again with --symmetric-chamfer"
        )
    gated = "attention.transform.weight" in weights
    settings = NetworkSettings(
        spatial_rate=rates[0],
        temporal_rate=rates[1],
        attention="attention" in parts,
        attention_form="gated" if gated else "linear" if release == "visil" else "cosine",
        binary_bits=weights["binarization.projection"].shape[1] if "binarization" in parts else 0,
        comparator="comparator" in parts,
        padding_mode="replicate" if release == "visil" else "zeros",
        min_frames=8 if release == "hap-vr" else 4,
        symmetric_chamfer=symmetric,
    )
    return settings, notes
