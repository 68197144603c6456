"""A data root in an object store: an S3 server on this machine."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from hapvr.care.verify import verify_root
from hapvr.data.features import FeatureStore
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import IDENTITY
from hapvr.errors import DataError
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.search.current import current_index
from hapvr.search.descriptors import frame_descriptors
from hapvr.seeding import torch_rng
from hapvr.steps.features import make_features
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from tests.conftest import MakeOnce
from tests.made_data import make_data
from tests.steps.data_projects import digests, finished_project, folder_settings, open_project
from tests.steps.object_store import empty_bucket
from tests.steps.search_projects import copied

pytestmark = pytest.mark.slow

KEY = "in-00000"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of an empty bucket."""
    with empty_bucket() as url:
        yield url


def objects(root: DataRoot) -> dict[str, str]:
    """Relative path -> SHA-256 of every object of a root but its id, which is a random number."""
    base = root.path("x")[:-1]
    infos = root.filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
    names = [info.path.removeprefix(base) for info in infos if info.type == pafs.FileType.File]
    return {name: root.sha256(name) for name in names if name != IDENTITY}


def test_stages_write_and_read_an_object_store(
    bucket: str, make_once: MakeOnce, tmp_path: Path
) -> None:
    """Every object has the bytes that a local root has; nothing is done twice; features come back
    by id, and from an index there as from a local one."""
    finished_folder = make_once("finished data", finished_project)
    local = copied(finished_folder, tmp_path)
    remote = open_project(tmp_path / "2", folder_settings(finished_folder / "in", bucket))
    make_data(remote)
    assert objects(remote.root) == digests(tmp_path / "data")
    assert not make_features(remote, KEY).done
    assert [check.state for check in verify_root(remote.root, kinds=("features",))] == ["ok"]
    store = FeatureStore(remote.root, [KEY])
    assert [features.shape for _, features in store.read(["in/1.mp4"])] == [(2, 9, 8)]
    with pytest.raises(DataError, match="must be on a local disk"):
        remote.root.local_path("mlflow")
    network = SimilarityNetwork(NetworkSettings(), dims=8, generator=torch_rng("object store"))
    model = search_model(remote, str(save_network(network, tmp_path / "network", metadata={})))
    answers = []
    for project in (local, remote):
        assert update_index(project, model).passed
        assert not update_index(project, model).done
        index = current_index(project.root).open(project.root, project.config.search)
        (_, regions), *_ = store.read(["in/1.mp4"])
        queries = frame_descriptors(network.embed(regions).detach().numpy()).vectors
        answers.append(index.search_frames(queries, 3).to_pylist())

    assert answers[0]
    assert answers[0] == answers[1]


def test_a_failed_upload_leaves_what_was_there(bucket: str) -> None:
    """An object is replaced as a whole or not at all."""
    root = DataRoot(bucket)
    with root.write("a/object") as stream:
        stream.write(b"old")

    def fail() -> None:
        with root.write("a/object", invalidates="a/object") as stream:
            stream.write(b"new" * 10_000_000)
            raise RuntimeError("plug pulled")

    with pytest.raises(RuntimeError, match="pulled"):
        fail()
    assert root.sha256("a/object") == hashlib.sha256(b"old").hexdigest()
