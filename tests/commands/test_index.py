"""`hapvr index`."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from hapvr.files import file_sha256
from hapvr.reasons import PLAIN
from hapvr.steps.project import Project
from tests.commands.conftest import Call, Outcome, called
from tests.conftest import small_settings, write_clip, write_settings
from tests.steps.search_projects import copied_project, network_folder


@dataclass(frozen=True)
class Indexed:
    """What `hapvr index` answered in the folder of a project, one call after the other."""

    folder: Path
    status_before: Outcome
    update: Outcome
    status: Outcome
    status_as_text: Outcome
    second_update: Outcome
    build: Outcome


@pytest.fixture(scope="module")
def indexed(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    """Nothing yet; an update; what it holds; a second update; an index built anew."""
    folder = tmp_path_factory.mktemp("indexed")
    copied_project(small_project, folder)
    network_folder(folder)
    options = ("--config", "config.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Indexed(
            folder=folder,
            status_before=called("index", "status", *options),
            update=called("index", "update", *options, "--model", "network-0", "--json"),
            status=called("index", "status", *options, "--json"),
            status_as_text=called("index", "status", *options),
            second_update=called("index", "update", *options, "--model", "network-0", "--json"),
            build=called("index", "build", *options, "--model", "network-0", "--json"),
        )


def test_where_there_is_no_index_the_verb_that_makes_one_is_named(indexed: Indexed) -> None:
    assert indexed.status_before.code == 1
    assert "`hapvr index build` makes one" in indexed.status_before.error


def test_the_first_update_adds_every_shard(indexed: Indexed) -> None:
    assert indexed.update.code == 0, indexed.update.error
    update = indexed.update.json
    assert update["passed"]
    assert len(update["added"]) == len(update["shards"]) > 1


def test_an_update_says_by_which_model_it_was_made(indexed: Indexed) -> None:
    assert indexed.update.json["model"] == str(indexed.folder / "network-0")


@pytest.mark.parametrize("name", ["videos", "frames", "digest", "place"])
def test_the_status_is_what_the_update_said(indexed: Indexed, name: str) -> None:
    assert indexed.status.json[name] == indexed.update.json[name]


@pytest.mark.parametrize("name", ["missing", "awaited"])
def test_an_index_that_was_just_updated_waits_for_nothing(indexed: Indexed, name: str) -> None:
    assert indexed.status.json[name] == []


def test_people_are_told_how_much_an_index_holds(indexed: Indexed) -> None:
    status = indexed.status.json
    held = f"{status['videos']} videos with {status['frames']} frames, compared one by one"
    assert f"holds    {held}" in indexed.status_as_text.out


@pytest.mark.parametrize("change", ["added", "replaced", "removed"])
def test_where_nothing_is_new_an_update_changes_nothing(indexed: Indexed, change: str) -> None:
    assert indexed.second_update.json[change] == []


def test_a_build_adds_every_shard_in_another_place(indexed: Indexed) -> None:
    assert indexed.build.json["place"] != indexed.update.json["place"]
    assert indexed.build.json["added"] == indexed.update.json["added"]


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


def test_watch_lists_are_not_compared_where_there_is_no_index(call: Call, tmp_path: Path) -> None:
    """It is no success: what will be there was never looked for."""
    (tmp_path / "leaked").mkdir()
    lists = {"lists": [{"name": "leaked", "path": str(tmp_path / "leaked")}]}
    settings = small_settings(tmp_path, tmp_path / "data") | {"watch": lists}
    config = write_settings(tmp_path / "config.yaml", settings)
    outcome = call("watch", "--config", config)
    assert outcome.code == 1
    assert "there is no index below" in outcome.error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:whitening")
def test_a_file_that_cannot_be_used_has_one_reason(call: Call, tmp_path: Path) -> None:
    """In plain words; JSON has the technical one."""
    folder = tmp_path / "clips"
    write_clip(folder / "good.mp4", seed=0, seconds=4)
    (folder / "empty.mp4").touch()
    data = tmp_path / "root"
    lines = call("index", "add", folder, "--data", data).out.splitlines()
    assert f"cannot be used: clips/empty.mp4: {PLAIN['empty_file']}" in lines
    (unusable,) = call("index", "add", "--data", data, "--json").json["unusable"]
    assert unusable["reason"] == "empty_file"
    assert "empty.mp4" in unusable["message"]
