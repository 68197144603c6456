"""`hapvr benchmarks`."""

from pathlib import Path

from hapvr.benchmark.definitions.catalog import load_definition
from tests.commands.conftest import Call
from tests.conftest import BAD_FILES


def test_list_says_what_there_is(call: Call) -> None:
    """Text and JSON name every benchmark."""
    found = call("benchmarks", "list", "--json").json["benchmarks"]
    assert {"fivr-5k", "fivr-200k", "evve", "svd", "cc_web_video"} <= set(found)
    text = call("benchmarks", "list").out
    assert all(name in text for name in found)


def test_make_gives_a_benchmark_and_counts_unusable_files(call: Call, clips_folder: Path, tmp_path: Path) -> None:
    """Every good clip is a query, every bad file is named with its reason, and the folder is a benchmark."""
    clips = tmp_path / "clips"
    clips.mkdir()
    for name in ("clip 00.mp4", "clip 01.mp4", *BAD_FILES):
        (clips / name).write_bytes((clips_folder / name).read_bytes())
    out = tmp_path / "made"
    done = call("benchmarks", "make", "--videos", clips, "--out", out, "--name", "mine", "--json")
    assert done.code == 0, done.error
    assert done.json["queries"] == 2
    assert {Path(path).name for path in done.json["unusable"]} == set(BAD_FILES)
    assert all(done.json["unusable"].values())
    definition = load_definition(done.json["folder"])
    assert (len(definition.queries), len(definition.database)) == (2, done.json["database"])
