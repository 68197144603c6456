"""The demo corpus: plans with FIVR's labels; on disk readable files, complete definitions, equal
bytes, and restarts."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from hapvr.benchmark.definition import load_definition
from hapvr.demo import corpus
from hapvr.demo.edits import EDITS, LIGHT_EDITS
from hapvr.files import PART_SUFFIX, file_sha256


def clip(
    *, incident: str = "a", camera: int = 0, start_s: float = 0.0, edit: str = "none"
) -> corpus.Clip:
    """Ten seconds of a camera."""
    return corpus.Clip(
        "x.mp4", "database", corpus.Footage(incident, 0, camera, start_s, 10.0), edit=edit
    )


@pytest.mark.parametrize(
    ("reference", "label"),
    [
        (clip(edit="crop"), "ND"),
        (clip(edit="flip"), "DS"),
        (clip(start_s=4.0), "ND"),
        (clip(camera=1, start_s=9.5), "CS"),
        (clip(camera=1, start_s=10.0), "IS"),
        (clip(start_s=20.0, edit="crop"), "IS"),
        (clip(incident="b"), None),
    ],
)
def test_pair_label_follows_camera_time_and_edit(reference: corpus.Clip, label: str | None) -> None:
    """Same footage is ND or DS, the same time from elsewhere CS, another time IS, another incident
    nothing."""
    assert corpus.pair_label(clip(), reference) == label


@pytest.mark.parametrize("num_incidents", [3, 4, 7, 26, 100])
def test_split_incidents_gives_each_incident_to_one_split(num_incidents: int) -> None:
    """No incident is in two splits, none is lost, no split is empty."""
    splits = corpus.split_incidents(num_incidents)
    assert sorted(number for numbers in splits.values() for number in numbers) == list(
        range(num_incidents)
    )
    assert all(splits.values())


def test_the_demos_plan_holds_every_edit_and_label() -> None:
    """Test has each kind of edit, two queries per incident, and each label for each query;
    distractors have none."""
    plans = {
        split: corpus.plan_split(split, numbers)
        for split, numbers in corpus.split_incidents(26).items()
    }
    assert {split: len(plan) for split, plan in plans.items()} == {
        "train": 42,
        "validation": 46,
        "test": 100,
    }
    assert len({clip.file for plan in plans.values() for clip in plan}) == 188
    plan = plans["test"]
    assert {clip.edit for clip in plan} == {"none", *EDITS}
    labels = corpus.labels_of(plan)
    assert sum(clip.role == "query" for clip in plan) == 16
    queries = defaultdict(set)
    for query, _, label in labels:
        queries[label].add(query)
    assert {label: len(queries[label]) for label in ("ND", "DS", "CS", "IS")} == {
        "ND": 16,
        "DS": 16,
        "CS": 16,
        "IS": 16,
    }
    assert not any("distractor" in reference for _, reference, _ in labels)


def digests(folders: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of every video of a corpus."""
    return {
        f"{folder.name}/{file.name}": file_sha256(file)
        for folder in folders
        for file in sorted((folder / "videos").iterdir())
    }


@pytest.mark.slow
def test_make_demo_corpus_finishes_what_was_interrupted(demo: tuple[Path, ...]) -> None:
    """What is missing is made again, with the same bytes; a finished corpus is left alone."""
    before = digests(demo)
    (demo[2] / "benchmark.json").unlink()
    victim = min((demo[2] / "videos").glob("incident-*"))
    victim.unlink()
    victim.with_name(victim.name + PART_SUFFIX).write_bytes(b"half")
    seen: list[tuple[int, int]] = []
    corpus.make_demo_corpus(
        demo[2].parent, name="tiny", num_incidents=3, progress=lambda *at: seen.append(at)
    )
    assert digests(demo) == before
    assert load_definition(demo[2]).queries
    assert seen == [(len(before) - 1, len(before)), (len(before), len(before))]
    times = {file: file.stat().st_mtime_ns for file in demo[2].parent.rglob("*")}
    assert corpus.make_demo_corpus(demo[2].parent, name="tiny", num_incidents=3) == demo
    assert {file: file.stat().st_mtime_ns for file in demo[2].parent.rglob("*")} == times


@pytest.mark.slow
def test_demo_knows_the_times_of_its_copies(demo: tuple[Path, ...]) -> None:
    """Copies, and they alone, have true times; a channel's intro of one second comes before the
    footage."""
    definition = load_definition(demo[2])
    pair = ["query_id", "reference_id"]
    copies = definition.labels.filter(pl.col("label").is_in(["ND", "DS"])).select(pair)
    assert set(definition.segments.select(pair).iter_rows()) == set(copies.iter_rows())
    edits = {row["video_id"]: row["edit"] for row in definition.videos.iter_rows(named=True)}
    plain = 0
    for query, reference, start, end, shown, shown_end in definition.segments.iter_rows():
        assert start >= ("channel" in edits[query])
        assert shown >= ("channel" in edits[reference])
        if edits[reference].split("+")[0] in LIGHT_EDITS:
            assert start == ("channel" in edits[query])
            assert shown == ("channel" in edits[reference])
            assert end - start == shown_end - shown == corpus.LABELLED_CLIP_S
            plain += 1

    assert plain
