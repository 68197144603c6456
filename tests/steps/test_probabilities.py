"""How sure an answer is, and what explains it."""

import math
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest

from hapvr.errors import DataError
from hapvr.scorer.access import Deadline
from hapvr.scorer.calibration import Calibration, chance
from hapvr.search.match import (
    CANNOT_SAY,
    SearchAnswer,
)
from hapvr.steps.explanation import explain
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import LONG, bundle_of


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


@pytest.mark.slow
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


def test_without_calibration_nothing_is_unsure(own_copy: Project, tmp_path: Path) -> None:
    """The answer says that it cannot say; only the query's own file is a match."""
    searcher = Searcher.open(own_copy, model=str(bundle_of(own_copy, tmp_path, fitted=None)))
    answer = searcher.search_id("in/long.mp4")
    assert answer.headline == CANNOT_SAY
    assert answer.precision is None
    assert {match.verdict for match in answer.matches} == {None}
    answer = searcher.search(searcher.collection.metadata.of("in/short.mp4").path or "")
    assert answer.headline == f"1 video matches; the others are {CANNOT_SAY}"
