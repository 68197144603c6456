"""`hapvr index`."""

from pathlib import Path

import pytest

from hapvr.steps.project import Project
from tests.commands.conftest import Call
from tests.steps.search_projects import copied_project, network_folder


def test_an_index_is_made_and_shown(
    call: Call, small_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing yet; an update; what it holds; a second update; an index built anew."""
    copied_project(small_project, tmp_path)
    network_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ("--config", "config.yaml")
    done = call("index", "status", *options)
    assert done.code == 1
    assert "`hapvr index build` makes one" in done.error
    made = call("index", "update", *options, "--model", "network-0", "--json")
    assert made.code == 0, made.error
    assert made.json["passed"]
    assert len(made.json["added"]) == len(made.json["shards"]) > 1
    assert made.json["model"] == str(tmp_path / "network-0")
    shown = call("index", "status", *options, "--json").json
    assert {name: shown[name] for name in ("videos", "frames", "digest", "place")} == {
        name: made.json[name] for name in ("videos", "frames", "digest", "place")
    }
    assert (shown["missing"], shown["awaited"]) == ([], [])
    text = call("index", "status", *options).out
    assert (
        f"holds    {shown['videos']} videos with {shown['frames']} frames, compared one by one"
        in text
    )
    again = call("index", "update", *options, "--model", "network-0", "--json").json
    assert (again["added"], again["replaced"], again["removed"]) == ([], [], [])
    anew = call("index", "build", *options, "--model", "network-0", "--json").json
    assert anew["place"] != made.json["place"]
    assert anew["added"] == made.json["added"]
