"""What plans for copies move, remembered."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hapvr.data.manifest import planned_moves
from hapvr.steps.planned_moves import remember_plan
from tests.search.test_plan import member
from tests.steps.data_projects import folder_settings, open_project

NUM_PLANS = 12


@pytest.mark.filterwarnings("ignore:plans is being made by another process")
def test_plans_that_are_written_at_once_are_all_remembered(tmp_path: Path) -> None:
    """Else the files that one of them has moved would be said to be missing."""
    project = open_project(tmp_path, folder_settings(tmp_path, tmp_path / "data"))
    kept = tmp_path / "kept.mp4"
    kept.write_text("kept")
    plans = []
    for number in range(NUM_PLANS):
        copy = tmp_path / f"{number}.mp4"
        copy.write_text(f"copy {number}")
        plans.append([member("g", kept, keep=True), member("g", copy)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(remember_plan, project), plans))
    assert len(planned_moves(project.root)) == NUM_PLANS
