"""EfficientNet-Lite as an ONNX graph from frames to regions, with batch norms folded into its
convolutions
(https://blog.tensorflow.org/2020/03/higher-accuracy-on-vision-models-with-efficientnet-lite.html).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import ModelProto

    from hapvr.networks.whitening import Whitening

BLOCKS = {
    "tf_efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1),
    "tf_efficientnet_lite2": (1, 3, 3, 4, 4, 5, 1),
}
"""By architecture: the blocks of each stage."""

STRIDES = (1, 2, 2, 2, 1, 2, 1)
"""By stage: the stride of its first block."""

TAPS = (1, 2, 4, 6)
"""Stages whose outputs give regions, the last of each scale."""

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
"""The tensors of a batch norm."""

NORM_EPSILON = 1e-3
LEAST_LENGTH = 1e-12
"""The least length by which vectors are divided to make them unit vectors."""

OPSET = 18
GRID = (3, 3)
"""Rows and columns of regions."""


@dataclass(frozen=True)
class Convolution:
    """A convolution with its batch norm, by timm's names."""

    name: str
    norm: str
    stride: int
    ends_block: bool
    """Whether it is the last one of a block, so that its output is not clipped."""
    stage: int
    """The number of its stage, -1 for the stem."""
    ends_stage: bool

    @property
    def is_depthwise(self) -> bool:
        return self.name.endswith("_dw")

    @property
    def is_of_first_block(self) -> bool:
        """Whether its block changes size or channels, so that its input is not added."""
        return self.name.split(".")[2] == "0"


def convolutions(architecture: str) -> Iterator[Convolution]:
    """The convolutions of a network of BLOCKS, in order."""
    yield Convolution("conv_stem", "bn1", stride=2, ends_block=False, stage=-1, ends_stage=False)
    for stage, num_blocks in enumerate(BLOCKS[architecture]):
        kinds = ("dw", "pw") if stage == 0 else ("pw", "dw", "pwl")
        for block in range(num_blocks):
            for place, kind in enumerate(kinds, start=1):
                ends_block = place == len(kinds)
                yield Convolution(
                    name=f"blocks.{stage}.{block}.conv_{kind}",
                    norm=f"blocks.{stage}.{block}.bn{place}",
                    stride=STRIDES[stage] if kind == "dw" and block == 0 else 1,
                    ends_block=ends_block,
                    stage=stage,
                    ends_stage=ends_block and block == num_blocks - 1,
                )


def region_kernel(scale: int, side_px: int) -> tuple[int, int]:
    """Side and stride of the max pooling that makes regions of a map: as for those of 56, 28, 14
    and 7 px of a 224 px crop."""
    share = (28 / 56, 14 / 28, 6 / 14, 3 / 7)[scale]
    kernel = max(1, round(share * side_px))
    return kernel, (kernel + 1) // 2


class GraphWriter:
    """Collects the nodes and constants of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: Any, **settings: Any) -> str:
        """Add a node, and return the name of its output.

        inputs: names of other outputs, and arrays, which become constants"""
        from onnx import helper

        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [output], **settings))
        return output

    def unit(self, value: str, *, axis: int) -> str:
        """Make vectors along an axis unit vectors."""
        length = self.add("ReduceL2", value, np.array([axis]))
        divisor = self.add("Max", length, np.float32(LEAST_LENGTH))
        return self.add("Div", value, divisor)

    def _constant(self, values: Any) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name


def region_graph(
    architecture: str,
    state: Mapping[str, NDArray[Any]],
    *,
    crop_px: int,
    whitening: Whitening | None,
) -> ModelProto:
    """Frames [B, 3, crop_px, crop_px] uint8 -> unit regions [B, 9, C], or whitened ones [B, 9, D],
    as an ONNX model.

    architecture: of BLOCKS.
    state: its weights by timm's names.

    Raises:
        ArgumentError: a whitening of other channels."""
    from onnx import helper

    writer = GraphWriter()
    pixels = writer.add("Cast", "frames", to=1)
    pixels = writer.add("Mul", pixels, np.float32(2 / 255))
    pixels = writer.add("Sub", pixels, np.float32(1))
    maps, channels = _write_network(writer, architecture, state, pixels, side=crop_px)

    joined = writer.add("Concat", *maps, axis=1)
    flat = writer.add("Reshape", joined, np.array([0, 0, -1]))
    vectors = writer.unit(writer.add("Transpose", flat, perm=[0, 2, 1]), axis=2)
    if whitening is not None:
        whitening.require(channels)
        centred = writer.add("Sub", vectors, whitening.mean)
        writer.unit(writer.add("MatMul", centred, whitening.scale), axis=2)

    writer.nodes[-1].output[0] = "regions"
    frames = helper.make_tensor_value_info("frames", 2, ["B", 3, crop_px, crop_px])
    regions = helper.make_tensor_value_info("regions", 1, ["B", 9, None])
    graph = helper.make_graph(writer.nodes, "regions", [frames], [regions], writer.constants)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", OPSET)])


def _write_network(
    writer: GraphWriter,
    architecture: str,
    state: Mapping[str, NDArray[Any]],
    pixels: str,
    *,
    side: int,
) -> tuple[list[str], int]:
    """The maps [B, C_l, 3, 3] of TAPS, unit vectors over channels, and the sum of C_l.

    side: of the pixels in px."""
    value = pixels
    block_input = ""
    maps: list[str] = []
    channels = 0
    for convolution in convolutions(architecture):
        side = -(-side // convolution.stride)
        value = _write_convolution(writer, convolution, state, value)
        if not convolution.ends_block:
            value = writer.add("Clip", value, np.float32(0), np.float32(6))
        else:
            if not convolution.is_of_first_block:
                value = writer.add("Add", value, block_input)
            block_input = value

        if convolution.ends_stage and convolution.stage in TAPS:
            channels += len(state[f"{convolution.norm}.bias"])
            maps.append(_write_regions(writer, value, scale=len(maps), side=side))

    return maps, channels


def _write_convolution(
    writer: GraphWriter, convolution: Convolution, state: Mapping[str, NDArray[Any]], value: str
) -> str:
    """A convolution of a value, with its batch norm folded in."""
    weights = state[f"{convolution.name}.weight"].astype(np.float64)
    norm = {part: state[f"{convolution.norm}.{part}"].astype(np.float64) for part in NORM}
    scale = norm["weight"] / np.sqrt(norm["running_var"] + NORM_EPSILON)
    return writer.add(
        "Conv",
        value,
        (weights * scale[:, None, None, None]).astype(np.float32),
        (norm["bias"] - norm["running_mean"] * scale).astype(np.float32),
        # padded as TensorFlow does: one more on the right and below where it is odd
        auto_pad="SAME_UPPER",
        strides=[convolution.stride] * 2,
        group=len(weights) if convolution.is_depthwise else 1,
    )


def _write_regions(writer: GraphWriter, value: str, *, scale: int, side: int) -> str:
    """A map [B, C_l, side, side], max-pooled to [B, C_l, 3, 3], unit vectors over channels."""
    if side != GRID[0]:
        kernel, stride = region_kernel(scale, side)
        value = writer.add("MaxPool", value, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    return writer.unit(value, axis=1)
