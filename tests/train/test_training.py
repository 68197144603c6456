"""Training in this process: resuming, damaged checkpoints, the best weights, and what ends a
training with a message."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hapvr.config import OptimizerConfig
from hapvr.config_file import dump_config, load_config
from hapvr.errors import DataError, HapvrError
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.steps.benchmark_features import benchmark_shards
from hapvr.steps.project import Project
from hapvr.steps.training import prepare_training, tracker_of
from hapvr.steps.training_data import training_shards
from hapvr.train.optimizer import build_optimizer, build_scheduler
from hapvr.train.run_folder import CHECKPOINTS, list_checkpoints, read_history
from tests.train.runs import run, same_weights, with_train, without_times


@pytest.fixture(scope="module")
def whole(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted training of eight steps, with a checkpoint every fourth."""
    folder = tmp_path_factory.mktemp("whole")
    run(small_project, folder)
    return folder


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """A copy of that folder, which a test may spoil."""
    return Path(shutil.copytree(whole, tmp_path / "cut"))


def checkpoints(folder: Path) -> list[Path]:
    return list_checkpoints(folder / CHECKPOINTS)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_bits(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [Path.unlink, halve, flip_bits])
def test_training_goes_on_from_the_newest_good_checkpoint(
    small_project: Project, whole: Path, cut: Path, spoil: Callable[[Path], None]
) -> None:
    """Without the last checkpoint it ends with the same weights, bit for bit, and the same history;
    so also if that is damaged. Nothing half-written is left, and two checkpoints are kept."""
    spoil(checkpoints(cut)[-1])
    (cut / "result.json").unlink()
    again = run(small_project, cut)
    assert again.first_step == 4
    assert same_weights(whole, cut)
    assert without_times(read_history(whole)) == without_times(read_history(cut))
    assert [path.name for path in sorted((cut / CHECKPOINTS).iterdir())] == [
        "step-00000004.pt",
        "step-00000008.pt",
    ]


def test_only_damaged_checkpoints_are_refused(small_project: Project, cut: Path) -> None:
    """Training does not silently start from the beginning."""
    for path in checkpoints(cut):
        halve(path)
    with pytest.raises(
        DataError, match=r"step-00000008\.pt is damaged.*so are all 2 in .*delete that folder"
    ):
        run(small_project, cut)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 9}, r"step-00000008\.pt belongs to .*train\.steps: expected 9, found 8"),
        (
            {"network": NetworkSettings(comparator=False)},
            r"train\.network\.comparator: expected False, found True",
        ),
    ],
)
def test_checkpoint_of_another_training_is_refused(
    small_project: Project, cut: Path, changes: dict[str, object], message: str
) -> None:
    """Going on with other settings names the file, the key and both values, before any weight is
    loaded."""
    with pytest.raises(DataError, match=message):
        run(small_project, cut, with_train(small_project, **changes))


def test_training_lowers_its_loss_and_writes_a_network(
    small_project: Project, tmp_path: Path
) -> None:
    """Over 30 steps the total loss falls; the result folder loads as the trained network."""
    result = run(small_project, tmp_path, with_train(small_project, steps=30))
    losses = [line["loss/total"] for line in read_history(tmp_path)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    network, metadata = load_network(tmp_path / "network")
    assert result.first_step == 0
    assert metadata["steps"] == 30
    assert network.settings.spatial_rate == 0.10


def test_few_videos_give_a_narrower_network(small_project: Project, tmp_path: Path) -> None:
    """Where the whitening has fewer dimensions than the configuration asks for, the network has
    those of the whitening."""
    whitening = small_project.config.whitening.model_copy(update={"dims": 512})
    run(
        small_project,
        tmp_path,
        with_train(small_project).model_copy(update={"whitening": whitening}),
    )
    assert load_network(tmp_path / "network")[0].dims == 32


def test_best_validation_chooses_the_weights(small_project: Project, tmp_path: Path) -> None:
    """The network that is kept is the one of the best validation, not the last."""
    seen: list[torch.Tensor] = []
    values = iter([0.9, 0.1])

    def validate(network: SimilarityNetwork) -> dict[str, float]:
        seen.append(next(network.parameters()).detach().clone())
        return {"mean": next(values)}

    result = run(small_project, tmp_path, validate=validate)
    kept = next(load_network(tmp_path / "network")[0].parameters())
    assert result.best_step == 3
    assert result.best_value == 0.9
    assert torch.equal(kept, seen[0])
    assert not torch.equal(kept, seen[1])


def test_training_never_reads_the_test_benchmark(small_project: Project) -> None:
    """Neither its batches nor its validation come from a shard of it."""
    evaluation = small_project.config.evaluation
    read = {
        *training_shards(small_project),
        *benchmark_shards(small_project, evaluation.validation),
    }
    for name in evaluation.benchmarks:
        assert read.isdisjoint(benchmark_shards(small_project, name))


@pytest.mark.slow
def test_data_workers_change_nothing(small_project: Project, tmp_path: Path) -> None:
    """Batches read ahead in another process give the same weights as batches read in this one."""
    run(small_project, tmp_path / "here", with_train(small_project, steps=2))
    run(small_project, tmp_path / "there", with_train(small_project, steps=2, data_workers=1))
    assert same_weights(tmp_path / "here", tmp_path / "there")


def test_learning_rate_warms_up_and_ends_at_its_floor() -> None:
    """Linear from 1 % to the full rate, then cosine to 10 %."""
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10)
    optimizer = build_optimizer(SimilarityNetwork(NetworkSettings(), dims=4), config)
    scheduler = build_scheduler(optimizer, config, steps=110)
    rates = []
    for _ in range(110):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()

    assert (rates[0], rates[10], rates[60]) == pytest.approx((0.01, 1.0, 0.55))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert rates.index(max(rates)) == 10


def test_not_finite_loss_stops_with_step_and_videos(small_project: Project, tmp_path: Path) -> None:
    """A learning rate that breaks training ends it with the step and its videos."""
    optimizer = OptimizerConfig(learning_rate=1e30, warmup_steps=0)
    with pytest.raises(HapvrError, match=r"training: step \d+: .* are own-train/.*learning_rate"):
        run(small_project, tmp_path, with_train(small_project, optimizer=optimizer, steps=50))


def test_secrets_of_the_environment_are_stored_by_name(
    small_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the folder of a run nor MLflow holds the value of `${NAME}`; the stored configuration
    gives an equal one."""
    monkeypatch.setenv("HOOK_URL", "https://hooks.example/s3cret")
    lines = dump_config(small_project.config).replace(
        "watch:\n", "watch:\n  webhook: {url: '${HOOK_URL}'}\n"
    )
    path = tmp_path / "config.yaml"
    path.write_text(lines.replace("  webhook: null\n", ""), encoding="utf-8")
    project = Project.open(path, folder=small_project.folder)
    webhook = project.config.watch.webhook
    assert webhook.url == os.environ["HOOK_URL"]
    training = prepare_training(project, "secrets", tags={})
    assert load_config(training.folder / "config.yaml") == project.config
    params = tracker_of(project).client.get_run(training.mlflow_run_id).data.params
    assert {"train", "watch"} & {name.partition(".")[0] for name in params} == {"train"}
    stored = [
        file
        for place in (training.folder, project.root.local_path("mlflow"))
        for file in place.rglob("*")
    ]
    assert not [file for file in stored if file.is_file() and b"s3cret" in file.read_bytes()]
