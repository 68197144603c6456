"""`train.precision: auto`: what is measured decides."""

from __future__ import annotations

import re

import pytest
import torch
from pydantic import ValidationError

from hapvr.config import TrainConfig
from hapvr.stages.project import Project
from hapvr.stages.training import prepare_training, run_training, training_result
from hapvr.train.precision import faster_precision
from tests.train.runs import with_train


@pytest.mark.parametrize(("gain", "chosen"), [(4.0, "bf16-mixed"), (1.5, "32-true"), (0.1, "32-true")])
def test_the_measurement_decides(gain: float, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 is never taken where its products are hardly faster, or slower."""
    times = {torch.float32: 1.0, torch.bfloat16: 1 / gain}
    monkeypatch.setattr("hapvr.train.precision._product_seconds", lambda dtype, device: times[dtype])
    assert faster_precision(torch.device("cpu")) == chosen


def test_this_machine_gets_an_answer() -> None:
    """Real products; which is faster depends on the processor."""
    assert faster_precision(torch.device("cpu")) in ("32-true", "bf16-mixed")


def test_several_processes_name_their_precision() -> None:
    """Each would measure by itself, and they could disagree."""
    with pytest.raises(ValidationError, match="precision: auto is for one process, and num_processes is 2"):
        TrainConfig(precision="auto", num_processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "bf16-mixed"])
def test_a_training_runs_and_says_what_auto_took(
    small_project: Project, capfd: pytest.CaptureFixture[str], precision: str
) -> None:
    """In a process of its own, as always."""
    config = with_train(small_project, precision=precision, steps=2)
    project = Project(config, small_project.root, small_project.folder)
    training = prepare_training(project, f"precision-{precision}", tags={})
    run_training(project, training)
    assert training_result(training)["steps"] == 2
    said = re.search(r"train.precision: auto takes (bf16-mixed|32-true)", capfd.readouterr().err)
    assert (said is not None) == (precision == "auto")
