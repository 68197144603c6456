"""Descriptors and index of real features: what is taken in, when, and what answers meanwhile."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.data.features import FeatureStore, collection_shards
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import read_manifest_shard, training_shard_keys, write_manifest_shard
from hapvr.errors import DamagedError, DataError
from hapvr.search.blank_file import known_blank, read_blank
from hapvr.search.current import CURRENT, current_index
from hapvr.search.descriptors import frame_descriptors
from hapvr.search.frame_index import FrameIndex
from hapvr.steps.features import import_features, make_features
from hapvr.steps.frame_descriptors import make_descriptors
from hapvr.steps.project import Project
from hapvr.steps.search_index import IndexUpdate, outdated_index, update_index
from hapvr.steps.search_model import SearchModel, search_model
from tests.conftest import BAD_FILES
from tests.steps.data_projects import digests
from tests.steps.search_projects import copied, copied_project, network_folder


@pytest.fixture(scope="module")
def indexed(
    small_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, IndexUpdate]:
    """A project with an index; tests that change it copy it."""
    folder = tmp_path_factory.mktemp("indexed")
    project = copied_project(small_project, folder)
    return project, update_index(project, search_model(project, str(network_folder(folder))))


@pytest.fixture
def project(indexed: tuple[Project, IndexUpdate], tmp_path: Path) -> Project:
    """A copy that a test may change."""
    return copied(indexed[0].folder, tmp_path / "project")


def model_of(project: Project, *, seed: int = 0) -> SearchModel:
    return search_model(project, str(network_folder(project.folder, seed=seed)))


def serving(project: Project) -> FrameIndex:
    return current_index(project.root).open(project.root, project.config.search)


def test_a_stored_frame_finds_itself_at_its_second(indexed: tuple[Project, IndexUpdate]) -> None:
    """What is found for the features of a video, by the model's own network, is that video at the
    same times. Others may be as near: a compilation holds frames of the clips that it was made of.
    """
    project, _ = indexed
    index = serving(project)
    current = current_index(project.root)
    model = search_model(project, current.model)
    store = FeatureStore(project.root, project.root.list_folders("features"))
    assert not known_blank(project.root, current.digest, "of other features").size
    for video_id, regions in store.read(sorted(index.videos())[::4]):
        descriptors = frame_descriptors(
            model.embed(regions.numpy()), blank=read_blank(project.root, current.digest)
        )
        assert descriptors.kept.any()
        hits = index.search_frames(descriptors.vectors[descriptors.kept], 50).to_pylist()
        own = [hit for hit in hits if hit["video_id"] == video_id and hit["similarity"] > 0.999]
        for number, second in enumerate(np.flatnonzero(descriptors.kept)):  # one frame a second
            times = [hit["second"] for hit in own if hit["query_frame"] == number]
            assert min(abs(np.array(times) - second), default=np.inf) < 0.2, (video_id, number)


def test_vectors_of_another_length_are_not_searched(project: Project, tmp_path: Path) -> None:
    """Imported features may be of any; the network would give similarities above 1."""
    model = model_of(project)
    with h5py.File(tmp_path / "features.h5", "w") as file:
        for name, norm in (("one", 1), ("three", 3)):
            file[name] = np.full((2, 9, model.dims), norm / model.dims**0.5, np.float32)

    import_features(project.root, tmp_path / "features.h5", name="imported")
    with pytest.warns(UserWarning, match="three of shard imported-00000 is left out"):
        rows = make_descriptors(project, "imported-00000", model).shard.rows()
    assert {row["video_id"]: row["reason"] for row in rows} == {
        "one": "",
        "three": "no_unit_vectors",
    }
    shutil.rmtree(project.root.local_path("manifest/own-held-out-00000"))
    with pytest.raises(
        DataError, match="manifest/own-held-out-00000 is lost; restore it from a copy"
    ):
        update_index(project, model)

    write_manifest_shard(project.root, "own-held-out-00000", [])
    features = project.root.local_path("features")
    for name in ("other-00000", "own-train-00000"):
        shutil.copytree(features / "imported-00000", features / name, dirs_exist_ok=True)
    with pytest.raises(
        DataError, match="one has features in the shards imported-00000 and other-00000; move"
    ):
        update_index(project, model)

    with pytest.raises(
        DataError,
        match="shard own-train-00000 were imported, and would be replaced; give the source",
    ):
        make_features(project, "own-train-00000")


def test_generated_videos_are_left_out(
    small_project: Project, indexed: tuple[Project, IndexUpdate]
) -> None:
    """The index has every usable file of the user once, the held-out ones too, and none of the
    copies made of them."""
    project, _ = indexed
    held_out = read_manifest_shard(project.root, "own-held-out-00000")
    assert {row.split for row in held_out} == {"test"}
    (source,) = small_project.config.sources
    files = {path.name for path in small_project.path(source.path).glob("*.mp4")} - set(BAD_FILES)
    video_ids = serving(project).videos()
    assert sorted(video_id.partition("/")[2] for video_id in video_ids) == sorted(files)
    assert {video_id.partition("/")[0] for video_id in video_ids} == {"own-train", "own-held-out"}
    assert {row.video_id for row in held_out} < set(video_ids)
    keys = training_shard_keys(project.root)
    assert keys
    assert all(key.startswith("own-train-") for key in keys)
    assert not outdated_index(project, model_of(project))[0]
    assert "own-test-00000" not in shards_of(project, CHAIN["watch_matches"])


def test_new_and_removed_shards(project: Project) -> None:
    """A shard that comes is taken in, one whose folder is gone is forgotten, one that is unfinished
    stays as it was."""
    keys = collection_shards(project.root)[0]
    folder = project.root.local_path(f"features/{keys[0]}")
    aside = project.folder / "aside"
    folder.rename(aside)
    update = update_index(project, model_of(project))
    assert update.shards["removed"] == [keys[0]]
    assert set(serving(project).status().shards) == set(keys[1:])
    aside.rename(folder)
    (folder / "index.parquet").rename(project.folder / "kept.parquet")
    assert update_index(project, model_of(project)).shards["awaited"] == [keys[0]]
    (project.folder / "kept.parquet").rename(folder / "index.parquet")
    assert update_index(project, model_of(project)).shards["added"] == [keys[0]]
    (folder / "index.parquet").rename(project.folder / "kept.parquet")
    update = update_index(project, model_of(project))
    assert update.shards["removed"] == []
    assert update.shards["awaited"] == [keys[0]]
    assert set(serving(project).status().shards) == set(keys)


def test_a_shard_made_again_is_replaced_in_one_version(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kind of frames of the same shard: its videos have other descriptors, the others
    stay."""
    key = collection_shards(project.root)[0][0]
    before = serving(project)
    monkeypatch.setattr("hapvr.search.descriptors.MAX_FROZEN_SIMILARITY", 0.5)
    others = [name for name in collection_shards(project.root)[0] if name != key]
    for name in others:  # so that only one shard differs
        shutil.move(project.root.local_path(f"features/{name}"), project.folder / name)
        (project.root.local_path(f"features/{name}")).mkdir()

    update = update_index(project, model_of(project))
    assert update.shards["replaced"] == [key]
    assert update.shards["added"] == []
    assert update.shards["removed"] == []
    assert update.status.revision == before.status().revision + 1
    assert update.status.frames < before.status().frames
    assert all(update.status.shards[name] == before.status().shards[name] for name in others)


