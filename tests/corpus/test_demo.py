"""The demo corpus on disk: readable files, complete definitions, equal bytes, and restarts."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import polars as pl
import pytest

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.corpus.demo import FPS, DemoCorpus, IncidentTask, make_demo_corpus, render_incident
from hapvr.corpus.edits import LIGHT_EDITS
from hapvr.corpus.plan import LABELLED_CLIP_S, plan_split
from hapvr.errors import ArgumentError, DataError
from hapvr.provenance import file_sha256

pytestmark = pytest.mark.slow


def digests(corpus: DemoCorpus) -> dict[str, str]:
    """SHA-256 of every video of a corpus."""
    return {
        f"{folder.name}/{file.name}": file_sha256(file)
        for folder in (corpus.train, corpus.validation, corpus.test)
        for file in sorted((folder / "videos").iterdir())
    }


def test_make_demo_corpus_writes_benchmarks_that_load(demo: DemoCorpus) -> None:
    """Validation and test are `clips` benchmarks with FIVR's six tasks; training has files only."""
    for folder in (demo.validation, demo.test):
        definition = load_definition(folder)
        assert definition.name == folder.name
        assert {task.name for task in definition.tasks} == {"DSVR", "CSVR", "ISVR", "DSVD", "CSVD", "ISVD"}
        assert set((folder / "videos").iterdir()) == set(definition.video_files().values())
        assert definition.provenance["fingerprint"] == demo.digest
    assert len(list((demo.train / "videos").iterdir())) == 3
    assert not (demo.train / "benchmark.json").exists()


def test_make_demo_corpus_splits_by_incident(demo: DemoCorpus) -> None:
    """No incident's footage is in two splits."""
    incidents = [
        {"-".join(file.name.split("-")[:2]) for file in (folder / "videos").iterdir()}
        for folder in (demo.train, demo.validation, demo.test)
    ]
    assert not incidents[0] & incidents[1]
    assert not incidents[0] & incidents[2]
    assert not incidents[1] & incidents[2]


def test_make_demo_corpus_files_are_small_h264(demo: DemoCorpus) -> None:
    """Files decode as H.264 at the corpus' rate, move, and take less than half a megabyte."""
    for file in sorted((demo.test / "videos").iterdir())[::3]:
        assert file.stat().st_size < 500_000
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.name == "h264"
            assert float(stream.average_rate) == FPS
            frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
        assert 3 * FPS <= len(frames) <= 16 * FPS
        assert np.abs(frames[len(frames) // 4].astype(int) - frames[len(frames) // 2]).mean() > 1


def test_make_demo_corpus_leaves_a_finished_corpus_alone(demo: DemoCorpus) -> None:
    """A second call with equal arguments writes nothing."""
    files = [file for file in demo.test.parent.rglob("*") if file.is_file()]
    before = {file: file.stat().st_mtime_ns for file in files}
    again = make_demo_corpus(demo.test.parent, name="tiny", num_incidents=3, workers=1)
    assert again == demo
    assert {file: file.stat().st_mtime_ns for file in demo.test.parent.rglob("*") if file.is_file()} == before


def test_make_demo_corpus_finishes_what_was_interrupted(demo: DemoCorpus) -> None:
    """What is missing is made again, with the same bytes; so is it in a folder of the release before, with its state."""
    before = digests(demo)
    state = demo.test / "corpus.json"
    state.write_text(json.dumps({"fingerprint": demo.digest, "complete": False}))
    (demo.test / "benchmark.json").unlink()
    victim = min((demo.test / "videos").glob("incident-*"))
    victim.unlink()
    victim.with_name(victim.name + ".part").write_bytes(b"half")
    seen: list[tuple[int, int]] = []
    make_demo_corpus(demo.test.parent, name="tiny", num_incidents=3, workers=1, progress=lambda *at: seen.append(at))
    assert digests(demo) == before
    assert load_definition(demo.test).queries
    assert seen == [(len(before) - 1, len(before)), (len(before), len(before))]


def test_render_incident_depends_on_the_seed(tmp_path: Path, demo: DemoCorpus) -> None:
    """The same clip of another seed is another film."""
    clip = plan_split("train", incidents=[0], seed=0)[0]
    render_incident(IncidentTask(tmp_path, (clip,), 5))
    assert file_sha256(tmp_path / clip.file) != file_sha256(demo.train / "videos" / clip.file)


def test_make_demo_corpus_replaces_only_its_own(tmp_path: Path) -> None:
    """A folder with the user's files is refused and stays as it was; too few incidents are refused."""
    (tmp_path / "tiny-train").mkdir()
    (tmp_path / "tiny-train" / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="tiny-train holds something else"):
        make_demo_corpus(tmp_path, name="tiny", num_incidents=3)
    assert (tmp_path / "tiny-train" / "mine.txt").read_text() == "keep"
    with pytest.raises(ArgumentError, match="num_incidents: got 1"):
        make_demo_corpus(tmp_path / "new", name="tiny", num_incidents=1)


def test_demo_knows_the_times_of_its_copies(demo: DemoCorpus) -> None:
    """Copies, and they alone, have true times; a channel's intro of one second comes before the footage."""
    definition = load_definition(demo.test)
    assert definition.segments is not None
    pair = ["query_id", "reference_id"]
    copies = definition.labels.filter(pl.col("label").is_in(["ND", "DS"])).select(pair)
    assert set(definition.segments.select(pair).iter_rows()) == set(copies.iter_rows())
    edits = {row["video_id"]: row["edit"] for row in definition.videos.iter_rows(named=True)}
    plain = 0
    for query, reference, start, end, shown, shown_end in definition.segments.iter_rows():
        assert start >= ("channel" in edits[query])
        assert shown >= ("channel" in edits[reference])
        if edits[reference].split("+")[0] in LIGHT_EDITS:
            assert (start, shown) == ("channel" in edits[query], "channel" in edits[reference])
            assert end - start == shown_end - shown == LABELLED_CLIP_S
            plain += 1
    assert plain
