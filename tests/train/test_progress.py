"""What a training shows to whoever started it: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from hapvr.stages.project import Project
from hapvr.stages.training import finish_training, prepare_training, training_command, training_environment
from tests.train.runs import with_train


def read_all(source: int) -> str:
    """What arrives until the other side is closed."""
    parts = []
    while True:
        try:
            part = os.read(source, 65536)
        except OSError:  # a terminal whose last user has gone
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_progress_of_a_training(small_project: Project, where: str) -> None:
    """A bar that ends at the last step, with loss and rate beside it and validations above; or a line for each."""
    config = with_train(small_project, log_every_steps=1, validate_every_steps=4, steps=8)
    project = Project(config, small_project.root, small_project.folder)
    training = prepare_training(project, f"progress-{where}", tags={})
    reader, writer = pty.openpty() if where == "terminal" else os.pipe()
    environment = os.environ | training_environment(project) | {"TERM": "xterm", "COLUMNS": "150"}
    with subprocess.Popen(training_command(project, training), env=environment, stderr=writer) as process:
        os.close(writer)
        said = read_all(reader)
    os.close(reader)
    assert process.returncode == 0, said
    assert finish_training(project, training)["steps"] == 8
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)
    assert re.search(r"step 4/8: validation/\S+ \d", said)
    if where == "terminal":
        assert re.search(r"training \S*━\S* 8/8 .*loss/total [\d.]+, clips_per_s [\d.]+", said)
    else:
        assert re.search(r"step 8/8: (loss/total|validation)", said)
        assert "━" not in said
