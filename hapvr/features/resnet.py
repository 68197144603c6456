"""The stages of a ResNet (He et al., CVPR 2016) under timm's names of tensors, without importing timm.

timm imports torchvision and, with it, torch's compiler: 2.5 seconds of processor time before the first frame. A stored
model brings its own weights, so it needs the layers alone.
"""

from __future__ import annotations

from torch import Tensor, nn

EXPANSION = 4
"""A bottleneck block has this many times more channels at its end than inside."""

LAYOUTS: dict[str, tuple[bool, tuple[int, int, int, int]]] = {
    "resnet18.tv_in1k": (False, (2, 2, 2, 2)),
    "resnet34.tv_in1k": (False, (3, 4, 6, 3)),
    "resnet50.tv_in1k": (True, (3, 4, 6, 3)),
    "resnet101.tv_in1k": (True, (3, 4, 23, 3)),
    "resnet152.tv_in1k": (True, (3, 8, 36, 3)),
}
"""By architecture: whether the blocks are bottlenecks, and how many blocks each of the four stages has."""


class ResNetStages(nn.Module):
    """Images [B, 3, H, W] -> maps of the four stages, [B, C_l, H_l, W_l] at 1/4, 1/8, 1/16 and 1/32 of the size.

    architecture: a key of LAYOUTS.
    """

    def __init__(self, architecture: str) -> None:
        super().__init__()
        bottleneck, counts = LAYOUTS[architecture]
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.act1 = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, count in enumerate(counts):
            width = 64 * 2**number
            blocks = []
            for block in range(count):
                stride = 2 if number and not block else 1
                blocks.append(_Block(channels, width, stride=stride, bottleneck=bottleneck))
                channels = width * (EXPANSION if bottleneck else 1)
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = [self.maxpool(self.act1(self.bn1(self.conv1(images))))]
        for number in range(1, 5):
            maps.append(self.get_submodule(f"layer{number}")(maps[-1]))
        return maps[1:]


class _Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1, around which the input is added."""

    def __init__(self, channels: int, width: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out = width * (EXPANSION if bottleneck else 1)
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        strided = kernels.index(3)
        self.num_convolutions = len(kernels)
        size = channels
        for number, kernel in enumerate(kernels):
            last = number == len(kernels) - 1
            convolution = nn.Conv2d(
                size,
                out if last else width,
                kernel,
                stride=stride if number == strided else 1,
                padding=kernel // 2,
                bias=False,
            )
            self.add_module(f"conv{number + 1}", convolution)
            self.add_module(f"bn{number + 1}", nn.BatchNorm2d(convolution.out_channels))
            size = convolution.out_channels
        self.activation = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, images: Tensor) -> Tensor:
        shortcut = self.downsample(images)
        for number in range(1, self.num_convolutions + 1):
            images = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(images))
            if number < self.num_convolutions:
                images = self.activation(images)
        added: Tensor = self.activation(images.add_(shortcut))
        return added
