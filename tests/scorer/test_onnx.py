"""Bundles with ONNX files: written by torch, run by the engine without torch, and refused where
they were changed."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from torch.nn import functional as F

from hapvr.errors import DataError, MissingPartError
from hapvr.model.checkpoint import build_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings, TcaSettings
from hapvr.networks.backbone import load_backbone
from hapvr.networks.whitening import fit_whitening
from hapvr.scorer.bundle import load_bundle, load_in_torch
from hapvr.scorer.description import read_description
from hapvr.scorer.onnx_networks import ONNXNetworks, ONNXRecord
from hapvr.scorer.torch_networks import NotExported, TorchNetworks, write_onnx
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.video.frames import center_crop
from tests.conftest import run_python
from tests.scorer.bundles import BACKBONE


def parts(**settings: Any) -> dict[str, Any]:
    """Arguments of `write_onnx`: noise as frames, of 1, 2 and 9 frames, and as features, of 1 to 70
    frames."""
    rng = torch_rng("onnx")
    backbone = load_backbone(BACKBONE)
    frames = [
        torch.randint(0, 256, (n, 3, 128, 128), generator=rng, dtype=torch.uint8) for n in (1, 2, 9)
    ]
    with torch.inference_mode():
        regions = torch.cat([backbone.regions(crops) for crops in frames]).flatten(0, 1)
    return {
        "encoder": backbone,
        "whitening": fit_whitening(regions.clone(), dims=32),
        "network": SimilarityNetwork(
            NetworkSettings(**settings), dims=32, generator=torch_rng("onnx")
        ).eval(),
        "frames": frames,
        "features": [
            F.normalize(torch.randn(n, 9, 32, generator=rng), dim=-1) for n in (1, 3, 20, 70)
        ],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {
            "symmetric_chamfer": True,
            "padding_mode": "replicate",
            "attention_form": "cosine",
            "temporal_rate": 0.3,
            "spatial_rate": 0.5,
            "min_frames": 8,
        },
        {"comparator": False, "attention": False, "binary_bits": 16},
    ],
)
def test_results_are_those_of_torch(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form of the network, videos of one frame to more than the comparator sees at once, and
    frames with themselves."""
    monkeypatch.setattr("hapvr.scorer.onnx_networks.MAX_REFINED_AT_ONCE", 2**14)
    monkeypatch.setattr("hapvr.scorer.onnx_networks.MAX_REGION_SIMILARITIES", 2**20)
    given = parts(**settings)
    record = write_onnx(tmp_path, **given)
    assert record["check"]["pairs"] == 9 + 16
    assert record["check"]["largest_difference"] < 1e-5
    networks = ONNXNetworks(tmp_path, ONNXRecord.model_validate(record))
    network = given["network"]
    rng = torch_rng("long")
    long = [F.normalize(torch.randn(n, 9, 32, generator=rng), dim=-1) for n in (320, 240)]
    first = network.embed(long[0]).detach()
    second = network.embed(long[1]).detach()
    wanted = float(network.score_videos([first], [second])[0, 0])
    assert networks.similarities([first.numpy()], [second.numpy()])[0, 0] == pytest.approx(
        wanted, abs=1e-5
    )
    assert networks.self_similarity(first.numpy()) == pytest.approx(
        network.self_similarity(first).numpy(), abs=1e-5
    )


