"""`hapvr features`: from a published HDF5 file to a benchmark's metrics."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from hapvr.benchmark.definition import load_definition
from hapvr.seeding import numpy_rng
from tests.commands.conftest import Call
from tests.commands.test_models import write_published


@pytest.fixture
def hdf5_file(tmp_path: Path) -> Path:
    """Features [5, 9, 32] of the first query of FIVR-5K and of its positives but one."""
    definition = load_definition("fivr-5k")
    query = definition.queries[0]
    positives = (
        definition.labels.filter(definition.labels["query_id"] == query)["reference_id"]
        .unique()
        .sort()
    )
    rng = numpy_rng("features of the command line")
    path = tmp_path / "fivr.hdf5"
    with h5py.File(path, "w") as file:
        for video in dict.fromkeys([query, *positives.to_list()[1:]]):
            regions = rng.standard_normal((5, 9, 32))
            file[video] = (regions / np.linalg.norm(regions, axis=-1, keepdims=True)).astype(
                "float32"
            )

    return path


@pytest.mark.slow
def test_import_then_evaluate_with_a_published_checkpoint(
    call: Call, hdf5_file: Path, tmp_path: Path
) -> None:
    """HDF5 and .pth in, metrics out; what the file lacks is counted as missing."""
    arguments = ("--out", tmp_path / "data", "--name", "fivr-5k", "--json")
    done = call("features", "import", hdf5_file, *arguments)
    assert done.code == 0, done.error
    with h5py.File(hdf5_file) as file:
        num_videos = len(file)
    assert done.json["ok"] == num_videos
    assert done.json["failed"] == {}
    assert done.json["regions"] == 9
    assert done.json["dims"] == 32
    assert call("features", "import", hdf5_file, *arguments).json["new_shards"] == 0

    write_published(tmp_path / "model.pth")
    call("models", "import", tmp_path / "model.pth", "--out", tmp_path / "network")
    evaluations = [
        call(
            "evaluate",
            *(
                "--benchmark",
                "fivr-5k",
                "--features",
                tmp_path / "data",
                "--model",
                tmp_path / model,
            ),
            *("--policy", "official", "--json"),
        ).json
        for model in ("model.pth", "network")
    ]
    assert evaluations[0] == evaluations[1]
    assert evaluations[0]["availability"]["num_queries_scored"] == 1
