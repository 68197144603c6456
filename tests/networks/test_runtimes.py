"""Clips made ahead of the network; OpenVINO against torch: the same vectors for any batch, and what
happens where it cannot run a network."""

import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import DataError
from hapvr.networks.backbone import Backbone, load_backbone
from hapvr.networks.batches import READ_AHEAD, embed_by_networks, read_ahead
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.packaged import WeightsIdentity
from hapvr.networks.settings import BackboneConfig, Weights
from hapvr.networks.whitening import fit_whitening
from hapvr.seeding import torch_rng


def test_read_ahead_keeps_order_and_is_bounded() -> None:
    """Items come as they are, and no more are made than may wait."""
    numbers: list[int] = []
    waited = threading.Event()

    def items() -> Iterator[int]:
        for number in range(20):
            numbers.append(number)
            if number == READ_AHEAD + 2:
                waited.set()
            yield number

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert not waited.wait(0.3)
    assert len(numbers) <= READ_AHEAD + 2
    assert list(ahead) == list(range(1, 20))


@pytest.mark.parametrize("batch_frames", [1, 3, 100])
def test_embed_by_networks_gives_each_clip_its_own_results(batch_frames: int) -> None:
    """Whatever the batches, clip k has the embeddings of its frames, in order."""
    clips = [(str(count), np.full((count, 3, 2, 2), count, np.uint8)) for count in (1, 5, 2, 7)]
    networks = [lambda frames: frames.mean((1, 2, 3), dtype=np.float32)]
    embeddings = list(embed_by_networks(clips, networks, batch_frames=batch_frames))
    assert [key for key, _ in embeddings] == [key for key, _ in clips]
    for key, (values,) in embeddings:
        assert values.tolist() == [float(key)] * int(key)


WEIGHTS = Weights(source="random", seed=3)
SMALL = BackboneConfig(architecture="mobilenetv2_100", weights=WEIGHTS, crop_px=128)


def frames(count: int, side: int = 128) -> Tensor:
    """[count, 3, side, side] uint8: coarse random patterns."""
    cells = side // 16
    coarse = torch.randint(
        0, 256, (count, 3, cells, cells), generator=torch_rng("engine"), dtype=torch.uint8
    )
    return coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)


@pytest.mark.parametrize(
    ("architecture", "crop_px"),
    [("mobilenetv2_100", 128), pytest.param("vit_tiny_patch16_224", 112, marks=pytest.mark.slow)],
)
def test_regions_are_those_of_torch(architecture: str, crop_px: int) -> None:
    """Batches of any length, with pooled vectors too. At 112 px the transformer's position
    embeddings are resized."""
    backbone = load_backbone(
        BackboneConfig(architecture=architecture, weights=WEIGHTS, crop_px=crop_px)
    )
    pictures = frames(5, crop_px)
    embed = backbone.embedder(None, "cpu")
    with torch.inference_mode():
        wanted = backbone.regions(pictures)
        actual = np.concatenate([embed(pictures[:3].numpy()), embed(pictures[3:].numpy())])
        extras = backbone.embedder(None, "cpu", extras=True)
        assert extras(pictures.numpy())[:, :9] == pytest.approx(wanted, abs=1e-3)

    actual = torch.from_numpy(actual)
    # With random weights a transformer amplifies rounding more than a convolutional network does.
    assert F.cosine_similarity(wanted.double(), actual.double(), dim=-1).min() > 0.9999
    torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_only_the_network_runs_in_bfloat16() -> None:
    """Close to float32, and recorded; norms and whitening are float32, whatever the caller's
    autocast."""
    exact = load_backbone(SMALL)
    half = load_backbone(SMALL.model_copy(update={"precision": "bfloat16"}))
    assert half.settings == exact.settings | {"precision": "bfloat16"}
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = exact.regions(frames(8))
        in_torch = half.regions(frames(8))
        in_openvino = torch.from_numpy(half.embedder(None, "cpu")(frames(8).numpy()))

    for regions in (in_torch, in_openvino):
        assert regions.dtype == torch.float32
        assert F.cosine_similarity(wanted, regions, dim=-1).min() > 0.98
        torch.testing.assert_close(regions.norm(dim=-1), torch.ones(8, 9), rtol=0, atol=1e-5)

    whitening = fit_whitening(wanted.flatten(0, 1), dims=8)
    whitened = half.embedder(whitening, "cpu")(frames(8).numpy())
    np.testing.assert_allclose(whitened, whitening.apply(in_openvino), rtol=0, atol=1e-6)


