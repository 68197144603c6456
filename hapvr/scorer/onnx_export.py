"""Write a model's networks as ONNX files, and check them against torch on real pairs. `hapvr.scorer.onnx_networks` runs them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import HapvrError
from hapvr.model.family import VideoNetwork
from hapvr.model.layers import Comparator
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.model.similarity import reduce_regions
from hapvr.networks.backbone import Backbone
from hapvr.networks.packaged import PackagedBackbone
from hapvr.networks.whitening import Whitening
from hapvr.scorer.description import ONNX_FOLDER, ONNXName, ONNXRecord
from hapvr.scorer.onnx_networks import ONNXNetworks

OPSET = 18
TOLERANCE = 1e-4
"""Largest difference of a similarity to torch's at which the files are kept."""


class NotExported(HapvrError):
    """This model cannot be written as ONNX; the message says why, as the end of a sentence."""


def write_onnx(
    folder: Path,
    *,
    backbone: Backbone,
    whitening: Whitening,
    network: VideoNetwork,
    frames: Sequence[Tensor],
    features: Sequence[Tensor],
) -> dict[str, Any]:
    """Write <folder>/onnx, and return what scorer.json says of it: opset, settings, size and digest of each file, the check.

    frames: crops [N, 3, S, S] uint8 of real videos; features: [T, R, D] of real videos. All pairs of the ones and all pairs
    of the others are scored by torch and by the engine. Raises NotExported for a model that is not exported, without a video to
    check it on, and where a similarity differs by more than TOLERANCE; nothing is left then.
    """
    if not frames and not features:
        raise NotExported("there is no video to check it on")
    if not isinstance(network, SimilarityNetwork):
        raise NotExported("only networks of the family `similarity` are exported")
    backbone = dataclasses.replace(backbone, precision="float32")
    place = folder / ONNX_FOLDER
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        _export(place, backbone, whitening, network)
        record: dict[str, Any] = {
            "opset": OPSET,
            "settings": network.settings.model_dump(mode="json"),
            "files": sorted(path.name for path in place.iterdir()),
        }
        made = ONNXNetworks(folder, ONNXRecord.model_validate(record))
        record["check"] = _checked(made, backbone, whitening, network, frames, features)
        if not record["check"]["largest_difference"] <= TOLERANCE:
            raise NotExported(f"its similarities differ from torch's by {record['check']['largest_difference']:.2g}")
    except BaseException:
        shutil.rmtree(place)
        raise
    return record


class RegionGraph(nn.Module):
    """Frames [B, 3, S, S] uint8 -> whitened regions [B, R, D]."""

    def __init__(self, backbone: Backbone, whitening: Whitening) -> None:
        super().__init__()
        self.backbone = backbone
        self.network = backbone.network
        self.mean = nn.Buffer(torch.from_numpy(whitening.mean))
        self.scale = nn.Buffer(torch.from_numpy(whitening.scale))

    def forward(self, frames: Tensor) -> Tensor:
        return F.normalize((self.backbone.regions(frames) - self.mean) @ self.scale, dim=-1)


class EmbedGraph(nn.Module):
    """Regions [T, R, D] -> embedding [T, R, d]."""

    def __init__(self, network: SimilarityNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, regions: Tensor) -> Tensor:
        return self.network.embed(regions)


