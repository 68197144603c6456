"""Checkpoints: whole or not at all, of this training or refused, and room for them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hapvr.errors import DataError
from hapvr.model.settings import NetworkSettings
from hapvr.stages.project import Project
from hapvr.train.checkpoint import list_checkpoints
from tests.train.runs import run, same_weights, with_train


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file can grow beyond num_bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def damage(path: Path, how: str) -> None:
    """Cut a file in half, or turn bits in its middle."""
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_damaged_checkpoint_is_passed_over(small_project: Project, tmp_path: Path, how: str) -> None:
    """Training goes on from the one before, and ends with the same weights."""
    run(small_project, tmp_path / "whole")
    run(small_project, tmp_path / "cut")
    damage(list_checkpoints(tmp_path / "cut" / "checkpoints")[-1], how)
    assert run(small_project, tmp_path / "cut").first_step == 6
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


def test_only_damaged_checkpoints_are_refused(small_project: Project, tmp_path: Path) -> None:
    """Training does not silently begin anew."""
    run(small_project, tmp_path)
    for path in list_checkpoints(tmp_path / "checkpoints"):
        damage(path, "cut")
    with pytest.raises(DataError, match=r"step-00000008\.pt is damaged.*so are all 2 in .*delete that folder"):
        run(small_project, tmp_path)


def test_half_written_checkpoint_is_never_loaded(small_project: Project, tmp_path: Path) -> None:
    """What a killed process left under another name is no checkpoint, and is cleared away by the next one."""
    run(small_project, tmp_path)
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    newest.rename(newest.with_suffix(".part"))
    assert run(small_project, tmp_path).first_step == 6
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == [
        "step-00000006.pt",
        "step-00000008.pt",
    ]


def test_last_checkpoints_are_kept(small_project: Project, tmp_path: Path) -> None:
    """As many as asked for, the newest ones."""
    run(small_project, tmp_path, with_train(small_project, keep_checkpoints=3))
    assert [path.stem for path in list_checkpoints(tmp_path / "checkpoints")] == [
        "step-00000004",
        "step-00000006",
        "step-00000008",
    ]


def test_no_space_says_so_and_training_goes_on_afterwards(small_project: Project, tmp_path: Path) -> None:
    """A checkpoint that cannot be written leaves the one before in place, and nothing half-written."""
    run(small_project, tmp_path / "whole")
    run(small_project, tmp_path / "cut")
    for path in list_checkpoints(tmp_path / "cut" / "checkpoints")[1:]:
        path.unlink()
    with (
        largest_file(200_000),
        pytest.raises(DataError, match=r"step-00000008\.pt .* could not be written.*Make space"),
    ):
        run(small_project, tmp_path / "cut")
    assert [path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()] == ["step-00000006.pt"]
    assert run(small_project, tmp_path / "cut").first_step == 6
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


def test_checkpoint_of_another_configuration_is_refused(small_project: Project, tmp_path: Path) -> None:
    """Going on with other settings names the file, the key and both values."""
    run(small_project, tmp_path)
    with pytest.raises(DataError, match=r"step-00000008\.pt belongs to .*train\.steps: wanted 9, found 8"):
        run(small_project, tmp_path, with_train(small_project, steps=9))


def test_checkpoint_of_another_architecture_is_refused(small_project: Project, tmp_path: Path) -> None:
    """So does another network, before any weight is loaded."""
    run(small_project, tmp_path)
    with pytest.raises(DataError, match=r"train\.network\.comparator: wanted False, found True"):
        run(small_project, tmp_path, with_train(small_project, network=NetworkSettings(comparator=False)))


def test_how_the_work_is_done_may_change(small_project: Project, tmp_path: Path) -> None:
    """Settings that do not touch the weights do not stop a run from going on."""
    run(small_project, tmp_path / "whole")
    run(small_project, tmp_path / "cut")
    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    again = run(small_project, tmp_path / "cut", with_train(small_project, checkpoint_every_steps=5, log_every_steps=1))
    assert again.first_step == 6
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
