"""Tensors of VVS's release under the names of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hapvr.model.settings import VvsSettings

NETWORKS = {"tsm_tgm_model": "swg", "ddm_model": "ddm"}
"""The two networks of a file, and how they are called here: suppression weights and distractor network."""

COMPONENTS = "swg/pca_layer.components"
IGNORED = ("pca_layer.", "zero", "gamma", "saliency_thr")
"""Tensors that are not weights. The PCA is read by itself; the others are constants of the losses."""

PREFIXES = {
    "ddm/ddm_layer": "distractor.layer",
    "swg/topic_guidance_layer.weight_comperator_layer.": "topic.",
    "swg/comperator_layer.": "comparator.",
    "swg/selfsim_encoder.bottleneck_layer.": "saliency.",
    "swg/selfsim_encoder.attention_layer.": "saliency.encoder.",
}
"""Prefixes of the tensor names of the suppression weights ("swg/") and the distractor network ("ddm/"), and what replaces them."""

RENAMED = {
    "topic.fconv.": "topic.last.",
    "topic.aconv.": "topic.join.",
    "comparator.fconv.": "comparator.output.",
    "saliency.encoder.self_attn.in_proj_": "saliency.encoder.input.",
    "saliency.encoder.self_attn.out_proj.": "saliency.encoder.output.",
}


def own_name(published: str) -> str | None:
    """The name of a published tensor, given with its network ("swg/NAME" or "ddm/NAME"), here; None for other tensors."""
    for prefix, own in PREFIXES.items():
        if published.startswith(prefix):
            name = own + published.removeprefix(prefix)
            for before, after in RENAMED.items():
                if name.startswith(before):
                    name = after + name.removeprefix(before)
            return name
    return None


def is_vvs(content: object) -> bool:
    """Whether what a file holds is a checkpoint of VVS."""
    return isinstance(content, Mapping) and any(isinstance(content.get(name), Mapping) for name in NETWORKS)


def vvs_tensors(content: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Tensor]]:
    """The tensors of a checkpoint by published name, the own name of each weight, and those that are not weights."""
    tensors = {
        f"{short}/{str(name).removeprefix('module.')}": value
        for network, short in NETWORKS.items()
        for name, value in (content.get(network) or {}).items()
        if isinstance(value, Tensor)
    }
    ignored = {name: value for name, value in tensors.items() if name.partition("/")[2].startswith(IGNORED)}
    names = {name: own for name in tensors if name not in ignored and (own := own_name(name)) is not None}
    return tensors, names, ignored


def vvs_settings(weights: Mapping[str, Tensor]) -> tuple[VvsSettings, int]:
    """The settings that weights under own names show, and C of their pooled vectors, 0 without a distractor network.

    Raises pydantic's ValidationError for sizes that no network has.
    """
    parts = {name.partition(".")[0] for name in weights}
    values: dict[str, Any] = {
        "distractor_discrimination": "distractor" in parts,
        "temporal_saliency": "saliency" in parts,
        "topic_guidance": "topic" in parts,
        "topic": {"hierarchy": "topic.join.weight" in weights or "topic" not in parts},
    }
    extras_dims = 0
    if "distractor.layer1.weight" in weights and "distractor.layer2.weight" in weights:
        first, second = weights["distractor.layer1.weight"], weights["distractor.layer2.weight"]
        values["distractor"] = {"hidden": (first.shape[0], second.shape[0])}
        extras_dims = first.shape[-1]
    if "saliency.conv1.weight" in weights:
        values["saliency"] = {"width": weights["saliency.conv1.weight"].shape[0]}
    return VvsSettings.model_validate(values), extras_dims


def vvs_pca(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The PCA of a checkpoint under the names of other releases: mean [C], V [C, D] and d [D], the variances."""
    ignored = vvs_tensors(content)[2]
    theirs = {"mean": "mean", "V": "components", "d": "denominator"}
    stored = {name: f"swg/pca_layer.{their}" for name, their in theirs.items()}
    found = {name: ignored[place] for name, place in stored.items() if place in ignored}
    return found | ({"d": found["d"].double().square()} if "d" in found else {})
