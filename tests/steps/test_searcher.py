"""Searches in a real collection: files, pictures, ids and parts of them find what they show, where
it is."""

import json
import math
import os
import shutil
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hapvr.data.frames import INDEX_COLUMNS
from hapvr.demo.corpus import write_mp4
from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Access, Deadline
from hapvr.scorer.calibration import Calibration, chance
from hapvr.search.marks import mark
from hapvr.search.match import (
    CANNOT_SAY,
    Match,
    Part,
    SearchAnswer,
    answer_or_error,
    answer_table,
    answer_values,
)
from hapvr.steps.explanation import explain
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from tests.conftest import CHECKOUT, write_sound
from tests.scorer.bundles import BLACK, scene, write_scenes
from tests.steps.search_projects import LONG, bundle_of, copied


@pytest.fixture(scope="module")
def project(searchable: Path) -> Project:
    """Only to be read."""
    return Project.open(searchable / "config.yaml", folder=searchable)


@pytest.fixture(scope="module")
def searcher(project: Project) -> Searcher:
    return Searcher.open(project)


@pytest.fixture(name="copied")
def _copied(searchable: Path, tmp_path: Path) -> Project:
    """A copy that a test may change."""
    return copied(searchable, tmp_path)


def names(matches: tuple[Match, ...]) -> list[str]:
    return [match.reference for match in matches]


