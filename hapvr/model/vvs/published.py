"""Tensors of VVS's release under the names of this package."""

from __future__ import annotations

PREFIXES = {
    "ddm/ddm_layer": "distractor.layer",
    "swg/topic_guidance_layer.weight_comperator_layer.": "topic.",
    "swg/comperator_layer.": "comparator.",
    "swg/selfsim_encoder.bottleneck_layer.": "saliency.",
    "swg/selfsim_encoder.attention_layer.": "saliency.encoder.",
}
"""Of a tensor of the suppression weights ("swg/") or of the distractor network ("ddm/"), and what replaces it."""

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
