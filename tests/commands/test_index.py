"""`hapvr index`."""

import shutil
from pathlib import Path

import pytest

from hapvr.files import file_sha256
from hapvr.steps.project import Project
from tests.commands.conftest import Call
from tests.conftest import write_clip
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
    updated = call("index", "update", *options, "--model", "network-0", "--json")
    assert updated.code == 0, updated.error
    assert updated.json["passed"]
    assert len(updated.json["added"]) == len(updated.json["shards"]) > 1
    assert updated.json["model"] == str(tmp_path / "network-0")
    shown = call("index", "status", *options, "--json").json
    assert {name: shown[name] for name in ("videos", "frames", "digest", "place")} == {
        name: updated.json[name] for name in ("videos", "frames", "digest", "place")
    }
    assert shown["missing"] == []
    assert shown["awaited"] == []
    text = call("index", "status", *options).out
    assert (
        f"holds    {shown['videos']} videos with {shown['frames']} frames, compared one by one"
        in text
    )
    again = call("index", "update", *options, "--model", "network-0", "--json").json
    assert again["added"] == []
    assert again["replaced"] == []
    assert again["removed"] == []
    anew = call("index", "build", *options, "--model", "network-0", "--json").json
    assert anew["place"] != updated.json["place"]
    assert anew["added"] == updated.json["added"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:whitening")
def test_adding_videos_runs_the_watch_lists(call: Call, tmp_path: Path) -> None:
    """A list that is there finds what comes with the folder, and later what is new."""
    folder = tmp_path / "clips"
    for number in range(4):
        write_clip(folder / f"{number}.mp4", seed=number, seconds=4)
    data = tmp_path / "root"
    added = call("index", "add", folder, "--data", data, "--json")
    assert added.code == 0, added.error
    assert added.json["watch_lists"] == 0
    assert added.json["watched"] == 0
    refused = call("watch", "--data", data)
    assert f"a folder of clips that watch.lists names in {data}/collection.yaml" in refused.error

    leak = write_clip(tmp_path / "leak.mp4", seed=9, seconds=4)
    watched = data / "watch" / "lists" / "leak" / f"{file_sha256(leak)}.mp4"
    watched.parent.mkdir(parents=True)
    shutil.copy(leak, watched)
    shutil.copy(leak, folder / "new.mp4")
    text = call("index", "add", "--data", data).out
    assert "1 watch list compared, " in text
    watching = call("watch", "--data", data, "--json").json
    assert watching["shards"] == []  # all were compared by then
    assert "clips/new.mp4" in [match["video_id"] for match in watching["matches"]]
