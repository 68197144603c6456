"""`hapvr verify`: exit codes, and what it says of damaged files."""

from __future__ import annotations

import shutil
from pathlib import Path

from hapvr.data.manifest import shard_keys
from hapvr.steps.project import Project
from tests.commands.conftest import Call
from tests.conftest import write_settings


def test_verify_names_and_repairs(call: Call, small_project: Project, clips_folder: Path, tmp_path: Path) -> None:
    """A flipped bit is found: exit 1 with the file; --repair makes the file again, and the next call exits with 0."""
    assert small_project.root.local is not None
    root = tmp_path / "data"
    shutil.copytree(small_project.root.local, root)
    settings = small_project.config.model_dump(mode="json") | {"data_root": str(root)}
    config = write_settings(tmp_path / "config.yaml", settings)
    key = shard_keys(small_project.root)[0]
    path = root / f"features/{key}/data.parquet"
    whole = path.read_bytes()
    before = call("verify", "--config", config)
    assert before.code == 0, [line for line in before.out.splitlines() if ": ok" not in line]
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    found = call("verify", "--config", config, "--json")
    assert found.code == 1
    (damaged,) = [one for one in found.json["files"] if one["state"] != "ok"]
    assert (damaged["kind"], damaged["key"], damaged["state"]) == ("features", key, "damaged")
    assert "hapvr verify --config FILE --repair" in damaged["message"]
    repaired = call("verify", "--config", config, "--repair")
    assert repaired.code == 0, repaired.out
    assert f"features {key}: repaired" in repaired.out
    assert path.read_bytes() == whole
