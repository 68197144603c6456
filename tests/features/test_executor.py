"""OpenVINO beside torch: the same vectors, one conversion per network, and what happens where it cannot run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.features.backbone import Backbone, load_backbone
from hapvr.features.conversions import conversion_of
from hapvr.features.extract import Embedder, region_embedder, teacher_embedder
from hapvr.features.openvino_network import OpenVINONetwork
from hapvr.features.settings import BackboneConfig, ExecutorChoice, Precision, RandomWeights, TeacherConfig
from hapvr.features.teacher import load_teacher
from hapvr.features.weights import WeightsIdentity
from hapvr.seeding import torch_rng
from tests.conftest import CHECKOUT, MakeOnce

WEIGHTS = RandomWeights(source="random", seed=3)
SMALL = BackboneConfig(architecture="mobilenetv2_100", weights=WEIGHTS, crop_px=128)


@pytest.fixture(autouse=True)
def conversions(make_once: MakeOnce, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of these tests, which is filled as they run; a test that changes it takes a folder of its own."""
    folder = make_once("conversions", lambda folder: None)
    monkeypatch.setenv("HAPVR_CACHE", str(folder))
    return folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which SMALL is converted already, unlike anything else."""
    embed = small(executor="openvino")
    embed(frames(1))
    folder = conversion_of(embed.executor.content()).folder
    shutil.copytree(folder, tmp_path / "cache" / "networks" / folder.name)
    monkeypatch.setenv("HAPVR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def openvino_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does at the moment."""
    monkeypatch.setattr(
        "hapvr.features.executor.timed", lambda run, _probe: 1.0 if isinstance(run, OpenVINONetwork) else 2.0
    )


def frames(count: int, side: int = 128) -> Tensor:
    """[count, 3, side, side] uint8: coarse random patterns."""
    cells = side // 16
    coarse = torch.randint(0, 256, (count, 3, cells, cells), generator=torch_rng("executors"), dtype=torch.uint8)
    return coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)


def small(**update: object) -> Embedder:
    """Regions of a MobileNetV2, which OpenVINO runs several times as fast."""
    return region_embedder(load_backbone(SMALL.model_copy(update=update)), None, "cpu")


def converted(cache: Path) -> set[str]:
    return {path.parent.name for path in cache.rglob("measured.json")}


def no_conversion(*_: object, **__: object) -> None:
    raise AssertionError("converted once more")


@pytest.mark.parametrize(
    ("architecture", "crop_px"),
    [
        ("mobilenetv2_100", 128),
        pytest.param("vit_tiny_patch16_224", 112, marks=pytest.mark.slow),
        pytest.param("resnet18", 128, marks=pytest.mark.slow),
        pytest.param("resnet50", 128, marks=pytest.mark.slow),
        pytest.param("convnext_atto", 128, marks=pytest.mark.slow),
    ],
)
def test_regions_are_those_of_torch(architecture: str, crop_px: int) -> None:
    """Whole batches and the last, smaller one. At 112 px the transformer's position embeddings are resized, too."""
    config = BackboneConfig(architecture=architecture, weights=WEIGHTS, crop_px=crop_px)
    pictures = frames(5, crop_px)
    exact = region_embedder(load_backbone(config.model_copy(update={"executor": "torch"})), None, "cpu")
    other = region_embedder(load_backbone(config.model_copy(update={"executor": "openvino"})), None, "cpu")
    with torch.inference_mode():
        wanted, found = exact(pictures), torch.cat([other(pictures[:3]), other(pictures[3:])])
    assert F.cosine_similarity(wanted.double(), found.double(), dim=-1).min() > 0.99999
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
    assert exact.environment() == {"backbone.executor": "torch"}
    assert other.environment()["backbone.executor"].startswith("openvino 20")


@pytest.mark.slow
def test_embeddings_are_those_of_torch_for_frames_of_another_side() -> None:
    """A teacher with a crop of its own resizes before its executor runs."""
    found = {}
    for executor in ("torch", "openvino"):
        config = TeacherConfig(architecture="vit_tiny_patch16_224", weights=WEIGHTS, crop_px=112, executor=executor)
        with torch.inference_mode():
            found[executor] = teacher_embedder(load_teacher(config, crop_px=128), "cpu")(frames(3))
    assert F.cosine_similarity(found["torch"], found["openvino"], dim=-1).min() > 0.99999


