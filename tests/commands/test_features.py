"""`hapvr features`: from a published HDF5 file to a benchmark's metrics."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.seeding import numpy_rng
from tests.commands.conftest import Call
from tests.commands.test_models import write_published
from tests.conftest import small_settings, write_settings


@pytest.fixture
def hdf5_file(tmp_path: Path) -> Path:
    """Features [5, 9, 32] of the first query of FIVR-5K and of its positives but one."""
    definition = load_definition("fivr-5k")
    query = definition.queries[0]
    positives = definition.labels.filter(definition.labels["query_id"] == query)["reference_id"].unique().sort()
    rng = numpy_rng("features of the command line")
    path = tmp_path / "fivr.hdf5"
    with h5py.File(path, "w") as file:
        for video in dict.fromkeys([query, *positives.to_list()[1:]]):
            file[video] = rng.standard_normal((5, 9, 32)).astype("float32")
    return path


def test_import_then_evaluate_with_a_published_checkpoint(call: Call, hdf5_file: Path, tmp_path: Path) -> None:
    """HDF5 and .pth in, metrics out; what the file lacks is counted as missing."""
    definition = load_definition("fivr-5k")
    arguments = ("--out", tmp_path / "data", "--name", "fivr-5k", "--benchmark", "fivr-5k", "--json")
    done = call("features", "import", hdf5_file, *arguments)
    assert done.code == 0, done.error
    with h5py.File(hdf5_file) as file:
        num_videos = len(file)
    assert done.json["ok"] == num_videos
    assert done.json["failed"] == {"missing": len(definition.video_ids) - num_videos}
    assert (done.json["regions"], done.json["dims"]) == (9, 32)
    assert call("features", "import", hdf5_file, *arguments).json["new_shards"] == 0

    write_published(tmp_path / "model.pth")
    call("models", "import", tmp_path / "model.pth", "--out", tmp_path / "network")
    found = [
        call(
            "evaluate",
            *("--benchmark", "fivr-5k", "--features", tmp_path / "data", "--model", tmp_path / model),
            *("--policy", "official", "--json"),
        ).json
        for model in ("model.pth", "network")
    ]
    assert found[0] == found[1]
    assert found[0]["availability"]["num_queries_scored"] == 1
    assert found[0]["tasks"]["DSVR"]["num_relevant_unavailable"] > 0


def test_import_takes_the_data_root_of_a_configuration(call: Call, hdf5_file: Path, tmp_path: Path) -> None:
    """--config says where; verify then reads the same place."""
    config = write_settings(tmp_path / "c.yaml", small_settings(tmp_path, tmp_path / "root of the configuration"))
    assert call("features", "import", hdf5_file, "--config", config).code == 0
    assert (tmp_path / "root of the configuration/features/imported-00000/index.parquet").is_file()
    assert call("features", "verify", "--config", config, "--json").json["files"][0]["state"] == "ok"


def test_verify_names_the_damaged_shard(call: Call, hdf5_file: Path, tmp_path: Path) -> None:
    """Exit 0 while all is well; a byte more and it is exit 1 with the shard, both as text and as JSON."""
    call("features", "import", hdf5_file, "--out", tmp_path / "data")
    well = call("features", "verify", "--features", tmp_path / "data" / "features")
    assert (well.code, well.out.split(",")[0]) == (0, "features imported-00000: ok")
    with (tmp_path / "data/features/imported-00000/data.parquet").open("ab") as file:
        file.write(b"x")
    damaged = call("features", "verify", "--features", tmp_path / "data")
    assert damaged.code == 1
    assert "imported-00000: damaged" in damaged.out
    as_json = call("features", "verify", "--features", tmp_path / "data", "--json")
    assert (as_json.code, as_json.json["files"][0]["state"]) == (1, "damaged")


def test_wrong_calls_of_features(call: Call, hdf5_file: Path, tmp_path: Path) -> None:
    """Exit 2 without a place or with a wrong name, 1 for a file that is no HDF5 or a place without features."""
    (tmp_path / "text.hdf5").write_text("text")
    place = ("--out", tmp_path / "data")
    for arguments, code, message in (
        (("import", hdf5_file), 2, "--out and --config: wanted one of the two, got none"),
        (("import", hdf5_file, *place, "--config", "c.yaml"), 2, "wanted one of the two, got both"),
        (("import", hdf5_file, *place, "--name", "My Set"), 2, "name 'My Set'"),
        (("import", hdf5_file, *place, "--fps", "0"), 2, "fps 0.0"),
        (("import", tmp_path / "text.hdf5", *place), 1, "text.hdf5: not a readable HDF5 file"),
        (("import", hdf5_file, *place, "--benchmark", "fivr-6k"), 1, "'fivr-6k': neither a known name"),
        (("verify", "--features", tmp_path), 1, "holds nothing that the chain wrote"),
    ):
        done = call("features", *arguments)
        assert done.code == code, (arguments, done.error)
        assert message in done.error
    assert not (tmp_path / "data").exists()


def test_stats_count_what_is_stored(call: Call, hdf5_file: Path, tmp_path: Path) -> None:
    """Shards, videos, frames and bytes, without reading a data file; an unfinished shard is counted apart."""
    call("features", "import", hdf5_file, "--out", tmp_path / "data")
    (tmp_path / "data/features/other-00000").mkdir()
    with h5py.File(hdf5_file) as file:
        lengths = sorted(len(file[video]) for video in file)
    data = tmp_path / "data/features/imported-00000/data.parquet"
    size = data.stat().st_size
    data.unlink()
    data.write_bytes(bytes(size))
    found = call("features", "stats", "--features", tmp_path / "data", "--json").json
    assert (found["num_shards"], found["num_unfinished"], found["num_settings"]) == (1, 1, 1)
    assert (found["num_videos"], found["num_frames"], found["num_bytes"]) == (len(lengths), sum(lengths), size)
    assert found["frames_per_video"] == [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    assert f"num_frames: {sum(lengths)}" in call("features", "stats", "--features", tmp_path / "data").out
    empty = call("features", "stats", "--features", tmp_path / "nothing")
    assert (empty.code, "is finished; run `hapvr extract`" in empty.error) == (1, True)
