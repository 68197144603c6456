"""Training from labelled pairs: files, clips that cover the copied part, negatives, and every family."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

from hapvr.errors import DamagedError, DataError
from hapvr.model.settings import NetworkSettings
from hapvr.model.tca.settings import TcaSettings
from hapvr.model.vvs.settings import VvsSettings
from hapvr.networks.pairs import KnownPairs
from hapvr.steps.project import Project
from hapvr.steps.training import training_shards
from hapvr.train.labelled_clips import LabelledClips
from hapvr.train.labelled_pairs import (
    LABELLED_NAME,
    LabelledPair,
    LabelledPairs,
    read_labelled_pairs,
    read_pair_rows,
    write_labelled_pairs,
)
from hapvr.train.run_folder import read_history
from tests.train.runs import run, training_ids, with_pairs

FAMILIES = {"similarity": NetworkSettings(), "tca": TcaSettings(heads=4), "vvs": VvsSettings()}
HEADER = "query_id,reference_id,query_start_s,query_end_s,reference_start_s,reference_end_s\n"


def clips_of(
    project: Project, pairs: LabelledPairs, *, rank: int = 0, ranks: int = 1, **changes: object
) -> LabelledClips:
    config = with_pairs(project, batch_videos=2, **changes)
    return LabelledClips(project.root, training_shards(project), config, pairs, rank=rank, world_size=ranks)


def test_a_file_of_pairs(tmp_path: Path) -> None:
    """CSV and Parquet give the same rows; times may be empty, or written as hh:mm:ss."""
    text = HEADER + "a,b,1,4.5,00:01:00,00:01:04\nc,d,,,,\n"
    (tmp_path / "pairs.csv").write_text(text)
    rows = read_pair_rows(tmp_path / "pairs.csv")
    assert rows == [
        (f"{tmp_path / 'pairs.csv'}, row 1", LabelledPair(("a", "b"), ((1.0, 4.5), (60.0, 64.0)))),
        (f"{tmp_path / 'pairs.csv'}, row 2", LabelledPair(("c", "d"))),
    ]
    numbers = pl.DataFrame({"query_id": ["a"], "reference_id": ["b"], "more": [1]})
    numbers.with_columns(query_start_s=1, query_end_s=4.5, reference_start_s=60, reference_end_s=64).write_parquet(
        tmp_path / "pairs.parquet"
    )
    assert read_pair_rows(tmp_path / "pairs.parquet")[0][1] == rows[0][1]


def test_the_annotation_of_vcdb(tmp_path: Path) -> None:
    """A folder as published: every line of two videos, copies inside one video left out."""
    (tmp_path / "annotation").mkdir()
    (tmp_path / "annotation" / "event.txt").write_text(
        "a.flv,b.mp4,00:00:01,00:00:09,00:01:00,00:01:08\na.flv,a.flv,00:00:01,00:00:09,00:00:20,00:00:28\n"
    )
    ((_, found),) = read_pair_rows(tmp_path)
    assert (found.videos, found.copies) == (("a.flv", "b.mp4"), ((1.0, 9.0), (60.0, 68.0)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"pairs\.csv: no pairs"),
        ("query_id,other\na,b\n", r"pairs\.csv, row 1: no reference_id; wanted query_id"),
        (HEADER + "a,b,,,,\nc,,,,,\n", r"pairs\.csv, row 2: no reference_id"),
        (HEADER + "a,b,1,soon,2,3\n", r"row 1: could not convert string to float: 'soon'"),
        (HEADER + "a,b,1,,2,3\n", r"row 1: copies\.0\.1: .*or all four empty"),
        (HEADER + "a,b,-1,4,2,3\n", r"row 1: copies\.0: wanted 0 <= start < end"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_pair_rows(tmp_path / "pairs.csv")


def test_clips_cover_the_copied_part(pooled_project: Project) -> None:
    """A short copy is inside the clip; of a long one both clips show about the same; without times they lie anywhere."""
    a, b, c, d, *_ = training_ids(pooled_project)
    short, long = ((2.0, 3.0), (4.0, 5.0)), ((0.0, 6.0), (0.0, 6.0))
    pairs = LabelledPairs((LabelledPair((a, b), short), LabelledPair((a, b), long), LabelledPair((c, d))))
    data = clips_of(pooled_project, pairs)
    starts: set[int] = set()
    for number in range(40):
        copies = dict(zip((a, b), short, strict=True))
        for clip in data.clips(0, number):
            assert clip.first <= copies[clip.video_id][0] < copies[clip.video_id][1] < clip.first + clip.num_frames
        one, other = data.clips(1, number)
        assert abs(one.first - other.first) <= 1
        starts |= {clip.first for clip in data.clips(2, number)}
    assert starts == {0, 1, 2}
    assert {clips[0].video_id for clips in (data.clips(0, number) for number in range(20))} == {a, b}


def test_what_pairs_join_is_never_a_negative(pooled_project: Project) -> None:
    """Over batches, chains of pairs and the numbers that a bank compares; distractors are negatives of every pair."""
    a, b, c, d, *_ = training_ids(pooled_project)
    pairs = LabelledPairs((LabelledPair((a, b)), LabelledPair((b, c))), (d,))
    known = KnownPairs([pair.videos for pair in pairs.pairs])
    data = clips_of(pooled_project, pairs, distractors=("own-train",))
    again = clips_of(pooled_project, pairs, distractors=("own-train",))
    for number in range(6):
        batch = data[number]
        assert torch.equal(batch.regions, again[number].regions)
        assert batch.video_ids[2::4] == batch.video_ids[3::4] == (d, d)
        for row, one in enumerate(batch.video_ids):
            for column, other in enumerate(batch.video_ids):
                joined = known.group(one) == known.group(other)
                assert (batch.labels[row, column] >= 0) == joined
                assert (batch.source_ids[row, 0] == batch.source_ids[column, 0]) == joined
                assert (batch.labels[row, column] == 1) == (one == other or known.are_paired(one, other))
    assert data.num_videos == 4


def test_the_file_of_a_run(tmp_path: Path) -> None:
    found = LabelledPairs((LabelledPair(("a", "b"), ((0.0, 1.5), (2.0, 3.0))), LabelledPair(("a", "c"))), ("d",), 2)
    write_labelled_pairs(tmp_path, found)
    assert read_labelled_pairs(tmp_path) == found
    assert {name: found.summary()[name] for name in ("pairs", "pairs_with_copied_part", "distractors")} == {
        "pairs": 2,
        "pairs_with_copied_part": 1,
        "distractors": 1,
    }
    (tmp_path / LABELLED_NAME).write_text("{")
    with pytest.raises(DamagedError, match=r"labelled_pairs\.json is damaged .*start the training again"):
        read_labelled_pairs(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_trains(pooled_project: Project, tmp_path: Path, family: str) -> None:
    """Eight steps with finite losses that change the weights; other pairs are another training."""
    a, b, c, d, *_ = training_ids(pooled_project)
    pairs = LabelledPairs((LabelledPair((a, b), ((0.0, 5.0), (1.0, 6.0))), LabelledPair((b, c))), (d,))
    config = with_pairs(pooled_project, network=FAMILIES[family], distractors=("own-train",), batch_videos=2)
    assert run(pooled_project, tmp_path / "whole", config, labelled=pairs).steps == 8
    history = read_history(tmp_path / "whole")
    assert all(line["gradient_norm"] > 0 for line in history if "gradient_norm" in line)
    others = LabelledPairs((LabelledPair((a, b)), LabelledPair((b, c))), (d,))
    with pytest.raises(DataError, match="labelled_pairs"):
        run(pooled_project, tmp_path / "whole", config, labelled=others)
