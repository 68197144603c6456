"""The frozen networks: the backbone g, frames to nine region vectors each (method 1.2; ViSiL,
HAP-VR 3.1), and the teacher g', frames to one embedding each (DINO ViT-S/16, [CLS] of the last
block; HAP-VR 3.4).

Any network in timm can be the backbone. A network of several scales (ResNet, MobileNet, ConvNeXt,
Swin) gives L3-iMAC over its last four scales. A network of one scale (a vision transformer) gives
regions pooled from its last patch tokens. Any network that gives one vector per picture can be the
teacher: its embeddings become pseudo labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.model.family import join_extras
from hapvr.model.settings import NUM_REGIONS
from hapvr.networks import weights
from hapvr.networks.batches import Embed
from hapvr.networks.packaged import stated_settings
from hapvr.networks.region_graph import GRID, region_kernel
from hapvr.networks.settings import BackboneConfig, PseudoLabelSettings, TeacherConfig
from hapvr.networks.torch_runtime import choose_device, torch_embedder, whitened
from hapvr.networks.whitening import Whitening


@dataclass(frozen=True)
class Backbone(weights.FrozenNetwork):
    """network: [B, 3, H, W] float32 -> maps [B, C_l, H_l, W_l]. descriptor: of DESCRIPTORS."""

    section: ClassVar[str] = "backbone"

    descriptor: str = "regions"

    @property
    def num_vectors(self) -> int:
        """R, vectors of a frame."""
        return NUM_REGIONS if self.descriptor == "regions" else 1

    def embedder(self, whitening: Whitening | None, device: str, *, extras: bool = False) -> Embed:
        """See `FrameEncoder`."""
        place = choose_device(device)
        whiten = whitened(whitening, place)
        if not extras:
            return torch_embedder(self, "regions", place, after=whiten)

        def finish(vectors: Tensor) -> Tensor:
            return join_extras(whiten(vectors[:, :NUM_REGIONS]), *frame_extras(vectors))

        return torch_embedder(self, "regions_and_means", place, after=finish)

    def regions(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, H, W] uint8, H = W = crop_px. Returns [B, 9, C] float32 unit vectors,
        before whitening; with another `backbone.descriptor`, one vector per frame, [B, 1, C].
        """
        vectors = DESCRIPTORS[self.descriptor](self.output(frames))
        return vectors if vectors.dim() == 3 else vectors[:, None]

    def regions_and_means(self, frames: Tensor) -> Tensor:
        """As `regions`, with a tenth row: the mean over regions before any normalisation. Returns
        [B, 10, C]."""
        maps = self.output(frames)
        means = torch.cat([pooled.flatten(2).mean(-1) for pooled in pooled_maps(maps)], dim=1)
        return torch.cat([region_vectors(maps), means[:, None]], dim=1)


class PatchTokens(nn.Module):
    """A vision transformer whose output is one map of regions: means of its last patch tokens over
    3 x 3 windows. These are the windows of L3-iMAC's last scale, three sevenths of the side wide.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> one map [B, C, 3, 3]."""
        (tokens,) = self.transformer.forward_intermediates(  # type: ignore[operator]
            pixels, indices=1, norm=True, intermediates_only=True
        )
        return [F.avg_pool2d(tokens, *region_kernel(-1, int(tokens.shape[-1])))]


def load_backbone(config: BackboneConfig) -> Backbone:
    """The backbone of a configuration. A network of four scales is taken as it is, one of a single
    scale as `PatchTokens`. Raises DataError for weights that are missing or do not fit, ConfigError
    for an architecture, option or crop without 3 x 3 regions."""
    network, identity = weights.create_network(
        config, features_only=True, out_indices=(-4, -3, -2, -1)
    )
    if len(set(network.feature_info.reduction())) == 1:  # type: ignore[operator, union-attr]
        network = PatchTokens(weights.create_embedding_network(config)[0])
        identity = replace(identity, sha256=weights.state_sha256(network.state_dict()))

    mean, std = weights.pixel_statistics(config)
    backbone = Backbone(
        network=network,
        identity=identity,
        settings=stated_settings(config, identity),
        crop_px=config.crop_px,
        mean=mean,
        std=std,
        precision=config.precision,
        descriptor=config.descriptor,
    )
    regions, problem = _try_out(backbone.regions, config.crop_px)
    if not problem and regions.shape[1] != config.num_vectors:
        problem = f"{regions.shape[1]} regions"
    if problem:
        raise ConfigError(
            f"backbone: {identity.architecture} gives no 3 x 3 regions of crops of "
            f"{config.crop_px} px ({problem}); set backbone.crop_px to 224 or to what the network "
            "was made for"
        )

    return backbone