@pytest.mark.slow
def test_models_that_are_not_exported_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another family, and a conversion that computes something else; no folder is left."""
    given = parts()
    with pytest.raises(NotExported, match="only networks of the family `similarity`"):
        write_onnx(tmp_path, **given | {"network": build_network(TcaSettings(), dims=32)})
    graph = "hapvr.scorer.torch_networks.Graph.forward"
    monkeypatch.setattr(
        graph,
        lambda self, first, second=None: (
            1.01 * (self.run(first) if second is None else self.run(first, second))
        ),
    )
    with pytest.raises(NotExported, match=r"differ from torch's by \d"):
        write_onnx(tmp_path, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("height", "width", "differing"),
    [(146, 200, 0.0), (146, 146, 0.0), (100, 300, 0.25), (400, 300, 0.25)],
)
def test_crops_are_those_of_torch(height: int, width: int, differing: float) -> None:
    """Frames of the sampled size: the same bytes; others: resized to values that differ by 1 at
    most, as Pillow rounds."""
    rng = numpy_rng("crops")
    frames = rng.integers(0, 256, (2, 3, height, width), dtype=np.uint8)
    size = [round(side * 146 / min(height, width)) for side in (height, width)]
    resized = F.interpolate(
        torch.from_numpy(frames).float(), size=size, mode="bilinear", antialias=True
    )
    top = (size[0] - 128) // 2
    left = (size[1] - 128) // 2
    wanted = resized.round()[..., top : top + 128, left : left + 128].numpy().astype(int)
    cropped = center_crop(frames, 128).astype(int)
    assert cropped.shape == wanted.shape == (2, 3, 128, 128)
    assert np.abs(cropped - wanted).max() <= 1
    assert (cropped != wanted).mean() <= differing


@pytest.mark.slow
def test_a_bundle_scores_alike_by_onnx_and_torch(
    onnx_bundle: Path, tmp_path: Path, scenes: Path
) -> None:
    """Similarities and segments of real files; the engine does not import torch, and a changed file
    is refused."""
    folder = shutil.copytree(onnx_bundle, tmp_path / "bundle")
    names = ["a.mp4", "b.mp4", "copy.mp4", "two.mp4"]
    pairs = [(scenes / query, scenes / reference) for query in names for reference in names]
    scorer = load_bundle(folder)
    onnx_scores = scorer.score_pairs(pairs, segments=True)
    assert isinstance(scorer.networks, ONNXNetworks)
    scorer = load_bundle(folder)
    scorer.networks = load_in_torch(folder, read_description(folder), device="cpu")
    for torch_score, onnx_score in zip(
        scorer.score_pairs(pairs, segments=True), onnx_scores, strict=True
    ):
        assert torch_score.similarity == pytest.approx(onnx_score.similarity, abs=1e-4)
        parts = zip(torch_score.segments, onnx_score.segments, strict=True)
        assert all(
            dataclasses.astuple(first)[:4] == dataclasses.astuple(second)[:4]
            for first, second in parts
        )

    code = (
        "import sys; from pathlib import Path; from hapvr.scorer.bundle import load_bundle; "
        f"load_bundle(Path({str(folder)!r})).score(Path({str(pairs[0][0])!r}), "
        f"Path({str(pairs[1][1])!r})); "
        "print(sorted({'torch', 'timm', 'polars', 'pyarrow', 'mlflow'} & set(sys.modules)))"
    )
    assert run_python("-c", code).strip() == "[]"


OTHER = {
    "another dtype": "float[T, R, D] x) => (double[T, R, D] y) {y = Cast <to = 11> (x)}",
    "another rank": "float[T, R] x) => (float[T, R] y) {y = Identity(x)}",
    "another length": "float[T, R, D] x) => (float[U, R, D] y) {y = Concat <axis = 0> (x, x)}",
    "no output": "float[T, R, D] x) => () {}",
}


@pytest.mark.parametrize("name", OTHER)
def test_outputs_are_what_the_engine_counts_on(name: str, tmp_path: Path) -> None:
    """Of a file that loads, but is another network: one sentence that names it."""
    (tmp_path / "onnx").mkdir()
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g ({OTHER[name]}')
    onnx.save(model, tmp_path / "onnx" / "embed.onnx")
    record = ONNXRecord(
        settings=NetworkSettings(), files=["backbone.onnx", "embed.onnx", "frames.onnx"]
    )
    with pytest.raises(DataError, match=r"embed\.onnx .*; export (it|the model) again"):
        ONNXNetworks(tmp_path, record).embed(np.ones((2, 9, 4), np.float32))


def test_a_bundle_without_onnx_needs_torch(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded into torch; where torch is not installed the hint is named."""
    assert isinstance(load_bundle(bundle).networks, TorchNetworks)
    monkeypatch.setattr("hapvr.scorer.bundle.is_installed", lambda package: False)
    with pytest.raises(
        MissingPartError,
        match=r"has no ONNX files \(it was not asked for\).*pip install '\.\[all\]'",
    ):
        load_bundle(bundle)
