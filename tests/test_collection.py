"""`hapvr index add`: folders become a collection that answers searches, with a calibrated baseline
and no training."""

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hapvr.care.health import health
from hapvr.care.verify import verify_root
from hapvr.collection import COLLECTION_FILE, add_folders, update_collection
from hapvr.errors import DataError, HapvrError, MissingPartError
from hapvr.networks import copies
from hapvr.progress import no_progress
from hapvr.registry.champions import champion_of
from hapvr.registry.versions import version_tags
from hapvr.scorer.description import FORMAT_VERSION
from hapvr.search.current import CURRENT
from hapvr.steps.baseline import WHITENING_TAG
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import tracker_of
from tests.commands.conftest import Call, call
from tests.conftest import write_clip
from tests.networks.copy_package import needs_copies
from tests.registry.empty_store import new_store
from tests.scorer.bundles import BLACK, write_scenes

__all__ = ["call"]


def slow(test: Callable[..., None]) -> Callable[..., None]:
    """A test of the collection that grows."""
    quiet = pytest.mark.filterwarnings("ignore:whitening")
    return pytest.mark.slow(quiet(test))


@contextmanager
def no_bar(_: str):
    yield no_progress


@dataclass(frozen=True)
class Grown:
    """A collection of one clip that got seven files more, one of them no video. The tests change it
    one after the other."""

    folder: Path
    project: Project
    first_answer: list[str]
    """ids that a search for the first clip found while it was alone"""
    first_copies: list[Any]
    videos: list[dict[str, Any]]
    """what `update_collection` says of each video"""
    copies: list[Any] | None
    frames: dict[Path, int]
    """when each table of frames was written"""

    @property
    def root(self) -> Path:
        return self.folder / "root"


def times_of(files: Iterable[Path]) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in files}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    folder = tmp_path_factory.mktemp("collection")
    root = folder / "root"
    clip = write_clip(folder / "one" / "a.mp4", seed=0)
    project = add_folders(root, [folder / "one"])
    new_store(root / "mlflow")
    _, first_copies = update_collection(project, no_bar)
    first_answer = [match.reference for match in Searcher.open(project).search(str(clip)).matches]
    for number in range(1, 7):
        write_clip(folder / "more" / f"{number}.mp4", seed=number, seconds=4)
    (folder / "more" / "bad.mp4").write_bytes(b"no video")
    write_scenes(folder / "more" / "black.mp4", [BLACK] * 3)
    settings = root / COLLECTION_FILE
    settings.write_text(settings.read_text() + "device: cpu  # mine\n")
    project = add_folders(root, [folder / "more", folder / "one"])
    videos, copies = update_collection(project, no_bar)
    frames = times_of(root.glob("**/frames/**/*.parquet"))
    return Grown(folder, project, first_answer, first_copies, videos, copies, frames)


@slow
def test_a_collection_of_one_clip_is_searched(grown: Grown) -> None:
    assert grown.first_answer == ["one/a.mp4"]
    assert grown.first_copies == []


@slow
def test_a_collection_that_grows_looks_for_copies(grown: Grown) -> None:
    assert grown.copies is not None


@slow
def test_what_a_person_wrote_into_the_settings_stays(grown: Grown) -> None:
    assert (grown.root / COLLECTION_FILE).read_text().endswith("# mine\n")


@slow
def test_files_that_are_not_searched_are_rows_with_their_reason(grown: Grown) -> None:
    """One that is no video, and one whose frames are all black: the index has neither."""
    reasons = {row["video_id"]: row["reason"] for row in grown.videos if row["status"] != "ok"}
    assert reasons == {"more/bad.mp4": "not_video", "more/black.mp4": "no_picture"}


@slow
def test_a_collection_of_black_videos_is_refused_until_one_shows_something(
    tmp_path: Path,
) -> None:
    """Also where a file that was black is replaced by another."""
    video = write_scenes(tmp_path / "videos" / "a.mp4", [BLACK] * 3)
    project = add_folders(tmp_path / "root", [tmp_path / "videos"])
    for _ in range(2):
        with pytest.raises(DataError, match="none of the 1 videos can be used"):
            update_collection(project, no_bar)

    write_clip(video, seed=1)
    videos, _ = update_collection(project, no_bar)
    assert [row["status"] for row in videos] == ["ok"]


@slow
def test_a_clip_that_came_later_is_found_and_is_a_match(grown: Grown) -> None:
    query = grown.folder / "more" / "3.mp4"
    best, second, *_ = Searcher.open(grown.project).search(str(query)).matches
    assert best.reference == "more/3.mp4"
    assert best.verdict == "match"
    assert best.probability > 0.9
    assert second.verdict != "match"


@slow
def test_the_champion_says_by_which_whitening_it_was_made(grown: Grown) -> None:
    tracker = tracker_of(grown.project)
    name = grown.project.config.tracking.registered_model
    champion = champion_of(tracker.client, name)
    assert WHITENING_TAG in version_tags(tracker.client, name, champion.version)


@slow
def test_where_nothing_changed_nothing_is_written(grown: Grown) -> None:
    before = times_of(grown.root.rglob("*.parquet"))
    videos, _ = update_collection(add_folders(grown.root, []), no_bar)
    assert videos == grown.videos
    assert times_of(before) == before