class FrameGraph(nn.Module):
    """Embeddings [T, R, d] and [T', R, d] -> frame similarities [T, T']."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, query: Tensor, reference: Tensor) -> Tensor:
        columns = reference.permute(2, 1, 0).flatten(1)
        products = (query.flatten(0, 1) @ columns).reshape(
            query.shape[0], query.shape[1], reference.shape[1], reference.shape[0]
        )
        return reduce_regions(
            products,
            rate=self.settings.spatial_rate,
            symmetric=self.settings.symmetric_chamfer,
        )


class CompareGraph(nn.Module):
    """The comparator with hard-tanh in plain operations. [T, T'] -> [T // 4, T' // 4]."""

    def __init__(self, comparator: Comparator) -> None:
        super().__init__()
        self.comparator = comparator

    def forward(self, frame: Tensor) -> Tensor:
        hidden = F.relu(F.max_pool2d(self.comparator.conv1(frame[None, None]), 2))
        hidden = F.relu(F.max_pool2d(self.comparator.conv2(hidden), 2))
        raw: Tensor = self.comparator.output(F.relu(self.comparator.conv3(hidden)))
        return raw[0, 0].clamp(-1, 1)


def _export(place: Path, backbone: Backbone, whitening: Whitening, network: SimilarityNetwork) -> None:
    some = torch.export.Dim.DYNAMIC
    pixels = torch.zeros(2, 3, backbone.crop_px, backbone.crop_px, dtype=torch.uint8)
    with torch.no_grad():
        regions = RegionGraph(backbone, whitening)(pixels)
        query, reference = (network.embed(regions[:1].expand(count, -1, -1).contiguous()) for count in (12, 20))
    one, both = ({0: some},), ({0: some}, {0: some})
    graphs: dict[ONNXName, tuple[nn.Module, tuple[Tensor, ...], Any, list[str], str]] = {
        "backbone.onnx": (RegionGraph(backbone, whitening), (pixels,), one, ["frames"], "regions"),
        "embed.onnx": (EmbedGraph(network), (regions,), one, ["regions"], "embedding"),
        "frames.onnx": (
            FrameGraph(network.settings), (query, reference), both, ["query", "reference"], "frame_similarity"
        ),
    }  # fmt: skip
    if network.comparator is not None:
        compare, sides = CompareGraph(network.comparator), ({0: some, 1: some},)
        graphs["compare.onnx"] = (compare, (torch.zeros(12, 20),), sides, ["frame_similarity"], "refined")
    if (packaged := as_packaged(backbone)) is not None:
        del graphs["backbone.onnx"]
        (place / "backbone.onnx").write_bytes(packaged.graph(whitening).SerializeToString())
    for name, (graph, example, shapes, inputs, output) in graphs.items():
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of the exporter's own use of torch
                program = torch.onnx.export(
                    graph.eval(),
                    example,
                    dynamo=True,
                    dynamic_shapes=shapes,
                    input_names=inputs,
                    output_names=[output],
                    opset_version=OPSET,
                    external_data=False,
                    verbose=False,
                )
            assert program is not None
            program.save(place / name)
        except Exception as error:  # the exporter raises classes of its own and of torch's compiler
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            said = " ".join(str(cause).split())[:200] or type(cause).__name__
            raise NotExported(f"torch.onnx cannot export {name} ({said})") from error


def as_packaged(backbone: Backbone) -> PackagedBackbone | None:
    """The same network as one whose graph is written without torch; None for any other."""
    if backbone.identity.source != "packaged" or "options" in backbone.settings or backbone.descriptor != "regions":
        return None
    return PackagedBackbone(backbone.identity, backbone.settings, backbone.crop_px, backbone.precision)


@torch.inference_mode()
def _checked(
    made: ONNXNetworks,
    backbone: Backbone,
    whitening: Whitening,
    network: SimilarityNetwork,
    frames: Sequence[Tensor],
    features: Sequence[Tensor],
) -> dict[str, Any]:
    """How many pairs were scored by both, and how far they are apart at most."""
    of_frames = [
        (
            network.embed(torch.from_numpy(whitening.apply(backbone.regions(crops)))),
            made.embed(made.regions(crops.numpy())),
        )
        for crops in frames
    ]
    of_features = [(network.embed(video.float()), made.embed(video.float().numpy())) for video in features]
    largest = 0.0
    for videos in (of_frames, of_features):
        for (query, own_query), (reference, own_reference) in itertools.product(videos, videos):
            wanted = float(network.score(query[None], reference[None])[0, 0])
            difference = abs(float(made.similarities(own_query, [own_reference])[0]) - wanted)
            largest = difference if math.isnan(difference) else max(largest, difference)
    return {
        "pairs_of_frames": len(of_frames) ** 2,
        "pairs_of_features": len(of_features) ** 2,
        "largest_difference": largest,
    }