@torch.inference_mode()
def _try_out(run: Callable[[Tensor], Any], crop_px: int) -> tuple[Any, str]:
    """The output of a network for one black frame, or why there is none, so that the network is
    refused before any work is done."""
    try:
        return run(torch.zeros(1, 3, crop_px, crop_px, dtype=torch.uint8)), ""
    except (AssertionError, AttributeError, RuntimeError, ValueError) as error:
        return None, str(error).partition("\n")[0][:200] or type(error).__name__


def region_vectors(maps: Sequence[Tensor]) -> Tensor:
    """L3-iMAC: feature maps to unit region vectors. maps: [B, C_l, H_l, W_l], see `pooled_maps`.
    All are L2-normalised over channels, concatenated, and L2-normalised. Returns [B, 9, sum C_l].
    """
    vectors = torch.cat([F.normalize(regions, dim=1) for regions in pooled_maps(maps)], dim=1)
    return F.normalize(vectors.flatten(2).transpose(1, 2), dim=-1)


def imac(maps: Sequence[Tensor]) -> Tensor:
    """iMAC: the largest value of each channel of each map (TCA Eq. 1).

    maps: [B, C_l, H_l, W_l]. Returns [B, sum C_l], the maps one after the other."""
    return torch.cat([values.float().amax((2, 3)) for values in maps], dim=1)


def l3_irmac(maps: Sequence[Tensor]) -> Tensor:
    """L3-iRMAC: the sum over the regions of L3-iMAC, made a unit vector for each map (TCA 3.2).

    maps: [B, C_l, H_l, W_l]. Returns [B, sum C_l], the maps one after the other."""
    vectors = [F.normalize(regions.sum((2, 3)), dim=1) for regions in pooled_maps(maps)]
    return torch.cat(vectors, dim=1)


def imac_released(maps: Sequence[Tensor]) -> Tensor:
    """iMAC as TCA's release has it: of maps that have unit norm over channels at each position.

    maps: [B, C_l, H_l, W_l]. Returns [B, sum C_l], a unit vector for each map one after the other.
    """
    vectors = [
        F.normalize(F.normalize(values.float(), dim=1).amax((2, 3)), dim=1) for values in maps
    ]
    return torch.cat(vectors, dim=1)


