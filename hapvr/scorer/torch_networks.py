"""A model's networks in torch, as a bundle without ONNX files or a GPU runs them; and written as
the ONNX files of `hapvr.scorer.onnx_networks`, which are checked against torch on real pairs."""

import dataclasses
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import DataError
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.similarity import reduce_regions
from hapvr.networks.backbone import Backbone, Graph
from hapvr.networks.extract import choose_device, region_embedder
from hapvr.networks.packaged import OPSET, PackagedBackbone
from hapvr.networks.whitening import Whitening
from hapvr.scorer.onnx_networks import ONNX_FOLDER, Floats, ONNXName, ONNXNetworks, ONNXRecord
from hapvr.settings import first_line

TOLERANCE = 1e-4
"""Largest difference of a similarity to torch's at which the files are kept."""


class TorchNetworks:
    """As `ONNXNetworks`: the reference, in torch on any device; auto: a GPU where there is one.
    network: of any family; the frozen networks have a precision of their own."""

    def __init__(
        self, *, backbone: Backbone, whitening: Whitening, network: VideoNetwork, device: str
    ) -> None:
        self._device = choose_device(device)
        self.network = network.to(self._device).eval()
        self.needs_extras = network.needs_extras
        self.regions = region_embedder(backbone, whitening, device, extras=network.needs_extras)

    @torch.inference_mode()
    def embed(self, regions: NDArray[np.floating]) -> Tensor:
        return self.network.embed(torch.from_numpy(regions).to(self._device))

    def vectors(self, video: Tensor) -> Floats:
        return np.asarray(video.float().cpu().numpy())

    def similarities(self, queries: Sequence[Tensor], references: Sequence[Tensor]) -> Floats:
        return np.asarray(self.network.score_videos(queries, references).numpy())

    def comparisons(
        self, query: Tensor, references: Sequence[Tensor]
    ) -> tuple[Floats, list[Floats]]:
        return self.similarities([query], references)[0], [
            self.frame_similarity(query, one) for one in references
        ]

    def frame_similarity(self, query: Tensor, reference: Tensor) -> Floats:
        return np.asarray(self.network.frame_similarity(query, reference).cpu().numpy())

    def self_similarity(self, video: Tensor) -> Floats:
        return np.asarray(self.network.self_similarity(video).float().cpu().numpy())


class NotExported(DataError):
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
    """Write <folder>/onnx, and return what scorer.json says of it: opset, settings, size and digest
    of each file, the check. frames: crops [N, 3, S, S] uint8 of real videos; features: [T, R, D] of
    real videos. All pairs of the ones and all pairs of the others are scored by torch and by the
    engine. Raises NotExported for a model that is not exported, without a video to check it on, and
    where a similarity differs by more than TOLERANCE; nothing is left then."""
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
        with torch.inference_mode():
            of_frames = [
                (whitening.apply(backbone.regions(crops)), made.regions(crops.numpy()))
                for crops in frames
            ]
        of_features = [(video.float().numpy(), video.float().numpy()) for video in features]
        record["check"] = compare_with_torch(made, network, of_frames, of_features)
    except BaseException:
        shutil.rmtree(place)
        raise
    return record


@torch.inference_mode()
def compare_with_torch(
    made: ONNXNetworks,
    network: VideoNetwork,
    *groups: Sequence[tuple[Floats, Floats]],
    whose: str = "its",
) -> dict[str, Any]:
    """What scorer.json says of all pairs in each group of videos, regions for torch and for the
    engine. Raises NotExported."""
    differences = list[float]()
    for videos in filter(None, groups):
        wanted = [network.embed(torch.from_numpy(regions)) for regions, _ in videos]
        found = [made.embed(own) for _, own in videos]
        differences += np.abs(
            made.similarities(found, found) - network.score_videos(wanted, wanted).numpy()
        ).flat
    largest = float(np.max(differences))
    if not largest <= TOLERANCE:
        raise NotExported(f"{whose} similarities differ from torch's by {largest:.2g}")
    return {"pairs": len(differences), "largest_difference": largest}


def _export(
    place: Path, backbone: Backbone, whitening: Whitening, network: SimilarityNetwork
) -> None:
    some, comparator = torch.export.Dim.DYNAMIC, network.comparator
    mean, scale = torch.from_numpy(whitening.mean), torch.from_numpy(whitening.scale)

    def regions_of(frames: Tensor) -> Tensor:
        return F.normalize((backbone.regions(frames) - mean) @ scale, dim=-1)

    def frame_similarity(query: Tensor, reference: Tensor) -> Tensor:
        products = query.flatten(0, 1) @ reference.permute(2, 1, 0).flatten(1)
        shape = query.shape[0], query.shape[1], reference.shape[1], reference.shape[0]
        return reduce_regions(products.reshape(shape), **network.settings.spatial)

    pixels = torch.zeros(2, 3, backbone.crop_px, backbone.crop_px, dtype=torch.uint8)
    with torch.no_grad():
        regions = regions_of(pixels)
        videos = tuple(
            network.embed(regions[:1].expand(count, -1, -1).contiguous()) for count in (12, 20)
        )
    one, two = ({0: some},), ["query", "reference"]
    graphs: dict[ONNXName, tuple[nn.Module, tuple[Tensor, ...], Any, list[str], str]] = {
        "backbone.onnx": (
            Graph(regions_of, backbone.network),
            (pixels,),
            one,
            ["frames"],
            "regions",
        ),
        "embed.onnx": (Graph(network.embed, network), (regions,), one, ["regions"], "embedding"),
        "frames.onnx": (
            Graph(frame_similarity, nn.Identity()),
            videos,
            one * 2,
            two,
            "frame_similarity",
        ),
    }
    if comparator is not None:
        compare = Graph(lambda frame: comparator(frame[None])[0].clamp(-1, 1), comparator)
        sides = ({0: some, 1: some},)
        graphs["compare.onnx"] = (
            compare,
            (torch.zeros(12, 20),),
            sides,
            ["frame_similarity"],
            "refined",
        )
    settings = backbone.settings
    if (
        backbone.identity.source == "packaged"
        and "options" not in settings
        and backbone.descriptor == "regions"
    ):
        packaged = PackagedBackbone(
            backbone.identity, settings, backbone.crop_px, backbone.precision
        )
        del graphs["backbone.onnx"]
        (place / "backbone.onnx").write_bytes(packaged.graph(whitening).SerializeToString())
    for name, (graph, example, shapes, inputs, output) in graphs.items():
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of the exporter's own use of torch
                torch.onnx.export(
                    graph.eval(),
                    example,
                    place / name,
                    dynamo=True,
                    dynamic_shapes=shapes,
                    input_names=inputs,
                    output_names=[output],
                    opset_version=OPSET,
                    external_data=False,
                    verbose=False,
                )
        except Exception as error:  # the exporter raises classes of its own and of torch's compiler
            raise NotExported(
                f"torch.onnx cannot export {name} ({first_line(error.__cause__ or error)})"
            ) from error
