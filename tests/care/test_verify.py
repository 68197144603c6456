"""`hapvr verify` and its repairs: every kind of file is checked, nothing is lost, users' files are
left alone."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hapvr.care.repair import repair
from hapvr.care.stores import STORES
from hapvr.care.verify import verify_root
from hapvr.data.manifest import VIDEO_COLUMNS
from hapvr.errors import DamagedError
from hapvr.networks.whitening import load_whitening, save_whitening, whitening_provenance
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.steps.whitening import make_whitening
from tests.care.damage import damage, damaged, names
from tests.conftest import open_small_project, write_clip
from tests.steps.data_projects import folder_settings, open_project
from tests.steps.search_projects import copied
from tests.steps.test_data_download import KEY, web_project
from tests.video.site import Site, serve


@pytest.fixture(scope="module")
def generated(clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of five clips with the benchmarks that are generated of them. Who damages it,
    repairs it."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "clips").mkdir()
    for clip in sorted(clips_folder.glob("clip *.mp4"))[:5]:
        shutil.copyfile(clip, folder / "clips" / clip.name)
    project = open_small_project(folder / "clips", folder)
    for key in make_manifest(project).shards:
        make_videos(project, key)
    return project


def benchmarks(project: Project) -> tuple[Path, Path]:
    """The folders of the generated benchmarks, of test and validation."""
    test, validation = sorted((project.root.local / "corpus").iterdir())
    return test, validation


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*It is rebuilt")
def test_generated_videos_and_benchmarks_are_repaired_to_the_bytes_of_before(
    generated: Project,
) -> None:
    """Each file that is damaged is named."""
    test, validation = benchmarks(generated)
    files = [test / "labels.parquet", validation / "videos.parquet"]
    files += [next(folder.rglob("*.mp4")) for folder in (test, validation)]
    before = {path: path.read_bytes() for path in files}
    assert damaged(generated) == []
    for path in files:
        damage(path)
    checks = damaged(generated)
    assert [path for path in before if not names(checks, path)] == []
    assert {check.state for check in repair(generated, checks)} == {"repaired"}
    assert {path: path.read_bytes() for path in files} == before
    assert damaged(generated) == []


@pytest.mark.slow
def test_benchmarks_are_checked_without_the_videos(generated: Project) -> None:
    """Where those are left out, damage to a table is found."""
    test, _ = benchmarks(generated)
    whole = {
        path: path.read_bytes() for path in (test / "labels.parquet", next(test.rglob("*.mp4")))
    }
    for path in whole:
        damage(path)
    checks = verify_root(generated.root, kinds=STORES.keys() - {"downloads"})
    for path, content in whole.items():
        path.write_bytes(content)
    assert {check.kind for check in checks if check.state != "ok"} == {"corpus"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hint"),
    [("corpus.json", "remove the folder"), ("benchmark.json", ""), ("segments.parquet", "")],
)
def test_a_damaged_file_of_a_benchmark_is_named(generated: Project, name: str, hint: str) -> None:
    file = benchmarks(generated)[0] / name
    whole = file.read_bytes()
    damage(file)
    (check,) = damaged(generated)
    file.write_bytes(whole)
    assert name in check.message
    assert hint in check.message


@pytest.mark.slow
def test_a_clip_of_the_user_that_is_replaced_is_no_damage(generated: Project) -> None:
    clip = generated.folder / "clips" / "clip 00.mp4"
    whole = clip.read_bytes()
    clip.unlink()
    clip.write_bytes(b"another video")
    checks = damaged(generated)
    clip.write_bytes(whole)
    assert checks == []


def one_clip(folder: Path, place: str = "in/0.mp4", *, frames: bool = True) -> tuple[Project, Path]:
    """A project of one clip, with its frames if asked for, and the clip."""
    clip = write_clip(folder / place, seed=0, seconds=2)
    project = open_project(folder, folder_settings(clip.parent, folder / "data"))
    make_manifest(project)
    make_videos(project, "in-00000")
    if frames:
        make_frames(project, "in-00000")
    return project, clip


def test_a_shard_of_the_manifest_that_is_gone(tmp_path: Path) -> None:
    """Its videos are still there: it is named, and nothing makes it up."""
    project, _ = one_clip(tmp_path, frames=False)
    shutil.rmtree(project.root.local / "manifest" / "in-00000")
    (left,) = repair(project, damaged(project))
    assert left.kind == "video_manifest"
    assert left.key == "in-00000"
    assert left.state == "damaged"
    assert "Restore the manifest from a copy" in left.message


def test_a_shard_whose_drive_is_away_keeps_what_it_has(tmp_path: Path) -> None:
    """A flipped bit in its frames: they cannot be made again now, and are not replaced by rows that
    say so."""
    project, clip = one_clip(tmp_path)
    data = project.root.local / "frames" / "in-00000" / "data.parquet"
    damage(data)
    before = data.read_bytes()
    clip.parent.rename(tmp_path / "away")
    (left,) = repair(project, damaged(project))
    assert left.state == "damaged"
    assert data.read_bytes() == before
    assert "connect their drive" in left.message
    (tmp_path / "away").rename(clip.parent)
    assert [check.state for check in repair(project, damaged(project))] == ["repaired"]


def test_files_of_others_behind_links_are_not_taken_for_set_aside(tmp_path: Path) -> None:
    project, _ = one_clip(tmp_path, frames=False)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("mine")
    (project.root.local / ".set_aside").mkdir(exist_ok=True)
    (project.root.local / ".set_aside" / "x").symlink_to(tmp_path / "own")
    repair(project, verify_root(project.root))
    assert (tmp_path / "own" / "letter.txt").read_text() == "mine"
    assert not (project.root.local / "x").exists()


def test_a_part_of_a_data_root_from_an_older_copy_is_named(tmp_path: Path) -> None:
    project, clip = one_clip(tmp_path)
    older = tmp_path / "older"
    shutil.copytree(project.root.local / "videos", older)
    write_clip(clip, seed=1, seconds=2)
    make_videos(project, "in-00000")
    make_frames(project, "in-00000")
    assert damaged(project) == []
    shutil.rmtree(project.root.local / "videos")
    shutil.copytree(older, project.root.local / "videos")
    (check,) = damaged(project)
    assert check.kind == "frames"
    assert check.state == "outdated"


@pytest.fixture
def whitened(small_project: Project, tmp_path: Path) -> Project:
    """A copy of a project with features that a test may change."""
    return copied(small_project.folder, tmp_path)


def test_the_whitening_of_an_older_copy_is_named(whitened: Project) -> None:
    """By the features, which were made with another."""
    assert damaged(whitened) == []
    provenance = whitening_provenance(whitened.root)
    own = load_whitening(whitened.root)
    assert provenance is not None
    save_whitening(whitened.root, replace(own, mean=own.mean + 1), provenance)
    checks = damaged(whitened)
    assert {(check.kind, check.state) for check in checks} == {("features", "outdated")}
    assert len(checks) == len(whitened.root.list_folders("features"))


@pytest.mark.slow
def test_a_damaged_whitening_is_fitted_again_and_features_stay(whitened: Project) -> None:
    project = whitened
    features = [f"features/{key}/data.parquet" for key in project.root.list_folders("features")]
    before = project.root.modified_ns(*features)
    damage(project.root.local_path("whitening/whitening.safetensors"))
    assert {check.state for check in repair(project, damaged(project))} == {"repaired"}
    assert project.root.modified_ns(*features) == before


@pytest.mark.slow
def test_a_whitening_that_would_come_out_otherwise_is_left_to_a_person(whitened: Project) -> None:
    """Another one would be of other features."""
    project = whitened
    own = load_whitening(project.root)
    weights = project.root.local_path("whitening/whitening.safetensors")
    record = project.root.local_path("whitening/whitening.json")
    damage(weights)
    record.write_text(
        record.read_text().replace(own.sha256, "0" * 64)
    )  # as if its videos had changed since
    kept = weights.read_bytes()
    assert {check.state for check in repair(project, damaged(project))} == {"damaged"}
    assert weights.read_bytes() == kept
    record.write_text("{")
    with pytest.raises(DamagedError, match="restore it from a copy"):
        make_whitening(project)


def recorded_path(project: Project, key: str, path: str) -> None:
    """Let the record of a shard's only video name another path, as a hand could write it."""
    shard = project.shard("videos", key)
    rows = [row | {"path": path} for row in shard.rows()]
    shard.write_index(rows, provenance=shard.require({}), fields=VIDEO_COLUMNS)


