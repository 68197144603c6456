"""`hapvr index add`: folders become a collection that answers searches, with a calibrated baseline
and no training."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from hapvr.care.health import health
from hapvr.care.verify import verify_root
from hapvr.collection import COLLECTION_FILE, add_folders, update_collection
from hapvr.errors import DataError, HapvrError
from hapvr.progress import no_progress
from hapvr.registry.versions import champion_of, version_tags
from hapvr.scorer.description import FORMAT_VERSION
from hapvr.steps.baseline import WHITENING_TAG
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import tracker_of
from tests.commands.conftest import Call, call
from tests.conftest import write_clip
from tests.registry.empty_store import new_store

__all__ = ["call"]


@contextmanager
def no_bar(_: str):
    yield no_progress


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:whitening")
def test_a_collection_grows_from_one_clip(tmp_path: Path) -> None:
    """One clip is found, and so are others that come later; bad files are rows, and nothing is
    decoded twice."""
    root = tmp_path / "root"
    one = tmp_path / "one"
    more = tmp_path / "more"
    clip = write_clip(one / "a.mp4", seed=0)
    project = add_folders(root, [one])
    new_store(root / "mlflow")
    _, copies = update_collection(project, no_bar)
    assert copies == []
    assert [match.reference for match in Searcher.open(project).search(str(clip)).matches] == [
        "one/a.mp4"
    ]

    for number in range(1, 7):
        write_clip(more / f"{number}.mp4", seed=number, seconds=4)
    (more / "bad.mp4").write_bytes(b"no video")
    (root / COLLECTION_FILE).write_text(
        (root / COLLECTION_FILE).read_text() + "device: cpu  # mine\n"
    )
    project = add_folders(root, [more, one])
    videos, copies = update_collection(project, no_bar)
    assert copies is not None
    assert (root / COLLECTION_FILE).read_text().endswith("# mine\n")
    assert [row["video_id"] for row in videos if row["status"] != "ok"] == ["more/bad.mp4"]
    best, other, *_ = Searcher.open(project).search(str(more / "3.mp4")).matches
    assert best.reference == "more/3.mp4"
    assert (best.verdict, best.probability > 0.9) == ("match", True)
    assert other.verdict != "match"
    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    champion = champion_of(tracker.client, name)
    assert WHITENING_TAG in version_tags(tracker.client, name, champion.version)

    files = {path: path.stat().st_mtime_ns for path in root.rglob("*.parquet")}
    assert update_collection(add_folders(root, []), no_bar)[0] == videos
    assert {path: path.stat().st_mtime_ns for path in files} == files

    shutil.move(more / "1.mp4", one / "moved.mp4")
    update_collection(add_folders(root, []), no_bar)
    more.rename(tmp_path / "renamed")
    assert update_collection(add_folders(root, [tmp_path / "renamed"]), no_bar)[0] == videos
    frames = [path for path in files if "frames" in path.parts]
    assert {path: path.stat().st_mtime_ns for path in frames} == {
        path: files[path] for path in frames
    }
    assert Searcher.open(project).search_id("more/3.mp4").matches
    tracker.client.delete_registered_model_alias(name, "champion")
    with pytest.raises(
        HapvrError, match="the registry has no champion, and searches are answered by models:/"
    ):
        update_collection(add_folders(root, []), no_bar)

    away = (tmp_path / "renamed").rename(tmp_path / "away")
    drive = tmp_path / "another drive"
    drive.mkdir()
    shutil.copy(away / "3.mp4", drive)  # one file of the same name does not make it the same drive
    assert len(add_folders(root, [drive]).config.sources) == 3
    for file in root.glob(
        "mlflow/artifacts/models/*/artifacts/artifacts/bundle/whitening.safetensors"
    ):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert (
        "whitening.safetensors is missing or differs"
        in verify_root(project.root, kinds=("registry",))[0].message
    )
    (root / "mlflow" / "mlflow.db").unlink()
    assert (
        "restore mlflow/ from one back-up"
        in verify_root(project.root, kinds=("registry",))[0].message
    )
    assert "champion_lost" in {one.event for one in health(project).concerns}


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


def test_a_configuration_is_no_data_root(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAPVR_CONFIG counts here as well: the root of a collection is taken, a configuration is
    refused in one sentence."""
    (tmp_path / "empty").mkdir()
    for config, said in (
        ("a.yaml", "with --data"),
        ("s3://b/x", "an address"),
        (tmp_path / "root", "no videos"),
    ):
        monkeypatch.setenv("HAPVR_CONFIG", str(config))
        done = call("index", "add", tmp_path / "empty")
        assert (done.code != 0, said in done.error, len(done.error.splitlines())) == (
            True,
            True,
            1,
        ), done.error
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