@pytest.mark.slow
def test_a_new_model_answers_when_its_index_has_passed_and_a_rollback_switches_back(
    project: Project,
) -> None:
    first = model_of(project, seed=0)
    second = model_of(project, seed=1)
    third = model_of(project, seed=2)
    old = current_index(project.root)
    assert old.digest == first.digest
    key = collection_shards(project.root)[0][0]
    make_descriptors(project, key, second)
    assert current_index(project.root) == old  # while the new one is being built
    update = update_index(project, second)
    now = current_index(project.root)
    assert update.serving == now
    assert now.digest == second.digest
    assert now.made == (now.place, old.place)
    files = digests(project.root.local_path(f"search/{first.digest}"))
    back = update_index(project, first)
    assert back.shards["added"] == []
    assert back.shards["replaced"] == []
    assert current_index(project.root).place == old.place
    assert digests(project.root.local_path(f"search/{first.digest}")) == files
    update_index(project, third)  # KEPT_MODELS is 1
    assert set(project.root.list_folders("search")) == {first.digest, third.digest}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("place", ""),
        ("place", "search/x/../../own"),
        ("made", ["mlflow/artifacts"]),
        ("digest", "x"),
    ],
)
def test_a_record_that_names_something_else_than_an_index(
    tmp_path: Path, name: str, value: object
) -> None:
    """What it names may be removed."""
    root = DataRoot(tmp_path)
    place = "search/0123456789abcdef/index-0001"
    whole = {
        "place": place,
        "model": "m",
        "digest": "0123456789abcdef",
        "recall": 1.0,
        "since": "",
        "made": [place],
    }
    root.write_json(CURRENT, whole)
    assert current_index(root).place == place
    root.write_json(CURRENT, whole | {name: value})
    with pytest.raises(DamagedError, match=name):
        current_index(root)
    (tmp_path / CURRENT).unlink()
    (tmp_path / CURRENT).mkdir()
    with pytest.raises(DataError, match=r"current\.json cannot be read"):
        current_index(root)


def test_only_indexes_that_the_record_names_are_removed(project: Project, tmp_path: Path) -> None:
    """A search that has the replaced index open goes on; a copy of it, and what lies behind a link,
    is somebody else's."""
    old = current_index(project.root)
    reader = serving(project)
    folder = project.root.local_path(old.place).parent
    shutil.copytree(folder / "index-0001", folder / "index-0007")
    (folder / "index-backup").mkdir()
    update = update_index(project, model_of(project), rebuild=True)
    now = current_index(project.root)
    assert now.place.endswith("index-0008")
    assert update.shards["added"] == [*collection_shards(project.root)[0]]
    query = np.ones((1, reader._state.dims))
    assert len(reader.search_frames(query, 5)) == 5
    shutil.move(folder / "index-0001", tmp_path / "elsewhere")
    (folder / "index-0001").symlink_to(tmp_path / "elsewhere")
    update_index(project, model_of(project))
    assert (tmp_path / "elsewhere" / "index.json").exists()
    (folder / "index-0001").unlink()
    assert sorted(path.name for path in folder.glob("index-*")) == [
        "index-0007",
        "index-0008",
        "index-backup",
    ]
    update_index(project, model_of(project), rebuild=True)
    update_index(project, model_of(project))
    assert sorted(path.name for path in folder.glob("index-*")) == [
        "index-0007",
        "index-0009",
        "index-backup",
    ]
    assert len(serving(project).search_frames(query, 5)) == 5
