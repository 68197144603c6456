"""A model's networks in torch, for bundles without ONNX files and for GPUs; also writes the ONNX
files of `hapvr.scorer.onnx_networks`, which are checked against torch on real pairs."""

import dataclasses
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hapvr.errors import DataError
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.similarity import reduce_regions
from hapvr.networks.backbone import Backbone
from hapvr.networks.encoder import FrameEncoder
from hapvr.networks.packaged import PackagedBackbone
from hapvr.networks.region_graph import OPSET
from hapvr.networks.sscd import SSCD
from hapvr.networks.torch_runtime import Graph, choose_device, whitened
from hapvr.networks.whitening import Whitening
from hapvr.scorer.onnx_networks import ONNX_FOLDER, Floats, ONNXNetworks, ONNXRecord
from hapvr.settings import first_line

TOLERANCE = 1e-4
"""The largest difference between a similarity and torch's at which the files are kept."""


class TorchNetworks:
    """As `ONNXNetworks`: the reference, in torch on any device; auto: a GPU where there is one.
    network: of any family; the frozen networks have a precision of their own."""

    def __init__(
        self, *, encoder: FrameEncoder, whitening: Whitening, network: VideoNetwork, device: str
    ) -> None:
        self._device = choose_device(device)
        self.network = network.to(self._device).eval()
        self.needs_extras = network.needs_extras
        self.regions = encoder.embedder(whitening, device, extras=network.needs_extras)

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
    encoder: FrameEncoder,
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
    packaged = encoder if encoder.state() is None else None
    backbone: Any = None
    if packaged is None:
        backbone = dataclasses.replace(encoder, precision="float32")  # type: ignore[type-var]
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
        exported = ONNXNetworks(folder, ONNXRecord.model_validate(record), encoder=packaged)
        of_frames = []
        if packaged is None:
            with torch.inference_mode():
                of_frames = [
                    (whitening.apply(backbone.regions(crops)), exported.regions(crops.numpy()))
                    for crops in frames
                ]

        of_features = [(video.float().numpy(), video.float().numpy()) for video in features]
        record["check"] = compare_with_torch(exported, network, of_frames, of_features)
    except BaseException:
        shutil.rmtree(place)
        raise

    return record


@torch.inference_mode()
def compare_with_torch(
    exported: ONNXNetworks,
    network: VideoNetwork,
    *groups: Sequence[tuple[Floats, Floats]],
    whose: str = "its",
) -> dict[str, Any]:
    """What scorer.json says of all pairs in each group of videos, regions for torch and for the
    engine. Raises NotExported."""
    differences = list[float]()
    for videos in filter(None, groups):
        in_torch = [network.embed(torch.from_numpy(regions)) for regions, _ in videos]
        in_onnx = [exported.embed(own) for _, own in videos]
        of_torch = network.score_videos(in_torch, in_torch).numpy()
        of_onnx = exported.similarities(in_onnx, in_onnx)
        differences += np.abs(of_onnx - of_torch).flat

    largest = float(np.max(differences))
    if not largest <= TOLERANCE:
        raise NotExported(f"{whose} similarities differ from torch's by {largest:.2g}")
    return {"pairs": len(differences), "largest_difference": largest}


def _export(
    place: Path,
    backbone: Backbone | SSCD | None,
    whitening: Whitening,
    network: SimilarityNetwork,
) -> None:
    """Write the graphs. backbone: None for a network that stays in its package."""
    if backbone is None:
        regions = torch.zeros(2, 1, whitening.dims)
        regions[..., 0] = 1
    else:
        regions = _export_backbone(place, backbone, whitening)

    with torch.no_grad():
        query = network.embed(regions[:1].expand(12, -1, -1).contiguous())
        reference = network.embed(regions[:1].expand(20, -1, -1).contiguous())

    first_axis = {0: torch.export.Dim.DYNAMIC}
    both_axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}

    def frame_similarity(query: Tensor, reference: Tensor) -> Tensor:
        products = query.flatten(0, 1) @ reference.permute(2, 1, 0).flatten(1)
        shape = query.shape[0], query.shape[1], reference.shape[1], reference.shape[0]
        return reduce_regions(products.reshape(shape), **network.settings.spatial)

    _write_graph(
        place / "embed.onnx",
        Graph(network.embed, network),
        {"regions": (regions, first_axis)},
        output="embedding",
    )
    _write_graph(
        place / "frames.onnx",
        Graph(frame_similarity, nn.Identity()),
        {"query": (query, first_axis), "reference": (reference, first_axis)},
        output="frame_similarity",
    )
    comparator = network.comparator
    if comparator is not None:
        _write_graph(
            place / "compare.onnx",
            Graph(lambda frame: comparator(frame[None])[0].clamp(-1, 1), comparator),
            {"frame_similarity": (torch.zeros(12, 20), both_axes)},
            output="refined",
        )


def _export_backbone(place: Path, backbone: Backbone | SSCD, whitening: Whitening) -> Tensor:
    """Write backbone.onnx. Returns whitened regions [2, R, D] of black frames."""
    whiten = whitened(whitening, torch.device("cpu"))

    def regions_of(frames: Tensor) -> Tensor:
        return whiten(backbone.regions(frames))

    pixels = torch.zeros(2, 3, backbone.crop_px, backbone.crop_px, dtype=torch.uint8)
    with torch.no_grad():
        regions = regions_of(pixels)
    settings = backbone.settings
    packaged = backbone.identity.source == "packaged" and "options" not in settings
    if packaged and isinstance(backbone, Backbone) and backbone.descriptor == "regions":
        written = PackagedBackbone(
            backbone.identity, settings, backbone.crop_px, backbone.precision
        )
        content = written.graph(whitening).SerializeToString()
        (place / "backbone.onnx").write_bytes(content)
        return regions

    first_axis = {0: torch.export.Dim.DYNAMIC}
    _write_graph(
        place / "backbone.onnx",
        Graph(regions_of, backbone.network),
        {"frames": (pixels, first_axis)},
        output="regions",
    )
    return regions


def _write_graph(
    path: Path,
    graph: nn.Module,
    inputs: Mapping[str, tuple[Tensor, Mapping[int, Any]]],
    *,
    output: str,
) -> None:
    """Write a function of tensors as an ONNX file. inputs: by name an example, and its axes of any
    length. Raises NotExported."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter's own use of torch
            torch.onnx.export(
                graph.eval(),
                tuple(example for example, _ in inputs.values()),
                path,
                dynamo=True,
                dynamic_shapes=tuple(dict(axes) for _, axes in inputs.values()),
                input_names=list(inputs),
                output_names=[output],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter raises classes of its own and of torch's compiler
        raise NotExported(
            f"torch.onnx cannot export {path.name} ({first_line(error.__cause__ or error)})"
        ) from error