@pytest.fixture(scope="module")
def moved(grown: Grown) -> Grown:
    """A file was moved to the other folder, and then the one that it was in was renamed."""
    more = grown.folder / "more"
    shutil.move(more / "1.mp4", grown.folder / "one" / "moved.mp4")
    update_collection(add_folders(grown.root, []), no_bar)
    more.rename(grown.folder / "renamed")
    project = add_folders(grown.root, [grown.folder / "renamed"])
    videos, _ = update_collection(project, no_bar)
    return replace(grown, project=project, videos=videos)


@slow
def test_moved_files_and_a_renamed_folder_keep_their_ids_and_are_not_decoded_again(
    grown: Grown, moved: Grown
) -> None:
    assert moved.videos == grown.videos
    assert grown.frames
    assert times_of(grown.frames) == grown.frames
    assert Searcher.open(moved.project).search_id("more/3.mp4").matches


@slow
def test_a_collection_without_a_champion_is_not_updated(moved: Grown) -> None:
    tracker = tracker_of(moved.project)
    name = moved.project.config.tracking.registered_model
    champion = champion_of(tracker.client, name)
    tracker.client.delete_registered_model_alias(name, "champion")
    with pytest.raises(
        HapvrError, match="the registry has no champion, and searches are answered by models:/"
    ):
        update_collection(add_folders(moved.root, []), no_bar)

    tracker.client.set_registered_model_alias(name, "champion", str(champion.version))


@slow
def test_a_file_of_the_same_name_does_not_make_it_the_same_drive(moved: Grown) -> None:
    away = (moved.folder / "renamed").rename(moved.folder / "away")
    drive = moved.folder / "another drive"
    drive.mkdir()
    shutil.copy(away / "3.mp4", drive)
    assert len(add_folders(moved.root, [drive]).config.sources) == 3


def damage_of_registry(project: Project) -> str:
    return verify_root(project.root, kinds=("registry",))[0].message


