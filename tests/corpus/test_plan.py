"""Plans: splits by incident, labels as FIVR defines them, every kind of edit."""

from __future__ import annotations

import pytest

from hapvr.corpus.edits import EDITS
from hapvr.corpus.plan import Clip, Footage, label_table, pair_label, plan_split, split_incidents, video_table
from hapvr.errors import ArgumentError


def clip(*, incident: str = "a", camera: int = 0, start_s: float = 0.0, edit: str = "none") -> Clip:
    """Ten seconds of a camera."""
    return Clip("x.mp4", "database", Footage(incident, 0, camera, start_s, 10.0), edit=edit)


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
def test_pair_label_follows_camera_time_and_edit(reference: Clip, label: str | None) -> None:
    """Same footage is ND or DS, the same time from elsewhere CS, another time IS, another incident nothing."""
    assert pair_label(clip(), reference) == label


@pytest.mark.parametrize("num_incidents", [3, 4, 7, 26, 100])
def test_split_incidents_gives_each_incident_to_one_split(num_incidents: int) -> None:
    """No incident is in two splits, none is lost, no split is empty."""
    splits = split_incidents(num_incidents)
    assert sorted(number for numbers in splits.values() for number in numbers) == list(range(num_incidents))
    assert all(splits.values())


def test_split_incidents_of_the_demo() -> None:
    """The demo's 26 incidents are 14 to train, 4 to validate and 8 to test; fewer than 3 are refused."""
    assert {split: len(numbers) for split, numbers in split_incidents(26).items()} == {
        "train": 14,
        "validation": 4,
        "test": 8,
    }
    with pytest.raises(ArgumentError, match="got 2; wanted at least 3"):
        split_incidents(2)


def test_plan_split_of_the_demo_holds_every_edit_and_label() -> None:
    """The demo's test split has each kind of edit, two queries per incident, and each label for each query."""
    plan = plan_split("test", incidents=split_incidents(26)["test"], seed=0)
    assert {clip.edit for clip in plan} == {"none", *EDITS}
    labels = label_table(plan, name="demo-test")
    queries = [clip for clip in plan if clip.role == "query"]
    assert len(queries) == 16
    for label in ("ND", "DS", "CS", "IS"):
        assert labels.filter(label=label)["query_id"].n_unique() == 16


def test_plan_split_sizes_of_the_demo() -> None:
    """Files and seconds stay within what two cores can embed in the demo's time."""
    plans = {split: plan_split(split, incidents=numbers, seed=0) for split, numbers in split_incidents(26).items()}
    assert {split: len(plan) for split, plan in plans.items()} == {"train": 42, "validation": 46, "test": 100}
    assert len({clip.file for plan in plans.values() for clip in plan}) == 188


def test_tables_name_every_clip_once() -> None:
    """Ids follow from the paths, labels name clips of the table, distractors have none."""
    plan = plan_split("test", incidents=[0, 1], seed=3)
    videos, labels = video_table(plan, name="n"), label_table(plan, name="n")
    assert videos["video_id"].n_unique() == len(plan)
    assert (videos["video_id"] == "n/" + videos["path"].str.strip_prefix("videos/")).all()
    roles = dict(videos.select("video_id", "role").iter_rows())
    assert {roles[query] for query in labels["query_id"]} == {"query"}
    assert {roles[reference] for reference in labels["reference_id"]} == {"database"}
    assert not labels["reference_id"].str.contains("distractor").any()