def l3_irmac_released(maps: Sequence[Tensor]) -> Tensor:
    """L3-iRMAC as TCA's release has it: the sum over 3 x 3 max-pooled regions, each a unit vector,
    of maps with unit norm over channels at each position.

    maps: [B, C_l, H_l, W_l], sides of 7 or more. With p = floor(2 side / 7) the windows are
    floor(1.5 p) wide and p apart. Returns [B, sum C_l], a unit vector for each map one after the
    other."""
    vectors = []
    for values in maps:
        height, width = values.shape[-2:]
        stride = max(2 * min(int(height), int(width)) // 7, 2)
        regions = F.max_pool2d(F.normalize(values.float(), dim=1), stride * 3 // 2, stride=stride)
        assert regions.shape[-2:] == GRID, (
            f"maps of {(height, width)} give {tuple(regions.shape[-2:])} regions"
        )
        vectors.append(F.normalize(F.normalize(regions, dim=1).sum((2, 3)), dim=1))

    return torch.cat(vectors, dim=1)


DESCRIPTORS = {
    "regions": region_vectors,
    "imac": imac,
    "l3_irmac": l3_irmac,
    "imac_released": imac_released,
    "l3_irmac_released": l3_irmac_released,
}
"""Maps [B, C_l, H_l, W_l] to [B, 9, C] or [B, C], by the name that `backbone.descriptor` gives it.
"""


def frame_extras(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled vectors [B, C] and magnitudes [B] from the result of `Backbone.regions_and_means` [B,
    10, C]."""
    regions = vectors[:, :NUM_REGIONS]
    means = vectors[:, NUM_REGIONS]
    return F.normalize(regions.mean(1), dim=-1), means.norm(dim=-1)


def pooled_maps(maps: Sequence[Tensor]) -> list[Tensor]:
    """Feature maps to regions [B, C_l, 3, 3] float32, before any normalisation. maps: [B, C_l, H_l,
    W_l]; a map of 3 x 3 is taken as it is. Each of four larger maps is max-pooled with a kernel of
    about half its size and half that stride to 3 x 3."""
    pooled = []
    for scale, values in enumerate(maps):
        if values.shape[-2:] != GRID:
            kernel, stride = region_kernel(scale, int(values.shape[-1]))
            values = F.max_pool2d(values, kernel, stride)

        pooled.append(values.float())

    return pooled


@dataclass(frozen=True)
class Teacher(weights.FrozenNetwork):
    """dims: D'."""

    section: ClassVar[str] = "teacher"

    dims: int = field(kw_only=True)

    def resized(self, frames: Tensor) -> Tensor:
        """[B, 3, S, S] uint8 -> the same frames with sides of crop_px."""
        if frames.shape[-1] == self.crop_px:
            return frames
        resized = F.interpolate(
            frames.float(), size=(self.crop_px, self.crop_px), mode="bilinear", antialias=True
        )
        return resized.round().clamp(0, 255).to(frames.dtype)

    def embed(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, crop_px, crop_px] uint8. Returns [B, D'] float32, not normalised."""
        embeddings: Tensor = self.output(frames)
        return embeddings.float()

    def embedder(self, device: str | torch.device) -> Embed:
        """[B, 3, S, S] uint8 crops -> [B, D'] float32 embeddings; moves the network to `device`
        once."""
        return torch_embedder(self, "embed", choose_device(device), before=self.resized)


def load_teacher(config: TeacherConfig, *, crop_px: int) -> Teacher:
    """The teacher of a configuration, for frames of crop_px unless the configuration names a crop
    of its own. Raises DataError for weights that cannot be had or do not fit, ConfigError for an
    architecture that timm does not know or that gives no single vector."""
    network, identity = weights.create_embedding_network(config)
    mean, std = weights.pixel_statistics(config)
    settings = stated_settings(config, identity)
    if config.crop_px is not None:
        settings["crop_px"] = config.crop_px
    side = config.crop_px or crop_px
    teacher = Teacher(
        network=network,
        identity=identity,
        settings=settings,
        crop_px=side,
        mean=mean,
        std=std,
        precision=config.precision,
        dims=0,
    )
    output, problem = _try_out(teacher.output, side)
    if not isinstance(output, Tensor) or output.dim() != 2:
        raise ConfigError(
            f"teacher: {identity.architecture} gives no single vector for a crop of {side} "
            f"px{f': {problem}' if problem else ''}; set teacher.crop_px to what the network was "
            "made for, name another architecture, or give teacher.options such as "
            "{global_pool: avg}"
        )

    return replace(teacher, dims=int(output.shape[1]))


def pseudo_labels(query: Tensor, reference: Tensor, settings: PseudoLabelSettings) -> Tensor:
    """Ternary labels of all frame pairs from teacher embeddings (HAP-VR Eq. 13 and 14).

    query: [..., T, D]; reference: [..., T', D]; both finite, and leading dimensions broadcast. For
    each query frame, the part `top_rate` of reference frames with the largest cosine is positive
    (1), the part `bottom_rate` with the smallest is negative (-1), and the rest is ignored (0).
    Returns int8 [..., T, T'].

    A frame is in the top if less than top_rate of its row lies strictly above it. Cosines that are
    equal to within 1e-6 share a label, and a frame that is both top and bottom is ignored."""
    # At least float32: half precision makes ties of distinct cosines.
    dtype = torch.promote_types(torch.promote_types(query.dtype, reference.dtype), torch.float32)
    with torch.no_grad():
        of_query = F.normalize(query.to(dtype), dim=-1)
        of_reference = F.normalize(reference.to(dtype), dim=-1)
        cosine = of_query @ of_reference.transpose(-1, -2)
        # Products of equal frames may differ in the last bits, but must tie.
        values = (cosine * 2**20).round().contiguous()
        ordered = values.sort(-1).values
        size = values.shape[-1]
        above = size - torch.searchsorted(ordered, values, right=True)
        below = torch.searchsorted(ordered, values)
        # The margin keeps a product such as 0.14 * 50 = 7.000000000000001 from admitting an eighth
        # frame.
        top = above < settings.top_rate * size - 1e-9
        bottom = below < settings.bottom_rate * size - 1e-9
        return top.to(torch.int8) - bottom.to(torch.int8)