@pytest.mark.usefixtures("openvino_is_faster")
def test_auto_changes_to_openvino_once_it_pays(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frames never wait for a conversion; later processes start with it."""
    shutil.rmtree(own_cache)
    monkeypatch.setattr("hapvr.features.executor.PATIENCE_FRAMES", 6)
    embed, pictures = small(), frames(4)
    first = embed(pictures)
    assert embed.environment() == {"backbone.executor": "torch"}
    assert not converted(own_cache)
    second = embed(pictures)
    assert embed.environment()["backbone.executor"].startswith("torch, openvino 20")
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)
    again = small()
    again(pictures)
    assert again.environment()["backbone.executor"].startswith("openvino")


@pytest.mark.usefixtures("openvino_is_faster")
def test_auto_converts_at_once_if_many_frames_are_to_come(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that knows its frames does not run the first of them in torch."""
    shutil.rmtree(own_cache)
    monkeypatch.setattr("hapvr.features.executor.PATIENCE_FRAMES", 12)
    embed, pictures = small(), frames(4)
    embed.expect(5)
    embed(pictures)
    assert embed.environment() == {"backbone.executor": "torch"}
    embed = small()
    embed.expect(12)
    embed(pictures)
    assert embed.environment()["backbone.executor"].startswith("openvino 20")


def test_auto_stays_with_torch_where_that_is_faster(own_cache: Path) -> None:
    """What was measured decides, not what is asked for elsewhere."""
    (path,) = own_cache.glob("networks/*/measured.json")
    record = json.loads(path.read_text())
    torch_run, openvino_run = record["measured"]["runs"]
    assert (torch_run["executor"], openvino_run["executor"]) == ("torch", "openvino")
    openvino_run["seconds"] = 2 * torch_run["seconds"]
    path.write_text(json.dumps(record))
    embed, asked = small(), small(executor="openvino")
    embed(frames(1))
    asked(frames(1))
    assert embed.environment() == {"backbone.executor": "torch"}
    assert asked.environment()["backbone.executor"].startswith("openvino")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "torch", "openvino"])
@pytest.mark.parametrize("faster", ["float32", "bfloat16"])
def test_auto_precision_takes_the_faster_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: ExecutorChoice, faster: Precision
) -> None:
    """Measured once, with whatever executor may run; vectors of both count as the same features."""
    monkeypatch.setenv("HAPVR_CACHE", str(tmp_path))
    pictures = frames(4)
    measured = small(executor=executor, precision="auto")
    measured.executor.decide()
    (path,) = tmp_path.glob("networks/*/measured.json")
    record = json.loads(path.read_text())
    runs = record["measured"]["runs"]
    assert {run["executor"] for run in runs} == ({"torch"} if executor == "torch" else {"torch", "openvino"})
    assert {run["precision"] for run in runs if run["executor"] == "torch"} == {"float32", "bfloat16"}
    assert min(run["agreement"] for run in runs) > 0.99
    if executor == "openvino" and not any(run["precision"] == "bfloat16" for run in runs if run["executor"] != "torch"):
        pytest.skip("OpenVINO has no bfloat16 on this processor")
    for run in runs:
        run["seconds"], run["agreement"] = (1.0 if run["precision"] == faster else 2.0), 1.0
    path.write_text(json.dumps(record))
    again = small(executor=executor, precision="auto")
    again.executor.decide()
    vectors = again(pictures)
    assert again.environment()["backbone.executor"].endswith(faster)
    stated = small(executor=executor, precision=faster)
    stated.executor.decide()
    assert F.cosine_similarity(vectors, stated(pictures), dim=-1).min() > 0.999


def test_auto_precision_starts_in_float32(own_cache: Path) -> None:
    """Until it has measured, and in one identity whatever it takes."""
    exact, choice = small(executor="torch"), small(executor="torch", precision="auto")
    pictures = frames(2)
    torch.testing.assert_close(choice(pictures), exact(pictures), rtol=0, atol=0)
    assert choice.environment() == {"backbone.executor": "torch float32"}
    assert load_backbone(SMALL.model_copy(update={"precision": "auto"})).settings["precision"] == "auto"