@pytest.mark.parametrize("place", ["data/mine/0.mp4", "data/downloads/in-00000/0.mp4"])
def test_an_edited_clip_of_the_user_is_left_as_it_is(tmp_path: Path, place: str) -> None:
    """Also within the data root."""
    project, clip = one_clip(tmp_path, place, frames=False)
    clip.write_bytes(b"edited")
    repair(project, verify_root(project.root))
    assert clip.read_bytes() == b"edited"


def test_an_edited_clip_is_left_as_it_is_by_whatever_path_it_is_named(tmp_path: Path) -> None:
    """Here by one that passes through the downloads."""
    project, clip = one_clip(tmp_path, "own/0.mp4", frames=False)
    downloads = tmp_path / "data" / "downloads"
    downloads.mkdir()
    recorded_path(project, "in-00000", str(downloads / ".." / ".." / "own" / "0.mp4"))
    clip.write_bytes(b"edited")
    repair(project, verify_root(project.root))
    assert clip.read_bytes() == b"edited"


def test_a_damaged_registry_is_named(tmp_path: Path) -> None:
    project, _ = one_clip(tmp_path, frames=False)
    with project.root.write("mlflow/mlflow.db") as registry:
        registry.write(bytes(4096))
    (check,) = [check for check in damaged(project) if check.kind == "registry"]
    assert "damaged" in check.message