REFUSED = {
    "Loop": "y = Loop (most, yes, x) <body = step (int64 n, bool a, float[1] b) => (bool c, "
    "float[1] d) "
    "{c = Identity(a) d = Add(b, b)}>",
    "If": "y = If (yes) <then_branch = one () => (float[1] b) {b = Identity(x)}, "
    "else_branch = two () => (float[1] b) {b = Add(x, x)}>",
    "Scan": "z, y = Scan (x, x) <num_scan_inputs = 1, body = step (float[1] a, float b) => "
    "(float[1] c, float d) "
    "{c = Add(a, a) d = Identity(b)}>",
    "GatherND": "n = Constant <value = int64[1] {1099511627776}> () y = GatherND (x, n)",
    "Range": "n = Range (most, most, most) y = Reshape (x, n)",
}


FUNCTION = (
    '<ir_version: 8, opset_import: ["" : 16, "own" : 1]> g (int64[1] x) => (int64[1] '
    "y) { y = own.Relu (x) } "
)
FUNCTION += '<opset_import: ["" : 16], domain: "own"> Relu (x) => (y) { y = Abs (x) }'

EXTERNAL = (
    '<ir_version: 8, opset_import: ["" : 16]> g (float[1] x) => (float[1] y) '
    "<float[1] v = {0}> { y = Add (x, v) }"
)


@pytest.mark.parametrize("name", [*REFUSED, "XML", "function", "external"])
def test_onnx_files_with_other_operations_than_ours_are_refused(name: str, tmp_path: Path) -> None:
    """Loops that may never end, indexes that nobody compares with the length, values elsewhere,
    and the XML that OpenVINO reads as well. The file is read, not run."""
    content = b'<?xml version="1.0"?><net name="a" version="11"><layers/></net>'
    message = "Error parsing message"
    if name in REFUSED:
        graph = f"g (float[1] x, int64 most, bool yes) => (float[1] y) {{{REFUSED[name]}}}"
        content = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 16]> {graph}'
        ).SerializeToString()
        message = f"not in our networks: '{name}'"
    elif name == "function":
        content = onnx.parser.parse_model(FUNCTION).SerializeToString()
        message = "not in our networks: 'functions'"
    elif name == "external":
        model = onnx.parser.parse_model(EXTERNAL)
        model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
        content = model.SerializeToString()
        message = "it has values in other files"

    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.onnx \({message}"):
        CompiledNetwork(tmp_path / "a.onnx")


class Unconvertible(nn.Module):
    """Maps of 3 x 3 by an operation that OpenVINO does not know."""

    def forward(self, pixels: Tensor) -> list[Tensor]:
        return [torch.special.i0e(F.adaptive_avg_pool2d(pixels, 3))]


def test_a_network_that_cannot_be_converted_runs_in_torch() -> None:
    """With one line that says why."""
    identity = WeightsIdentity("unconvertible", "random", "0" * 64)
    backbone = Backbone(Unconvertible(), identity, asdict(identity), 128, (0.5,) * 3, (0.5,) * 3)
    embed = backbone.embedder(None, "cpu")
    with pytest.warns(
        UserWarning, match="backbone: it runs in torch, since OpenVINO cannot convert it"
    ):
        features = embed(frames(2).numpy())

    torch.testing.assert_close(torch.from_numpy(features), backbone.regions(frames(2)))
