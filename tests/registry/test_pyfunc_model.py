"""The registered model through MLflow's pyfunc, in this process and in others."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models.model import ModelInfo
from mlflow.pyfunc import PyFuncModel

from hapvr.registry.logged_model import ROOMS
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.pairs import PairScore
from tests.registry.conftest import Registered
from tests.test_imports import library_modules, own_imports, parsed

COLUMNS = [
    "query",
    "reference",
    "similarity",
    "probability",
    "threshold",
    "verdict",
    "error",
    "warning",
]


@dataclass(frozen=True)
class Scored:
    """Pairs of a.mp4 and each of four files."""

    table: pd.DataFrame
    """what the registered model answers"""
    wanted: list[PairScore]
    """what the library does"""
    calibration: Calibration

    def good(self) -> Iterator[tuple[Any, PairScore]]:
        """Rows of both whose videos can be read."""
        for row, wanted in zip(self.table.itertuples(), self.wanted, strict=True):
            if not wanted.error:
                yield row, wanted


@pytest.fixture(scope="module")
def scored(model: PyFuncModel, registered: Registered) -> Scored:
    names = ["a.mp4", "b.mp4", "bad.mp4", "copy.mp4"]
    pairs = [(str(registered.clips / "a.mp4"), str(registered.clips / name)) for name in names]
    scorer = load_bundle(registered.bundle)
    assert scorer.calibration is not None
    return Scored(
        table=model.predict(pd.DataFrame(pairs, columns=["query", "reference"])),
        wanted=list(scorer.score_pairs(pairs)),
        calibration=scorer.calibration,
    )


def test_the_answer_to_pairs_is_a_table_of_these_columns(scored: Scored) -> None:
    assert list(scored.table.columns) == COLUMNS


@pytest.mark.parametrize("column", ["query", "reference", "error"])
def test_pairs_are_answered_in_their_order(scored: Scored, column: str) -> None:
    assert list(scored.table[column]) == [getattr(wanted, column) for wanted in scored.wanted]


@pytest.mark.parametrize(("column", "tolerance"), [("similarity", 1e-6), ("probability", 1e-4)])
def test_pairs_give_similarity_and_probability_of_the_library(
    scored: Scored, column: str, tolerance: float
) -> None:
    values = [getattr(row, column) for row, _ in scored.good()]
    wanted = [getattr(wanted, column) for _, wanted in scored.good()]
    assert values == pytest.approx(wanted, abs=tolerance)


def test_pairs_give_the_threshold_of_the_usual_precision(scored: Scored) -> None:
    assert set(scored.table["threshold"]) == {scored.calibration.threshold(0.95).similarity}


def test_verdicts_are_those_of_the_calibration(scored: Scored) -> None:
    wanted = [
        scored.calibration.verdict(row.similarity, precision=0.95, one_course=pair.one_course)
        for row, pair in scored.good()
    ]
    assert [row.verdict for row, _ in scored.good()] == wanted


@pytest.mark.parametrize("column", ["similarity", "probability"])
def test_a_bad_video_is_a_row_without_numbers(scored: Scored, column: str) -> None:
    """And with the reason."""
    assert scored.table["error"][2].startswith("not_video: ")
    assert pd.isna(scored.table[column][2])


@dataclass(frozen=True)
class Listed:
    """Answers to a query against a list of two references, and to one pair, with segments and at a
    precision."""

    clips: list[str]
    """the query, a copy of a part of it, and another video"""
    table: pd.DataFrame


@pytest.fixture(scope="module")
def listed(model: PyFuncModel, registered: Registered) -> Listed:
    clips = [str(registered.clips / name) for name in ("a.mp4", "copy.mp4", "b.mp4")]
    asked = pd.DataFrame(
        {"query": [clips[0]] * 2, "reference": [None, clips[2]], "references": [clips[1:], None]}
    )
    return Listed(clips, model.predict(asked, params={"segments": True, "precision": 0.5}))


def test_a_list_of_references_gives_a_row_for_each(listed: Listed) -> None:
    _, copy, another = listed.clips
    assert list(listed.table["reference"]) == [copy, another, another]


def test_segments_have_their_times(listed: Listed) -> None:
    (segment,) = listed.table["segments"][0]
    assert {name: round(value, 1) for name, value in segment.items() if name != "score"} == {
        "query_start_s": 2.0,
        "query_end_s": 5.0,
        "reference_start_s": 4.0,
        "reference_end_s": 7.0,
        "certain": 1,
    }


def test_videos_that_share_nothing_have_no_segments(listed: Listed) -> None:
    assert list(listed.table["segments"][1:]) == [[], []]


def test_a_target_precision_gives_its_threshold(listed: Listed, registered: Registered) -> None:
    calibration = load_bundle(registered.bundle).calibration
    assert calibration is not None
    assert set(listed.table["threshold"]) == {calibration.thresholds[0].similarity}


@pytest.mark.parametrize(
    ("missing", "params", "message"),
    [
        pytest.param("query", {}, "query", id="no query"),
        pytest.param("", {"precision": "many"}, "precision", id="a word"),
        *(
            pytest.param("", {"precision": value}, r"at most 0\.99", id=str(value))
            for value in (0.999, 0.0, -1.0, float("-inf"), float("nan"))
        ),
    ],
)
def test_wrong_columns_and_parameters_are_one_sentence(
    model: PyFuncModel, missing: str, params: dict[str, Any], message: str
) -> None:
    """MLflow's own kind of error, which its server passes on without a stack trace.

    missing: a column that the table lacks
    """
    pair = pd.DataFrame({"query": ["a.mp4"], "reference": ["b.mp4"]})
    with pytest.raises(MlflowException, match=message) as caught:
        model.predict(pair.drop(columns=missing or []), params=params)
    assert "stack_trace" not in json.loads(caught.value.serialize_as_json())


@pytest.fixture(scope="module")
def info(registered: Registered) -> ModelInfo:
    """What MLflow says of the registered model."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    return mlflow.models.get_model_info("models:/hapvr@champion")


@pytest.fixture(scope="module")
def files(registered: Registered) -> Path:
    """The files of the registered model."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    return Path(mlflow.artifacts.download_artifacts(artifact_uri="models:/hapvr@champion"))


def test_the_signature_has_the_columns_of_requests_and_answers(info: ModelInfo) -> None:
    assert info.signature.inputs.input_names() == ["query", "reference", "references"]
    answered = info.signature.outputs.input_names()
    assert answered[:4] == ["query", "reference", "similarity", "probability"]


def test_the_signature_has_the_parameters(info: ModelInfo) -> None:
    assert {spec.name for spec in info.signature.params.params} >= {"segments", "precision"}


def test_a_model_has_an_example(files: Path) -> None:
    example = json.loads((files / "input_example.json").read_text())
    assert example["columns"] == ["query", "reference"]


def test_the_requirements_of_a_model_are_pinned(files: Path) -> None:
    requirements = (files / "requirements.txt").read_text().splitlines()
    assert all("==" in line for line in requirements)
    assert any(line.startswith("torch==") for line in requirements)


def test_a_model_has_its_card(files: Path) -> None:
    assert (files / "artifacts" / "bundle" / "model_card.md").read_text() == "# A card\n"


def test_a_registered_model_carries_the_code_that_it_imports() -> None:
    modules = library_modules()
    script = "hapvr.registry.pyfunc_model"
    needed: set[str] = set()
    new = {script}
    while new:
        needed |= new
        new = set().union(*(own_imports(parsed(modules[name]), modules) for name in new)) - needed

    folders = {name.split(".")[1] for name in needed - {script} if name.count(".") > 1}
    assert folders == set(ROOMS)
