"""What a query can be: files, pictures and parts of them; and what cannot be one."""

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hapvr.data.frames import INDEX_COLUMNS
from hapvr.demo.corpus import write_mp4
from hapvr.errors import VideoError
from hapvr.scorer.access import Access
from hapvr.search.match import (
    Part,
    answer_or_error,
    answer_table,
    answer_values,
)
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from tests.conftest import write_sound
from tests.scorer.bundles import BLACK, scene, write_scenes
from tests.steps.search_projects import LONG


def test_a_picture_in_a_picture_is_found(searcher: Searcher, tmp_path: Path) -> None:
    """Ten seconds of the long clip on a quarter of other, changing pictures: by that part of the
    picture, not by the whole."""
    host = [
        Image.fromarray(scene(600 + second)).resize((2, 2)).resize((192, 160))
        for second in range(10)
    ]
    for frame, shown in zip(host, LONG[25:35], strict=True):
        frame.paste(Image.fromarray(scene(shown)).resize((96, 80)), (96, 80))
    write_mp4(tmp_path / "query.mp4", np.repeat(np.stack(host), 4, axis=0), fps=4)
    query = searcher.read(tmp_path / "query.mp4")
    best = searcher.answer(query, SearchOptions()).matches[0]
    assert best.reference == "in/long.mp4"
    assert best.inner_picture
    assert best.verdict in ("match", "unsure")
    assert best.offset_s == 25
    (whole, *_), _ = searcher.find(searcher.scorer.views(query.features)[:1])
    assert whole.similarity < 0.5 < 0.7 < best.similarity
    matrix = searcher.matrix(query, "in/long.mp4", max_cells=10_000)
    assert matrix["values"][range(10), range(25, 35)].mean() > matrix["threshold"]


def test_a_still_picture_finds_its_second(searcher: Searcher, tmp_path: Path) -> None:
    """A picture of any size, saved with loss, finds the video that shows it."""
    picture = tmp_path / "still.jpg"
    Image.fromarray(scene(LONG[17])).resize((300, 250)).save(picture, quality=60)
    answer = searcher.search(picture)
    assert answer.matches[0].reference in ("in/long.mp4", "in/trips/part.mp4")
    starts = {match.reference: match.segments[0].reference_start_s for match in answer.matches[:2]}
    assert starts == {"in/long.mp4": 17, "in/trips/part.mp4": 9}


def test_a_part_of_a_query_is_searched_alone(searcher: Searcher, tmp_path: Path) -> None:
    """Of two scenes in a query, the one in the part decides; times stay those of the whole
    query."""
    clip = write_scenes(tmp_path / "two.mp4", [*LONG[5:11], *range(300, 306)])
    first = searcher.search(clip, SearchOptions(part=Part(end_s=6))).matches[0]
    assert first.reference == "in/long.mp4"
    second = searcher.search(clip, SearchOptions(part=Part(start_s=6))).matches[0]
    assert second.reference.endswith("short.mp4")
    assert second.segments[0].query_start_s == 6
    moment = searcher.search(clip, SearchOptions(part=Part(start_s=7.5, end_s=9.5))).matches[0]
    assert moment.reference.endswith("short.mp4")
    with pytest.raises(VideoError, match=r"lasts 12.0 s and has no frame from 60 s on"):
        searcher.search(clip, SearchOptions(part=Part(start_s=60)))


def test_seconds_of_a_broken_clock_are_noted(own_copy: Project, tmp_path: Path) -> None:
    """Of the query and of what is found, and neither is called partly readable."""
    shard = own_copy.shard("frames", "in-00000")
    index = shard.read()
    noted = "the file's clock jumps"
    rows = [
        row | {"message": noted} if row["video_id"] == "in/long.mp4" else row
        for row in index.rows()
    ]
    shard.write_index(rows, provenance=index.provenance, fields=INDEX_COLUMNS)
    once = write_scenes(tmp_path / "once.ts", list(LONG[3:9])).read_bytes()
    again = tmp_path / "again.ts"
    again.write_bytes(once + once)
    answer = Searcher.open(own_copy).search(again)
    assert answer.matches[0].reference == "in/long.mp4"
    clock_warnings = [text for text in answer.warnings if noted in text]
    assert [text.partition(": ")[0] for text in clock_warnings] == [str(again), "in/long.mp4"]


@pytest.fixture(scope="module")
def unusable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are no queries."""
    folder = tmp_path_factory.mktemp("unusable")
    write_sound(folder / "sound.mp4")
    (folder / "text.mp4").write_text("no video")
    (folder / "text.png").write_text("no picture")
    write_scenes(folder / "black.mp4", [BLACK] * 2)
    return folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sound.mp4", "no_video_stream"),
        ("text.mp4", "not_video"),
        ("text.png", "not_video"),
        ("absent.mp4", "missing_file"),
        ("black.mp4", "no_picture"),
    ],
)
def test_a_query_that_cannot_be_used_says_why(
    searcher: Searcher, unusable: Path, name: str, reason: str
) -> None:
    query = str(unusable / name)
    answer = answer_or_error(query, partial(searcher.search, query))
    assert answer.error.startswith(f"{reason}: ")
    assert answer.matches == ()


def test_a_query_on_the_network_is_not_allowed(searcher: Searcher) -> None:
    with pytest.raises(VideoError) as refused:
        searcher.search("http://127.0.0.1:9/x.mp4")
    assert refused.value.reason == "not_allowed"


def test_a_query_outside_of_the_allowed_folders_is_not_read(
    searcher: Searcher, unusable: Path
) -> None:
    with pytest.raises(VideoError) as refused:
        searcher.search(unusable / "black.mp4", access=Access(roots=(unusable / "other",)))
    assert refused.value.reason == "not_allowed"


def test_one_frame_is_enough_for_a_query(searcher: Searcher, tmp_path: Path) -> None:
    query = write_scenes(tmp_path / "one.mp4", [LONG[4]], fps=1)
    assert searcher.search(query).matches[0].reference == "in/long.mp4"


def test_a_query_that_is_cut_is_searched_and_scored_with_a_warning(
    searcher: Searcher, tmp_path: Path
) -> None:
    whole = write_scenes(tmp_path / "one.mp4", [LONG[4]], fps=1)
    cut = write_scenes(tmp_path / "cut.mkv", LONG[:12])
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    answer = searcher.search(cut)
    (score,) = searcher.scorer.score_pairs([(cut, whole)])
    assert answer.warnings[-1].startswith(f"only a part of {cut} can be read: frames end at ")
    assert score.warning.endswith(answer.warnings[-1].partition(" read: ")[2])


def test_a_name_that_is_no_utf_8_is_a_query_like_any_other(
    searcher: Searcher, tmp_path: Path
) -> None:
    """Tables and JSON can be written of its answer, also of one that is an error."""
    clip = tmp_path / os.fsdecode(b"b\xff.mp4")
    write_scenes(tmp_path / "a.mp4", list(LONG[10:18])).rename(clip)
    absent = str(tmp_path / os.fsdecode(b"c\xff.mp4"))
    names = (str(clip), absent)
    answers = [answer_or_error(name, partial(searcher.search, name)) for name in names]
    assert [bool(answer.matches) for answer in answers] == [True, False]
    assert answers[0].query.endswith(r"b\xff.mp4")
    assert len(answer_table(answers)) > 1
    json.dumps(answer_values(answers), ensure_ascii=False).encode()