@pytest.fixture
def as_demo(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where configs/demo.yaml is the small collection's."""
    (tmp_path / "configs").mkdir()
    shutil.copy(project.folder / "config.yaml", tmp_path / "configs" / "demo.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_a_similarity_is_that_of_the_scorer(project: Project, tmp_path: Path) -> None:
    """Compared whole, a video gets the number that `hapvr score` gives, up to the half precision of
    stored features."""
    searcher = Searcher.open(project.folder / "config.yaml")
    clip = write_scenes(tmp_path / "query.mp4", list(LONG[3:9]))
    best = searcher.search(clip).matches[0]
    file = project.folder / "videos" / "long.mp4"
    assert best.similarity == pytest.approx(searcher.scorer.score(clip, file), abs=2e-3)
    assert best.verdict == "match"


@dataclass(frozen=True)
class Incident:
    """Answers to what asks for other footage of the incident that ten seconds of long.mp4 show."""

    calibration: Calibration
    of_untrained: SearchAnswer
    of_trained: SearchAnswer
    of_rarer: SearchAnswer
    """where a match is taken to be ten times rarer"""


@pytest.fixture(scope="module")
def incident(searcher: Searcher, tmp_path_factory: pytest.TempPathFactory) -> Incident:
    clip = write_scenes(tmp_path_factory.mktemp("incident") / "query.mp4", list(LONG[25:35]))
    query = searcher.read(clip)
    trained = replace(searcher, untrained=False)
    calibration = searcher.scorer.calibration
    assert calibration is not None
    rarer = SearchOptions(incidents=True, prior=calibration.prior / 10)
    return Incident(
        calibration=calibration,
        of_untrained=searcher.answer(query, SearchOptions(incidents=True)),
        of_trained=trained.answer(query, SearchOptions(incidents=True)),
        of_rarer=trained.answer(query, rarer),
    )


def test_an_untrained_similarity_gives_an_incident_no_probability(incident: Incident) -> None:
    assert incident.of_untrained.prior is None
    assert incident.of_untrained.matches[0].probability is None


def test_an_incident_is_answered_in_the_order_of_the_trained_similarity(
    incident: Incident,
) -> None:
    assert incident.of_trained.incidents
    similarities = [match.similarity for match in incident.of_trained.matches]
    assert similarities == sorted(similarities, reverse=True)
    assert incident.of_trained.matches[0].reference == "in/long.mp4"


def test_an_incident_has_the_probability_of_the_models_own_calibration(incident: Incident) -> None:
    probabilities = [match.probability for match in incident.of_trained.matches]
    wanted = [
        incident.calibration.probability(match.similarity) for match in incident.of_trained.matches
    ]
    assert probabilities == pytest.approx(wanted)


def test_an_incident_names_the_share_of_matches_for_which_its_probability_holds(
    incident: Incident,
) -> None:
    assert incident.of_trained.prior == incident.calibration.prior
    assert incident.of_trained.prior_of == "pairs"


def test_where_matches_are_rarer_an_incident_is_less_probable(incident: Incident) -> None:
    assert incident.of_rarer.prior == pytest.approx(incident.calibration.prior / 10)
    rarer = incident.of_rarer.matches[0].probability
    usual = incident.of_trained.matches[0].probability
    assert rarer is not None
    assert usual is not None
    assert rarer < usual


def test_one_course_makes_a_video_so_many_times_likelier(
    searcher: Searcher, tmp_path: Path
) -> None:
    """And no other one."""
    query = searcher.read(write_scenes(tmp_path / "query.mp4", list(LONG[25:35])))
    views = searcher.views_of(query, SearchOptions())
    scored, _ = searcher.score_views(views)
    alone: dict[str, float] = {}
    for candidate in chain.from_iterable(scored):
        name = candidate.video_id
        alone[name] = max(alone.get(name, -math.inf), candidate.log_odds or 0.0)

    together, _ = searcher.find(views)
    gained = {each.video_id: (each.log_odds or 0.0) - alone[each.video_id] for each in together}
    assert gained.pop("in/long.mp4") == pytest.approx(math.log(35))
    assert set(gained.values()) == {0.0}


def test_an_explanation_says_what_was_found_and_where_a_video_falls_out(
    searcher: Searcher, tmp_path: Path
) -> None:
    """What the best view adds is the log-odds of the answer, also of a video that was no
    candidate."""
    query = searcher.read(write_scenes(tmp_path / "query.mp4", list(LONG[25:35])))
    best = searcher.answer(query, SearchOptions()).matches[0]
    lines = explain(searcher, query, "in/long.mp4", SearchOptions())
    assert lines[1:3] == ["video    in/long.mp4: shown", f"rank     1  {chance(best.probability)}"]
    assert "query 0:00-0:09 = 0:25-0:34" in next(line for line in lines if "votes" in line)
    assert any("common part" in line for line in lines)
    whole = "\n".join(lines).split("\nview")[1].splitlines()
    added = sum(float(line.split()[2]) for line in whole if "log odds" in line)
    assert best.probability == pytest.approx(
        searcher.evidence.probability(added, prior=searcher.prior), abs=0.01
    )
    outranked_lines = explain(searcher, query, "in/short.mp4", SearchOptions(top=1))
    assert outranked_lines[1].endswith("left out: 1 are better")
    unlikely = explain(searcher, query, "in/short.mp4", SearchOptions(min_probability=0.9))
    assert unlikely[1].endswith("left out: its probability is below 0.9")
    few = explain(replace(searcher, candidates=1), query, "in/short.mp4", SearchOptions())
    assert "in/short.mp4: no candidate: " in few[1]
    assert few[2].partition("; ")[0] == outranked_lines[3].partition("; ")[0].replace(
        ": a candidate", ": no candidate"
    )


def test_an_explanation_of_an_unknown_video_searches_for_nothing(
    searcher: Searcher, tmp_path: Path
) -> None:
    query = searcher.read(write_scenes(tmp_path / "query.mp4", list(LONG[25:35])))
    over = Deadline(0)
    with pytest.raises(DataError, match=r"no video 'in/absent\.mp4'"):
        explain(searcher, query, "in/absent.mp4", SearchOptions(), deadline=over)


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


def test_a_picture_in_a_picture_is_found(searcher: Searcher, tmp_path: Path) -> None:
    """Ten seconds of the long clip on a quarter of other, changing pictures: by that part of the
    picture, not by the whole."""
    host = [
        Image.fromarray(scene(600 + second)).resize((2, 2)).resize((192, 160))
        for second in range(10)
    ]
    for frame, shown in zip(host, LONG[10:20], strict=True):
        frame.paste(Image.fromarray(scene(shown)).resize((96, 80)), (96, 80))
    write_mp4(tmp_path / "query.mp4", np.repeat(np.stack(host), 4, axis=0), fps=4)
    query = searcher.read(tmp_path / "query.mp4")
    best = searcher.answer(query, SearchOptions()).matches[0]
    assert best.reference == "in/long.mp4"
    assert best.inner_picture
    assert best.verdict in ("match", "unsure")
    assert best.offset_s == 10
    (whole, *_), _ = searcher.find(searcher.scorer.views(query.features)[:1])
    assert whole.similarity < 0.5 < 0.7 < best.similarity
    matrix = searcher.matrix(query, "in/long.mp4", max_cells=10_000)
    assert matrix["values"][range(10), range(10, 20)].mean() > matrix["threshold"]


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


def test_seconds_of_a_broken_clock_are_noted(copied: Project, tmp_path: Path) -> None:
    """Of the query and of what is found, and neither is called partly readable."""
    shard = copied.shard("frames", "in-00000")
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
    answer = Searcher.open(copied).search(again)
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
    answer = answer_or_error(str(unusable / name), searcher.search)
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


def test_a_model_of_another_network_is_refused(copied: Project, tmp_path: Path) -> None:
    """What --model names must be the network of the index; a bundle in another place may be."""
    other_bundle = bundle_of(copied, tmp_path / "other", seed=1)
    with pytest.raises(
        DataError, match=r"made with another network than .*bundle-1 has; name .*bundle-0, or"
    ):
        Searcher.open(copied, model=str(other_bundle))

    same = bundle_of(copied, tmp_path / "same")
    assert Searcher.open(copied, model=str(same)).num_videos == 9


def test_marks_are_respected(copied: Project, tmp_path: Path) -> None:
    """A pair marked as no match is left out, by content: also where the query is a copy of the file
    elsewhere."""
    searcher = Searcher.open(copied)
    short = searcher.collection.metadata.of("in/short.mp4")
    elsewhere = tmp_path / "renamed.mp4"
    shutil.copy(short.path, elsewhere)
    ids = ("in/trips/copy of short.mp4", "in/other 0.mp4")
    copy = searcher.collection.metadata.of(ids[0]).sha256
    other_sha256 = searcher.collection.metadata.of(ids[1]).sha256
    mark(copied.root, short.sha256, copy, "not_a_match", names=("a", "b"))
    mark(copied.root, short.sha256, other_sha256, "match", names=("a", "c"))
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


def test_without_calibration_nothing_is_unsure(copied: Project, tmp_path: Path) -> None:
    """The answer says that it cannot say; only the query's own file is a match."""
    searcher = Searcher.open(copied, model=str(bundle_of(copied, tmp_path, fitted=None)))
    answer = searcher.search_id("in/long.mp4")
    assert answer.headline == CANNOT_SAY
    assert answer.precision is None
    assert {match.verdict for match in answer.matches} == {None}
    answer = searcher.search(searcher.collection.metadata.of("in/short.mp4").path or "")
    assert answer.headline == f"1 video matches; the others are {CANNOT_SAY}"


def test_a_name_that_is_no_utf_8_is_a_query_like_any_other(
    searcher: Searcher, tmp_path: Path
) -> None:
    """Tables and JSON can be written of its answer, also of one that is an error."""
    clip = tmp_path / os.fsdecode(b"b\xff.mp4")
    write_scenes(tmp_path / "a.mp4", list(LONG[10:18])).rename(clip)
    absent = str(tmp_path / os.fsdecode(b"c\xff.mp4"))
    answers = [answer_or_error(name, searcher.search) for name in (str(clip), absent)]
    assert [bool(answer.matches) for answer in answers] == [True, False]
    assert answers[0].query.endswith(r"b\xff.mp4")
    assert len(answer_table(answers)) > 1
    json.dumps(answer_values(answers), ensure_ascii=False).encode()