@dataclass(frozen=True)
class Download:
    """A project of one video that was downloaded, and its file."""

    project: Project
    file: Path


def downloaded(folder: Path, site: Site) -> Download:
    project = web_project(folder, site, ["0.mp4"])
    make_videos(project, KEY)
    (row,) = project.shard("videos", KEY).rows()
    assert row["status"] == "ok", row
    return Download(project, Path(row["path"]))


@pytest.mark.slow
def test_a_damaged_download_is_fetched_again(tmp_path: Path) -> None:
    with serve(write_clip(tmp_path / "0.mp4", seed=0, seconds=2).read_bytes()) as site:
        download = downloaded(tmp_path, site)
        damage(download.file)
        checks = damaged(download.project)
        assert [check.state for check in repair(download.project, checks)] == ["repaired"]

    assert damaged(download.project) == []


@pytest.mark.slow
def test_a_damaged_download_that_cannot_be_fetched_again_is_kept(tmp_path: Path) -> None:
    with serve(write_clip(tmp_path / "0.mp4", seed=0, seconds=2).read_bytes()) as site:
        download = downloaded(tmp_path, site)

    damage(download.file)
    before = download.file.read_bytes()
    (check,) = damaged(download.project)
    assert download.file.name in check.message
    (after,) = repair(download.project, [check])
    assert after.state == "damaged"
    assert "cannot be fetched or generated again" in after.message
    assert download.file.read_bytes() == before


def test_the_index_of_imported_features_is_kept(tmp_path: Path) -> None:
    """A flipped bit in features that are of no shard of the manifest: named, and left as they
    are."""
    project, _ = one_clip(tmp_path)
    root = project.root.local
    shutil.copytree(root / "frames" / "in-00000", root / "frames" / "imported-00000")
    damage(root / "frames" / "imported-00000" / "data.parquet")
    before = {path: path.read_bytes() for path in (root / "frames" / "imported-00000").iterdir()}
    (check,) = damaged(project)
    (after,) = repair(project, [check])
    assert "the manifest lacks it" in after.message
    assert {
        path: path.read_bytes() for path in (root / "frames" / "imported-00000").iterdir()
    } == before


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no other file system")
def test_a_data_root_over_two_file_systems(tmp_path: Path) -> None:
    """What is on another disk is set aside and made again, too."""
    project, _ = one_clip(tmp_path, frames=False)
    with TemporaryDirectory(dir="/dev/shm") as other_disk:
        (tmp_path / "data" / "frames").symlink_to(other_disk)
        make_frames(project, "in-00000")
        (data,) = Path(other_disk).rglob("data.parquet")
        whole = data.read_bytes()
        damage(data)
        (after,) = repair(project, damaged(project))
        assert after.state == "repaired", after
        assert data.read_bytes() == whole, after

    assert [path for path in (tmp_path / "data" / ".set_aside").rglob("*") if path.is_file()] == []