@slow
def test_a_damaged_file_of_the_champion_is_named(moved: Grown) -> None:
    bundles = "mlflow/artifacts/models/*/artifacts/artifacts/bundle"
    for file in moved.root.glob(f"{bundles}/whitening.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    message = damage_of_registry(moved.project)
    assert "whitening.safetensors is missing or differs" in message


@slow
def test_a_registry_that_is_lost_is_named_and_is_a_concern(moved: Grown) -> None:
    (moved.root / "mlflow" / "mlflow.db").unlink()
    assert "restore mlflow/ from one back-up" in damage_of_registry(moved.project)
    assert "champion_lost" in {concern.event for concern in health(moved.project).concerns}


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("missing", "is not a folder"),
        ("root/inside", "contain each other"),
        (".", "contain each other"),
        ("empty", "no videos"),
        ("photos", "no videos"),
        ("${HOME}", "would be read from a configuration as another name"),
        ("a\x85b", "would be read from a configuration as another name"),
        ("clips", r"collection.yaml has sources of its own, so .*/clips is not read"),
        ("damaged", r"folders.yaml is not valid: sources"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, folder: str, said: str) -> None:
    for name in ("root/inside", "empty", "photos", "${HOME}", "a\x85b", "clips", "damaged"):
        (tmp_path / name).mkdir(parents=True)
        if name not in ("empty", "photos"):
            write_clip(tmp_path / name / "a.mp4", seed=0, seconds=1)

    own = (
        f"name: x\ndata_root: {tmp_path / 'root'}\nsources: [{{kind: folder, name: a, path: a}}]\n"
    )
    (tmp_path / "root" / "collection.yaml").write_text(own)
    if folder == "damaged":
        (tmp_path / "root" / "folders.yaml").write_text("sources: 5")
    (tmp_path / "photos" / "a.jpg").write_bytes(b"a picture")
    with pytest.raises(HapvrError, match=said):
        add_folders(tmp_path / "root", [tmp_path / folder])


def test_names_of_folders_and_a_copied_collection_that_leaves_the_original_alone(
    tmp_path: Path,
) -> None:
    write_clip(tmp_path / "clips" / "a.mp4", seed=0, seconds=1)
    (tmp_path / "clips").rename(tmp_path / "clips-train")
    add_folders(tmp_path / "root", [tmp_path / "clips-train"])
    write_clip(tmp_path / "clips" / "a.mp4", seed=1, seconds=1)
    added = add_folders(tmp_path / "root", [tmp_path / "clips"])
    names = [one.name for one in added.config.sources]
    assert names == ["clips-train", "clips-2"]  # ids of one are no parts of the other
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    with pytest.raises(HapvrError, match="correct it if the folder was copied or moved"):
        Project.open(tmp_path / "copy")


@pytest.mark.parametrize(
    ("config", "said"),
    [("a.yaml", "with --data"), ("s3://b/x", "an address"), ("{folder}/root", "no videos")],
    ids=["a configuration", "an address", "a data root"],
)
def test_a_configuration_is_no_data_root(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, said: str
) -> None:
    """HAPVR_CONFIG counts here as well: the root of a collection is taken, a configuration is
    refused in one sentence."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAPVR_CONFIG", config.format(folder=tmp_path))
    done = call("index", "add", tmp_path / "empty")
    assert done.code != 0
    assert said in done.error
    assert len(done.error.splitlines()) == 1
    assert not (tmp_path / "a.yaml").exists()


def test_the_data_root_of_another_configuration_is_refused(tmp_path: Path) -> None:
    write_clip(tmp_path / "clips" / "a.mp4", seed=0, seconds=1)
    (tmp_path / "root" / "manifest").mkdir(parents=True)
    with pytest.raises(HapvrError, match="another configuration"):
        add_folders(tmp_path / "root", [tmp_path / "clips"])


def test_values_that_were_replaced_stay_so_when_a_collection_is_opened_again(
    tmp_path: Path,
) -> None:
    """As a service does to take in new files; they are not written to its configuration."""
    write_clip(tmp_path / "clips" / "a.mp4", seed=0)
    root = tmp_path / "root"
    add_folders(root, [tmp_path / "clips"])
    served = Project.open(root, overrides={"sampling.workers": 3})
    project = add_folders(root, [], overrides=served.overrides)
    assert project.config.sampling.workers == 3
    assert Project.open(root).config.sampling.workers != 3


@pytest.mark.slow
def test_a_baseline_of_an_older_format_is_written_again(tmp_path: Path) -> None:
    """Nothing else makes a collection of an earlier version answer."""
    write_clip(tmp_path / "in" / "a.mp4", seed=0)
    project = add_folders(tmp_path / "root", [tmp_path / "in"])
    update_collection(project, no_bar)
    (file,) = project.root.local.glob("models/*/bundle/scorer.json")
    whole = file.read_text()
    file.write_text(json.dumps(json.loads(whole) | {"format_version": FORMAT_VERSION - 1}))
    with pytest.raises(DataError, match="is of format"):
        Searcher.open(project)
    update_collection(project, no_bar)
    assert json.loads(file.read_text()) == json.loads(whole)
    assert Searcher.open(project).search_id("in/a.mp4").matches == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "verb"),
    [
        pytest.param(None, ("index", "build"), id="missing"),
        pytest.param('{"model":', ("verify", "--repair"), id="damaged"),
    ],
)
def test_a_collection_whose_record_of_the_index_is_lost_answers_after_the_named_step(
    call: Call, tmp_path: Path, record: str | None, verb: tuple[str, ...]
) -> None:
    """Without a registry, which would say which model answers."""
    write_clip(tmp_path / "in" / "a.mp4", seed=0)
    data = ("--data", str(tmp_path / "root"))
    assert call("index", "add", str(tmp_path / "in"), *data).code == 0
    current = tmp_path / "root" / CURRENT
    model = json.loads(current.read_text())["model"]
    if record is None:
        current.unlink()
    else:
        current.write_text(record)

    assert call("search", "--id", "in/a.mp4", *data).code == 1
    checked = call("verify", *data)
    assert checked.code == 1
    assert CURRENT in checked.out
    assert call(*verb, *data).code == 0
    assert json.loads(current.read_text())["model"] == model
    assert call("search", "--id", "in/a.mp4", *data).code == 0


@pytest.mark.slow
@needs_copies
def test_a_collection_is_looked_after_where_its_network_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an installation without the package for copies, which can search nothing there."""
    write_clip(tmp_path / "in" / "a.mp4", seed=0)
    project = add_folders(tmp_path / "root", [tmp_path / "in"])
    update_collection(project, no_bar)
    monkeypatch.setattr(copies, "PACKAGE", "of-no-index")
    with pytest.raises(MissingPartError):
        Searcher.open(project)
    assert health(project).concerns == []
    assert {check.state for check in verify_root(project.root)} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("original_stays", [True, False], ids=["copied", "moved"])
def test_a_collection_in_another_place_answers_with_its_own_model(
    tmp_path: Path, original_stays: bool
) -> None:
    """Nothing of it names the place where it was made, and nothing is made again."""
    write_clip(tmp_path / "in" / "a.mp4", seed=0)
    first = add_folders(tmp_path / "root", [tmp_path / "in"])
    update_collection(first, no_bar)
    model = Searcher.open(first).model
    assert not Path(model).is_absolute()

    place = tmp_path / "another" / "place"
    shutil.copytree(tmp_path / "root", place)
    (bundle,) = (tmp_path / "root" / "models").glob("*/bundle")
    if original_stays:
        (bundle / "scorer.json").write_text("damaged: the copy is to read its own")
    else:
        shutil.rmtree(tmp_path / "root")

    settings = place / COLLECTION_FILE
    settings.write_text(settings.read_text().replace(str(tmp_path / "root"), str(place)))
    before = times_of(place.rglob("*.parquet"))
    moved = Project.open(place)
    assert Searcher.open(moved).model == model
    update_collection(moved, no_bar)
    assert times_of(before) == before
    query = str(tmp_path / "in" / "a.mp4")
    assert [match.reference for match in Searcher.open(moved).search(query).matches] == ["in/a.mp4"]