def test_a_network_is_converted_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other weights, another crop or another version of OpenVINO have a conversion of their own."""
    (name,) = converted(own_cache)
    with monkeypatch.context() as patch:
        patch.setattr("hapvr.features.executor.convert", no_conversion)
        small(executor="openvino")(frames(1))
        with pytest.raises(AssertionError, match="once more"):
            small(executor="openvino", weights=RandomWeights(source="random", seed=4))(frames(1))
        with pytest.raises(AssertionError, match="once more"):
            small(executor="openvino", crop_px=224)(frames(1, 224))
    monkeypatch.setattr("hapvr.features.executor.require_openvino", lambda: "2099.1")
    small(executor="openvino")(frames(1))
    assert len(converted(own_cache)) == 2
    assert name in converted(own_cache)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["network.bin", "network.xml", "measured.json"])
def test_a_damaged_conversion_is_made_again(own_cache: Path, damaged: str) -> None:
    """It is named, and the result is that of a good one."""
    wanted = small(executor="torch")(frames(2))
    (path,) = own_cache.glob(f"networks/*/{damaged}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match=f"{damaged} is .*damaged.* made again"):
        found = small(executor="openvino")(frames(2))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    small(executor="openvino")(frames(2))


@pytest.mark.slow
def test_two_processes_convert_once(tmp_path: Path) -> None:
    """The second waits for the first, and takes what it made."""
    program = (
        "import torch, hapvr.features.executor as executor\n"
        "from tests.features.test_executor import frames, small\n"
        "convert = executor.convert\n"
        "executor.convert = lambda *given, **named: (print('converts'), convert(*given, **named))\n"
        "embed = small(executor='openvino')\n"
        "embed(frames(1))\n"
        "print(embed.environment()['backbone.executor'])\n"
    )
    environment = os.environ | {"HAPVR_CACHE": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
        )
        for _ in range(2)
    ]
    lines = [line for process in processes for line in process.communicate(timeout=300)[0].splitlines()]
    assert [process.returncode for process in processes] == [0, 0]
    assert lines.count("converts") == 1
    assert sum(line.startswith("openvino 20") for line in lines) == 2


class Unconvertible(nn.Module):
    """Maps of 3 x 3 by an operation that OpenVINO does not know."""

    def forward(self, pixels: Tensor) -> list[Tensor]:
        return [torch.special.i0e(F.adaptive_avg_pool2d(pixels, 3))]


def unconvertible(executor: str) -> Embedder:
    identity = WeightsIdentity("unconvertible", "random", "0" * 64)
    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    backbone = Backbone(Unconvertible(), identity, identity.as_dict(), 128, mean, std, executor=executor)  # type: ignore[arg-type]
    return region_embedder(backbone, None, "cpu")


def test_a_network_that_cannot_be_converted_stays_in_torch(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one line that says why; the attempt is not repeated. Asked for, it is an error that names the way out."""
    monkeypatch.setattr("hapvr.features.executor.PATIENCE_FRAMES", 1)
    with pytest.warns(UserWarning, match="backbone: it runs in torch, since OpenVINO cannot convert it"):
        assert unconvertible("auto")(frames(2)).shape == (2, 9, 3)
    monkeypatch.setattr("hapvr.features.executor.convert", no_conversion)
    with pytest.raises(ConfigError, match=r"cannot convert it .*; set backbone\.executor to auto or torch"):
        unconvertible("openvino")(frames(2))


@pytest.mark.parametrize("reason", ["is not installed", "no AVX2", "their cosine is", "set HAPVR_CACHE to"])
def test_where_openvino_cannot_be_used_torch_runs(
    reason: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` says why, in one line; `openvino` is refused with the remedy."""
    if reason == "is not installed":

        def absent(name: str) -> str:
            raise PackageNotFoundError(name)

        monkeypatch.setattr("hapvr.features.openvino_network.version", absent)
    elif reason == "no AVX2":
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    elif reason == "their cosine is":
        (path,) = own_cache.glob("networks/*/measured.json")
        record = json.loads(path.read_text())
        record["measured"]["runs"][1]["agreement"] = 0.9999
        path.write_text(json.dumps(record))
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("HAPVR_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("hapvr.features.executor.PATIENCE_FRAMES", 1)
    embed = small()
    with pytest.warns(UserWarning, match=f"backbone: it runs in torch, since .*{reason}"):
        embed(frames(1))
    assert embed.environment() == {"backbone.executor": "torch"}
    with pytest.raises(
        ConfigError, match=f"openvino is asked for, but .*{reason}.*set backbone.executor to auto or torch"
    ):
        small(executor="openvino")(frames(1))


def test_openvino_is_not_for_gpus_nor_for_compiled_networks() -> None:
    """Neither is silently ignored."""
    backbone = load_backbone(SMALL.model_copy(update={"executor": "openvino"}))
    with pytest.raises(ConfigError, match="the device is meta"):
        region_embedder(backbone, None, "meta")
    with pytest.raises(ValidationError, match="compile is torch's"):
        BackboneConfig(executor="openvino", compile=True)


SIGNALS_AFTER_TWO_NETWORKS = """
import ctypes, faulthandler, os, signal, sys
from pathlib import Path
from hapvr.features.openvino_network import OpenVINONetwork

class SignalStack(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def signal_stack():
    found = SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
    return found.place

faulthandler.enable()
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
path = Path(sys.argv[1])
first = OpenVINONetwork(path, precision="float32")
stack = signal_stack()
second = OpenVINONetwork(path, precision="float32")
del first
del second
assert signal_stack() == stack
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_signals_are_handled_after_networks_have_gone() -> None:
    """Each Core of OpenVINO changes the stack that signals are handled on, so that a process has one (see `_core`)."""
    embed = small(executor="openvino")
    embed(frames(1))
    network = conversion_of(embed.executor.content()).folder / "network.xml"
    command = [sys.executable, "-c", SIGNALS_AFTER_TWO_NETWORKS, str(network)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_openvino_sends_no_telemetry() -> None:
    """Its package of that name would report each import; it is never loaded."""
    small(executor="openvino")(frames(1))
    assert "openvino" in sys.modules
    assert "openvino_telemetry" not in sys.modules
