"""What a run asks of its node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import small_settings, write_settings
from tests.orchestration.conftest import Storage


def test_runs_ask_for_what_the_configuration_says(tmp_path: Path) -> None:
    """`automation.run_resources` is on the runs of that job, also where the automation starts them; other jobs ask for nothing."""
    settings = small_settings(tmp_path, tmp_path / "data")
    settings["automation"] = {"run_resources": {"extract": {"num_cpus": 2, "num_gpus": 0.5}}}
    config = write_settings(tmp_path / "config.yaml", settings)
    with Storage().instance(tmp_path, config):
        from pipelines.automation import missing_and_outdated
        from pipelines.definitions import defs

        asked = {job.name: job.tags.get("dagster-ray/config") for job in defs.resolve_all_job_defs()}
        assert json.loads(asked.pop("extract") or "") == {"num_cpus": 2.0, "num_gpus": 0.5}
        assert set(asked.values()) == {None}
        assert json.loads(missing_and_outdated.run_tags["dagster-ray/config"]) == {"num_cpus": 2.0, "num_gpus": 0.5}
