"""Searches in a real collection: files and ids find what they show, where it is."""

import json
import shutil
from pathlib import Path

import pytest

from hapvr.errors import DataError
from hapvr.search.marks import mark
from hapvr.search.match import (
    Match,
)
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from tests.conftest import CHECKOUT
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import LONG, bundle_of


def names(matches: tuple[Match, ...]) -> list[str]:
    return [match.reference for match in matches]


@pytest.fixture
def as_demo(searched_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where configs/demo.yaml is the small collection's."""
    (tmp_path / "configs").mkdir()
    shutil.copy(searched_project.folder / "config.yaml", tmp_path / "configs" / "demo.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_notebook(
    as_demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells of the quick start, one after the other: its first video is a copy of another
    one."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = json.loads((CHECKOUT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8"))
    shared: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), shared)

    printed = capsys.readouterr().out
    assert "9 videos, the first are ['in/long.mp4'" in printed
    assert "in/trips/part.mp4" in printed
    assert "query 10 to 22 s = reference 2 to 14 s" in printed
    assert "prior 0.001: probability 0." in printed


def test_an_excerpt_is_found_at_its_second(searcher: Searcher, tmp_path: Path) -> None:
    """Six seconds of the long clip within others: the clip comes first, with the times and the
    coverage of both sides."""
    clip = write_scenes(tmp_path / "query.mp4", [500, 501, *LONG[25:31], 502, 503])
    answer = searcher.search(clip)
    best = answer.matches[0]
    assert best.reference == "in/long.mp4"
    assert best.rank == 1
    segment = best.segments[0]
    assert (segment.query_start_s, segment.query_end_s) == (2, 8)
    assert (segment.reference_start_s, segment.reference_end_s) == (25, 31)
    assert best.offset_s == 23
    assert best.query_covered == pytest.approx(0.6, abs=0.01)
    assert best.reference_covered == pytest.approx(6 / 40, abs=0.01)
    assert answer.seconds == pytest.approx(10)
    assert answer.compared == 9
    assert answer.videos == 9
    assert best.similarity > answer.matches[1].similarity


@pytest.mark.slow
def test_a_similarity_is_that_of_the_scorer(searched_project: Project, tmp_path: Path) -> None:
    """Compared whole, a video gets the number that `hapvr score` gives, up to the half precision of
    stored features."""
    searcher = Searcher.open(searched_project.folder / "config.yaml")
    clip = write_scenes(tmp_path / "query.mp4", list(LONG[3:9]))
    best = searcher.search(clip).matches[0]
    file = searched_project.folder / "videos" / "long.mp4"
    assert best.similarity == pytest.approx(searcher.scorer.score(clip, file), abs=2e-3)
    assert best.verdict == "match"


def test_parts_of_two_places_are_segments(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are found where a video is compared by parts, in whatever order the query shows them."""
    monkeypatch.setattr("hapvr.search.compared_parts.WHOLE_FRAMES", 8)
    clip = write_scenes(tmp_path / "query.mp4", [*LONG[32:38], *range(500, 504), *LONG[2:8]])
    best = searcher.search(clip).matches[0]
    assert best.reference == "in/long.mp4"
    assert {(one.query_start_s, one.reference_start_s) for one in best.segments} >= {
        (0, 32),
        (10, 2),
    }


def test_ids_find_other_videos_and_not_themselves(searcher: Searcher) -> None:
    """A video of the collection as a query gives its copy and what shares a part with it, not
    itself."""
    assert (
        names(searcher.search_id("in/short.mp4", SearchOptions(top=3)).matches)[0]
        == "in/trips/copy of short.mp4"
    )
    part_matches = searcher.search_id("in/trips/part.mp4").matches
    assert part_matches[0].reference == "in/long.mp4"
    assert part_matches[0].segments[0].reference_start_s == 10
    assert "in/trips/part.mp4" not in names(part_matches)
    with pytest.raises(DataError, match=r"no video 'in/absent\.mp4'"):
        searcher.search_id("in/absent.mp4")


def test_only_a_folder_is_searched(searcher: Searcher, tmp_path: Path) -> None:
    """The best video outside of the folder is not given."""
    clip = write_scenes(tmp_path / "query.mp4", list(LONG[10:18]))
    answer = searcher.search(clip, SearchOptions(folder="in/trips/"))
    nothing = searcher.search(clip, SearchOptions(folder="elsewhere/"))
    assert names(answer.matches)[0] == "in/trips/part.mp4"
    assert set(names(answer.matches)) <= {"in/trips/part.mp4", "in/trips/copy of short.mp4"}
    assert nothing.matches == ()
    assert (
        nothing.warnings[-1]
        == "no video of the collection has the id elsewhere/ or is in that folder"
    )


def test_a_model_of_another_network_is_refused(own_copy: Project, tmp_path: Path) -> None:
    """What --model names must be the network of the index; a bundle in another place may be."""
    other_bundle = bundle_of(own_copy, tmp_path / "other", seed=1)
    with pytest.raises(
        DataError, match=r"made with another network than .*bundle-1 has; name .*bundle-0, or"
    ):
        Searcher.open(own_copy, model=str(other_bundle))

    same = bundle_of(own_copy, tmp_path / "same")
    assert Searcher.open(own_copy, model=str(same)).num_videos == 9


def test_marks_are_respected(own_copy: Project, tmp_path: Path) -> None:
    """A pair marked as no match is left out, by content: also where the query is a copy of the file
    elsewhere."""
    searcher = Searcher.open(own_copy)
    short = searcher.collection.metadata.of("in/short.mp4")
    elsewhere = tmp_path / "renamed.mp4"
    shutil.copy(short.path, elsewhere)
    ids = ("in/trips/copy of short.mp4", "in/other 0.mp4")
    copy = searcher.collection.metadata.of(ids[0]).sha256
    other_sha256 = searcher.collection.metadata.of(ids[1]).sha256
    mark(own_copy.root, short.sha256, copy, "not_a_match", names=("a", "b"))
    mark(own_copy.root, short.sha256, other_sha256, "match", names=("a", "c"))
    answer = searcher.search(elsewhere)
    assert names(answer.matches)[0] == "in/short.mp4"
    assert "in/trips/copy of short.mp4" not in names(answer.matches)
    assert [match.rank for match in answer.matches] == list(range(1, 9))
    assert {match.reference: match.mark for match in answer.matches if match.mark} == {
        "in/other 0.mp4": "match"
    }
    # a match that moves up has segments, too
    best, *more = searcher.search_id("in/short.mp4", SearchOptions(top=1)).matches
    assert "in/other 0.mp4" in names([best, *more][:2])  # of what was marked all is there
    assert best.query_covered is not None
    # what somebody said stays, whatever the model thinks
    kept = searcher.search(elsewhere, SearchOptions(min_probability=0.9999)).matches
    assert [(match.reference, match.verdict, match.same_file) for match in kept] == [
        ("in/short.mp4", "match", True),
        ("in/other 0.mp4", "match", False),
    ]
    assert "in/trips/copy of short.mp4" not in names(searcher.search_id("in/short.mp4").matches)
