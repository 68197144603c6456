"""Released checkpoints: names, settings, scores, and files that mean harm or are damaged."""

import argparse
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from hapvr.errors import ArgumentError, DataError
from hapvr.model.archive import MAX_UNPACKED_BYTES
from hapvr.model.network import SimilarityNetwork
from hapvr.model.published import import_released
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.steps.whitening import read_pca
from tests.model.definition import published_score

DIMS = 16
HAP_VR = "comparator_module."
S2VS = "visil_head."
VISIL = "video_comperator."
WHOLE_VISIL = S2VS + VISIL
OF_VISIL = {"comparator": VISIL, "padding": "replicate"}


def released(
    prefix: str, *, form: str = "gated", bits: int = 0, dims: int = DIMS
) -> dict[str, Tensor]:
    """A state dict under a release's names, with random weights."""
    network = SimilarityNetwork(
        NetworkSettings(attention=not bits, attention_form=form, binary_bits=bits),
        dims=dims,
        generator=torch_rng("released"),
    )
    attention = "visil_head.attention." if prefix == WHOLE_VISIL else "attention."
    names = {
        name: name.replace("comparator.output.", f"{prefix}fconv.")
        .replace("comparator.", prefix)
        .replace("binarization.projection", "binarization.W")
        .replace("attention.", attention)
        for name in network.state_dict()
    }
    return OrderedDict(
        (names[name], tensor.clone().contiguous()) for name, tensor in network.state_dict().items()
    )


def clips(num_videos: int, num_frames: int) -> Tensor:
    """Unit regions [N, T, 9, DIMS]."""
    return F.normalize(
        torch.randn(num_videos, num_frames, 9, DIMS, generator=torch_rng("clips", num_frames)),
        dim=-1,
    )


def test_hap_vr_scores_as_published(golden: dict[str, Tensor], tmp_path: Path) -> None:
    """Weights under the release's names, beside a pickled Namespace, give the reference scores."""
    state = {
        name.removeprefix("weight/"): value
        for name, value in golden.items()
        if name.startswith("weight/")
    }
    arguments = argparse.Namespace(
        f_topk_rate=0.34, v_topk_rate=0.25, f2f_sim_module="TopKChamfer", workers=[1, 2]
    )
    torch.save(
        {"model": state, "args": arguments, "optimizer": {"step": 3}}, tmp_path / "model.pth"
    )
    network, report = import_released(tmp_path / "model.pth")
    query = network.embed(golden["query"][None])
    target = network.embed(golden["target"][None])
    assert_close(
        network.compare(query, target).video[0, 0],
        golden["wide/video_similarity"],
        rtol=1e-4,
        atol=1e-5,
    )
    assert report["release"] == "hap-vr"
    assert network.dims == 48
    assert network.settings.spatial_rate == 0.34
    assert network.settings.temporal_rate == 0.25


FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "HAP-VR": ({"prefix": HAP_VR}, {"comparator": HAP_VR, "rates": (0.10, 0.03), "min_frames": 8}),
    "S2VS": ({"prefix": S2VS}, {"comparator": S2VS}),
    "DnS, attention": ({"prefix": S2VS, "form": "cosine"}, {"comparator": S2VS}),
    "DnS, binary": ({"prefix": S2VS, "bits": 24}, {"comparator": S2VS}),
    "ViSiL_v": ({"prefix": VISIL, "form": "linear"}, OF_VISIL),
    "ViSiL_v, whole": (
        {"prefix": WHOLE_VISIL, "form": "linear"},
        OF_VISIL | {"comparator": WHOLE_VISIL, "attention": "visil_head."},
    ),
    "ViSiL_sym": ({"prefix": VISIL, "form": "linear"}, OF_VISIL | {"symmetric": True}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_scores_as_its_definition(family: str, tmp_path: Path) -> None:
    """Every pair of lengths, short ones included, equals slow loops over the formulas: alone, in
    one padded batch, packed."""
    release_options, defined = FAMILIES[family]
    state = released(**release_options)
    for name, tensor in state.items():
        if name.endswith("conv1.weight"):
            tensor.mul_(20)  # scores that differ from each other, and no saturation

    torch.save(state, tmp_path / "model.pth")
    network, _ = import_released(tmp_path / "model.pth", symmetric_chamfer=family == "ViSiL_sym")
    arrays = {name: tensor.double().numpy() for name, tensor in state.items()}
    videos = [clips(1, num_frames)[0] for num_frames in (3, 5, 9, 14)]
    wanted = torch.tensor(
        [
            [
                published_score(arrays, q.double().numpy(), r.double().numpy(), **defined)
                for r in videos
            ]
            for q in videos
        ]
    )
    embedded = [network.embed(video) for video in videos]
    alone = torch.stack(
        [
            torch.cat([network.compare(q[None], r[None]).video[0] for r in embedded])
            for q in embedded
        ]
    )
    assert_close(alone, wanted.float(), rtol=0, atol=1e-5)
    padded = torch.nn.utils.rnn.pad_sequence(embedded, batch_first=True)
    mask = torch.arange(14) < torch.tensor([len(video) for video in videos])[:, None]
    assert_close(
        network.compare(padded, padded, query_mask=mask, reference_mask=mask).video,
        alone,
        rtol=0,
        atol=1e-5,
    )
    assert_close(network.score_videos(embedded, embedded), alone.detach(), rtol=0, atol=1e-5)
    assert alone.std() > 0.01
    assert alone.abs().max() < 0.99


@pytest.mark.parametrize(
    ("prefix", "form", "layout"),
    [
        (HAP_VR, "gated", "bare"),
        (S2VS, "cosine", "model"),
        (S2VS, "gated", "old format"),
        (VISIL, "linear", "data parallel"),
        (WHOLE_VISIL, "linear", "safetensors"),
    ],
)
def test_each_release_is_recognised(prefix: str, form: str, layout: str, tmp_path: Path) -> None:
    """However the state dict is wrapped, architecture and size follow from its tensors."""
    state = released(prefix, form=form)
    file = tmp_path / ("weights.safetensors" if layout == "safetensors" else "weights.pth")
    if layout == "safetensors":
        save_file(state, file)
    elif layout == "data parallel":
        torch.save(
            {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, file
        )
    else:
        content = (
            {"model": state, "args": argparse.Namespace(dims=DIMS)} if layout == "model" else state
        )
        torch.save(content, file, _use_new_zipfile_serialization=layout != "old format")

    network, report = import_released(file)
    release = {HAP_VR: "hap-vr", S2VS: "s2vs"}.get(prefix, "visil")
    assert report["release"] == release
    assert network.settings.attention_form == form
    assert network.dims == DIMS
    expected_rate = (0.10, 0.03) if release == "hap-vr" else (0.0, 0.0)
    assert (network.settings.spatial_rate, network.settings.temporal_rate) == expected_rate
    for published, own in report["tensors"].items():
        assert torch.equal(network.state_dict()[own], state[published])
    assert set(report["tensors"]) == set(state)


def test_recorded_rates_and_symmetry_are_taken(tmp_path: Path) -> None:
    """An average is the rate 1; the note says where the release scores otherwise."""
    arguments = argparse.Namespace(
        f2f_sim_module="Average", v_topk_rate=0.2, f_topk_rate=0.1, symmetric=True
    )
    torch.save({"model": released(HAP_VR), "args": arguments}, tmp_path / "model.pth")
    network, report = import_released(tmp_path / "model.pth")
    assert (network.settings.spatial_rate, network.settings.temporal_rate) == (1.0, 0.2)
    assert network.settings.symmetric_chamfer
    assert any("falls back to 0.3" in note for note in report["notes"])


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """A call hidden in the file is left out, and the tensors beside it are read; modules such as os
    are refused."""
    trace = tmp_path / "ran"
    file = tmp_path / "model.pth"

    class Harmful:
        def __init__(self, *call: object) -> None:
            self.call = call

        def __reduce__(self) -> tuple[object, ...]:
            return self.call[0], self.call[1:]

    torch.save(
        {"model": released(S2VS), "args": Harmful(shutil.copyfile, __file__, str(trace))}, file
    )
    import_released(file)
    torch.save({"model": released(S2VS), "args": Harmful(os.system, f"touch {trace}")}, file)
    with pytest.raises(DataError, match=r"model\.pth cannot be read: .*blocked"):
        import_released(file)
    assert not trace.exists()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    """Each tensor that is missing, of another shape, unknown or not finite, under the release's
    name."""
    file = tmp_path / "model.pth"
    good = released(HAP_VR)
    fours = torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    damaged = {
        r"has shape \(8, 1, 3, 3\), expected \(32, ": {
            **good,
            "comparator_module.conv1.weight": torch.zeros(8, 1, 3, 3),
        },
        "do not fit: netvlad.c, transformer.x": {
            **good,
            "netvlad.c": torch.ones(2),
            "transformer.x": torch.ones(2),
        },
        "comparator_module.fconv.bias has NaN": {
            **good,
            "comparator_module.fconv.bias": torch.tensor([torch.nan]),
        },
        "fconv.bias has values of torch.int64": {
            **good,
            "comparator_module.fconv.bias": torch.tensor([1]),
        },
        "comparator.output.bias .* is missing": {**good, "comparator_module.fconv.bias": fours},
        "comparator_module.conv1.bias is missing|comparator.conv1.bias": {
            **good,
            "comparator_module.conv1.bias": torch.zeros(1).expand(
                32
            ),  # of 2**40 it would take all memory
        },
        "do not fit: .*visil_head.conv1.weight": {
            **good,
            "visil_head.conv1.weight": torch.ones(32, 1, 3, 3),
        },
        "binary_bits: got 8 with attention: true": {**good, "binarization.W": torch.ones(DIMS, 8)},
        "holds no state dict": {"epoch": 3},
        "no tensor tells the dimensions": {"attention.context_vector.weight": torch.ones(1, 0)},
        # of the 4 TB that it tells of, nothing is taken
        r"has shape \(0, 1000000\), expected \(1, 1000000\)": {
            **{
                f"visil_head.attention.{name}.weight": torch.ones(0, 10**6)
                for name in ("context_vector", "transform")
            }
        },
    }
    for message, state in damaged.items():
        torch.save(state, file)
        with pytest.raises(DataError, match=message):
            import_released(file)


@pytest.mark.parametrize(
    "content", [b"a text\n", pickle.dumps({"model": [1, 2]}), b"", "truncated", "flipped", None]
)
def test_files_that_are_no_checkpoint_are_refused(
    content: bytes | str | None, tmp_path: Path
) -> None:
    """The error names the file and what is wanted."""
    file = tmp_path / "model.pth"
    torch.save(released(S2VS), file)
    if content is None:
        file.unlink()
    else:
        whole = file.read_bytes()  # a bit of a weight is another
        flipped = whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:]
        file.write_bytes({"truncated": whole[:5000], "flipped": flipped}.get(content, content))

    with pytest.raises(DataError, match=r"model\.pth (cannot be read|is not a file)"):
        import_released(file)


def pca_arrays() -> dict[str, Tensor]:
    """A PCA of 6 dimensions, its eigenvalues in no order."""
    generator = torch_rng("pca")
    return {
        "mean": torch.randn(1, 6, generator=generator),
        "d": torch.tensor([1.0, 3.0, 2.0, 6.0, 5.0, 4.0]),
        "V": torch.randn(6, 6, generator=generator),
    }


def write_pca(file: Path, arrays: dict[str, Tensor]) -> Path:
    """A file of the format that its suffix names."""
    if file.suffix == ".pth":
        torch.save(arrays, file)
    else:
        np.savez(file, **{name: tensor.numpy() for name, tensor in arrays.items()})
    return file


@pytest.mark.parametrize("suffix", [".pth", ".npz"])
def test_pca_files_are_read(suffix: str, tmp_path: Path) -> None:
    """Both formats, eigenvalues in any order: the largest come first."""
    arrays = pca_arrays()
    pca = read_pca(write_pca(tmp_path / f"pca{suffix}", arrays), dims=2)
    assert pca.eigenvalues.tolist() == [6.0, 5.0]
    assert_close(pca.eigenvectors, arrays["V"][:, [3, 4]].numpy())
    assert_close(pca.mean, arrays["mean"][0].numpy())


@pytest.mark.parametrize("suffix", [".pth", ".npz"])
def test_more_dimensions_than_a_pca_has_are_refused(suffix: str, tmp_path: Path) -> None:
    file = write_pca(tmp_path / f"pca{suffix}", pca_arrays())
    with pytest.raises(ArgumentError, match="dims: got 7, expected 1 to 6"):
        read_pca(file, dims=7)


def test_negative_eigenvalues_count_as_no_dimensions(tmp_path: Path) -> None:
    arrays = pca_arrays() | {"d": torch.tensor([1.0, -1e-5, 2.0, 0.0, 5.0, -4.0])}
    file = write_pca(tmp_path / "rank.npz", arrays)
    with pytest.raises(ArgumentError, match=r"dims: got 5, expected 1 to 4, .* not negative"):
        read_pca(file, dims=5)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"V": torch.zeros(6, 6)}, id="zeros"),
        pytest.param({"V": 1j * torch.eye(6)}, id="complex"),
        pytest.param({"mean": torch.full((6,), 1e300, dtype=torch.float64)}, id="beyond float32"),
    ],
)
def test_a_pca_of_other_values_is_refused(wrong: dict[str, Tensor], tmp_path: Path) -> None:
    file = write_pca(tmp_path / "wrong.npz", pca_arrays() | wrong)
    with pytest.raises(DataError, match="expected finite mean"):
        read_pca(file, dims=2)


def test_a_pca_that_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    """A small file whose directory names the same megabytes again and again."""
    megabytes = 4
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mean.npy", bytes(megabytes << 20))
        archive.filelist *= MAX_UNPACKED_BYTES // (megabytes << 20) + 1

    with pytest.raises(DataError, match=r"bomb\.npz cannot be read: it unpacks to"):
        read_pca(tmp_path / "bomb.npz", dims=1)
