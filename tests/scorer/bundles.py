"""A small model bundle, and clips whose every second is another picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import av
import numpy as np
import torch

from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.backbone import Backbone, load_backbone
from hapvr.networks.settings import BackboneConfig, Weights
from hapvr.networks.whitening import Whitening, fit_whitening
from hapvr.scorer.bundle_writer import BundleParts, complete_bundle, write_bundle
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.torch_networks import write_onnx
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.video.frames import center_crop
from hapvr.video.settings import SamplingConfig

DIMS = 32
BACKBONE = BackboneConfig(
    architecture="test_resnet.r160_in1k", weights=Weights(source="random", seed=1), crop_px=128
)
SAMPLING = SamplingConfig(fps=2.0, short_side_px=146, timeout_s=60, workers=2)


BLACK = -1
"""The seed of a black picture."""


def scene(seed: int, size: tuple[int, int] = (192, 160)) -> np.ndarray:
    """A picture of coloured blocks, [H, W, 3] uint8."""
    width, height = size
    if seed == BLACK:
        return np.zeros((height, width, 3), np.uint8)
    small = numpy_rng(seed, "scene").integers(
        0, 255, (height // 16, width // 16, 3), dtype=np.uint8
    )
    return np.kron(small, np.ones((16, 16, 1), np.uint8))


def write_scenes(path: Path, scenes: Sequence[int], *, fps: int = 8) -> Path:
    """A real H.264 file that shows the picture of each seed for a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=fps, options={"crf": "20", "preset": "veryfast"}
        )
        stream.width = 192
        stream.height = 160
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for seed in scenes:
            frame = av.VideoFrame.from_ndarray(scene(seed), format="rgb24")
            for _ in range(fps):
                container.mux(stream.encode(frame.reformat()))

        container.mux(stream.encode())

    return path


@dataclass(frozen=True)
class Whitened:
    """A backbone, the pictures of 40 scenes as it takes them, and a whitening of its regions of
    these."""

    encoder: Backbone
    crops: torch.Tensor
    whitening: Whitening


@cache
def whitened(config_json: str) -> Whitened:
    """The same in all tests of a process; nothing changes it. config_json: a BackboneConfig, which
    has no hash."""
    encoder = load_backbone(BackboneConfig.model_validate_json(config_json))
    pictures = np.stack([scene(1000 + number) for number in range(40)]).transpose(0, 3, 1, 2)
    with torch.inference_mode():
        crops = torch.from_numpy(center_crop(pictures, encoder.crop_px))
        regions = encoder.regions(crops).flatten(0, 1)

    dims = min(DIMS, regions.shape[1] // 2)
    return Whitened(encoder, crops, fit_whitening(regions.clone(), dims=dims))


def make_bundle(
    folder: Path,
    *,
    calibration: Calibration | None = None,
    card: str = "",
    backbone_config: BackboneConfig = BACKBONE,
    onnx: bool = False,
    settings: NetworkSettings | None = None,
) -> Path:
    """A bundle of random weights: timm's smallest ResNet at 128 px, whitening of 40 scenes, a
    network of 32 dimensions as it is drawn."""
    frozen = whitened(backbone_config.model_dump_json())
    network = SimilarityNetwork(
        settings or NetworkSettings(),
        dims=frozen.whitening.dims,
        generator=torch_rng("bundle"),
    )
    record = None
    if onnx:
        record = write_onnx(
            folder / "exported",
            encoder=frozen.encoder,
            whitening=frozen.whitening,
            network=network.eval(),
            frames=[frozen.crops[:3], frozen.crops[3:9]],
            features=[],
        )

    parts = BundleParts(
        network_folder=save_network(network, folder / "network", metadata={}),
        encoder=frozen.encoder,
        whitening=frozen.whitening,
        sampling=SAMPLING,
        calibration=calibration,
        onnx=record,
        onnx_folder=folder / "exported" if onnx else None,
    )
    bundle = write_bundle(folder / "bundle", parts)
    if card:
        complete_bundle(bundle, evidence="", card=card)
    return bundle
