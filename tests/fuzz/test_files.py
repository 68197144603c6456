"""Bytes of every kind of file that the product reads: an error of ours, or an answer."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import strategies as st

from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5
from hapvr.config_file import load_config
from hapvr.errors import HapvrError
from hapvr.model.network import SimilarityNetwork
from hapvr.model.published import import_released
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.bundle import load_bundle, read_calibration
from hapvr.scorer.calibration import fit_calibration
from hapvr.scorer.description import CALIBRATION_FILE
from hapvr.steps.searcher import Searcher, SearchOptions
from hapvr.steps.whitening import read_pca
from hapvr.tables import USER_MEMORY_BYTES
from hapvr.train.run_folder import read_record
from hapvr.video.sources import read_list
from hapvr.workers import open_pool
from tests.fuzz.budget import damage, fuzz
from tests.serving.conftest import collection  # noqa: F401
from tests.steps.search_projects import bundle_of, copied

NOT_OURS = ("videos/", "frames/", "duplicate_pairs/")
"""What a search does not read."""


@pytest.mark.slow
def test_any_file_of_a_searched_collection(collection: Path, tmp_path: Path) -> None:  # noqa: F811
    """Parquet shards, Lance tables, JSON records, bundles, tensors: a search raises our error or
    answers."""
    project = copied(collection, tmp_path)
    root = Path(project.root.local or "")
    names = [path for path in sorted(root.rglob("*")) if path.is_file()]
    names = [path for path in names if not str(path.relative_to(root)).startswith(NOT_OURS)]
    bundle = Path(bundle_of(project, tmp_path / "bundle"))
    names += [path for path in sorted(bundle.rglob("*")) if path.is_file()]
    files = st.sampled_from(names).flatmap(
        lambda path: st.tuples(st.just(path), damage(path.read_bytes()))
    )

    @fuzz(20, drawn=files)
    def run(drawn: tuple[Path, bytes]) -> None:
        path, data = drawn
        whole = path.read_bytes()
        path.write_bytes(data)
        with suppress(HapvrError):
            if path.is_relative_to(bundle):
                load_bundle(bundle)
            else:
                Searcher.open(project).search_id("in/short.mp4", SearchOptions(top=3))

        path.write_bytes(whole)

    run()
    assert Searcher.open(project).search_id("in/short.mp4").matches


CONFIG = """
name: x
data_root: data
sources: [{kind: folder, name: in, path: videos}]
sampling: {fps: 1.0}
watch: {lists: [{name: a, path: b}]}
"""


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a"] = np.ones((4, 9, 8), np.float16)
        file["b/c"] = np.ones((2, 8), np.float32)


def read_hdf5(path: Path) -> list[object]:
    return list(read_hdf5_features(path, *survey_hdf5(path)))


def write_state(path: Path) -> None:
    torch.save({"model": SimilarityNetwork(NetworkSettings(), dims=16).state_dict()}, path)


def write_pca(path: Path) -> None:
    np.savez(path, mean=np.ones(8), DVt=np.eye(8))


def write_calibration(path: Path) -> None:
    fitted = fit_calibration(
        np.linspace(0, 1, 30), np.linspace(-1, 0.4, 50), source={}, frame_threshold=0.7
    )
    path.write_text(json.dumps(asdict(fitted)))


def write_parquet(path: Path) -> None:
    rows = {
        "url": [f"http://a/{number}.mp4" for number in range(200)],
        "start_s": [0.5, None] * 100,
    }
    pl.DataFrame(rows).write_parquet(path)


FILES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "config.yaml": (lambda path: path.write_text(CONFIG), load_config),
    "list.csv": (
        lambda path: path.write_text("url\nhttps://a/b.mp4\n" * 4),
        lambda path: read_list(path, source="x"),
    ),
    "list.parquet": (write_parquet, lambda path: read_list(path, source="x")),
    CALIBRATION_FILE: (write_calibration, lambda path: read_calibration(path.parent)),
    "run.json": (
        lambda path: path.write_text('{"run": "a", "settings": {}}'),
        lambda path: read_record(path.parent),
    ),
    "features.hdf5": (write_hdf5, read_hdf5),
    "model.pth": (write_state, import_released),
    "pca.npz": (write_pca, lambda path: read_pca(path, dims=None)),
}
"""Name of a file -> what writes a whole one, and what reads it."""


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Users' tables are read by one process with limits, which stays, in place of one for each: to
    start takes it a second."""
    with open_pool(workers=1, limits={resource.RLIMIT_AS: USER_MEMORY_BYTES}) as pool:
        monkeypatch.setattr("hapvr.workers.open_pool", lambda **_: nullcontext(pool))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", FILES)
def test_files_from_elsewhere(name: str, tmp_path: Path) -> None:
    """Configurations, tables, features and checkpoints that were damaged, or never were any."""
    write, read = FILES[name]
    path = tmp_path / name
    write(path)

    @fuzz(
        60,
        data=damage(path.read_bytes())
        | st.binary(max_size=200)
        | st.text(max_size=100).map(str.encode),
    )
    def run(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(HapvrError):
            read(path)

    run()
