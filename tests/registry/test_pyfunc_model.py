"""The registered model through MLflow's pyfunc, in this process and in others."""

import json
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel

from hapvr.scorer.bundle import load_bundle
from tests.registry.conftest import Registered


def test_pairs_give_similarity_probability_and_threshold(
    model: PyFuncModel, registered: Registered
) -> None:
    """Rows in order, equal to the library's; a bad video is a row of NaN with its reason."""
    names = ["a.mp4", "b.mp4", "bad.mp4", "copy.mp4"]
    pairs = [(str(registered.clips / "a.mp4"), str(registered.clips / name)) for name in names]
    table = model.predict(pd.DataFrame(pairs, columns=["query", "reference"]))
    columns = [
        "query",
        "reference",
        "similarity",
        "probability",
        "threshold",
        "verdict",
        "error",
        "warning",
    ]
    assert list(table.columns) == columns
    scorer = load_bundle(registered.bundle)
    for row, wanted in zip(table.itertuples(), scorer.score_pairs(pairs), strict=True):
        assert row.query == wanted.query
        assert row.reference == wanted.reference
        assert row.error == wanted.error
        assert row.threshold == scorer.calibration.threshold(0.95).similarity
        if not wanted.error:
            assert row.similarity == pytest.approx(wanted.similarity, abs=1e-6)
            assert row.verdict == scorer.calibration.verdict(
                row.similarity, precision=0.95, one_course=wanted.one_course
            )
            assert row.probability == pytest.approx(wanted.probability, abs=1e-4)

    assert table["error"][2].startswith("not_video: ")
    assert pd.isna(table["similarity"][2])
    assert pd.isna(table["probability"][2])


def test_one_query_against_a_list_with_segments(model: PyFuncModel, registered: Registered) -> None:
    """`references` gives a row for each; segments have their times; a target precision gives its
    threshold."""
    clips = [str(registered.clips / name) for name in ("a.mp4", "copy.mp4", "b.mp4")]
    asked = pd.DataFrame(
        {"query": [clips[0]] * 2, "reference": [None, clips[2]], "references": [clips[1:], None]}
    )
    table = model.predict(asked, params={"segments": True, "precision": 0.5})
    assert list(table["reference"]) == [clips[1], clips[2], clips[2]]
    (segment,) = table["segments"][0]
    assert {name: round(value, 1) for name, value in segment.items() if name != "score"} == {
        "query_start_s": 2.0,
        "query_end_s": 5.0,
        "reference_start_s": 4.0,
        "reference_end_s": 7.0,
        "certain": 1,
    }
    assert list(table["segments"][1:]) == [[], []]
    calibration = load_bundle(registered.bundle).calibration
    assert set(table["threshold"]) == {calibration.thresholds[0].similarity}


def test_wrong_columns_and_parameters_are_one_sentence(model: PyFuncModel) -> None:
    """MLflow's own kind of error, which its server passes on without a stack trace."""
    pair = {"query": ["a.mp4"], "reference": ["b.mp4"]}
    wrong: list[tuple[dict[str, list[str]], dict[str, Any], str]] = [
        ({"reference": ["b.mp4"]}, {}, "query"),
        (pair, {"precision": "many"}, "precision"),
        *(
            (pair, {"precision": value}, r"at most 0\.99")
            for value in (0.999, 0.0, -1.0, float("-inf"), float("nan"))
        ),
    ]
    for columns, params, match in wrong:
        with pytest.raises(MlflowException, match=match) as caught:
            model.predict(pd.DataFrame(columns), params=params)
        assert "stack_trace" not in json.loads(caught.value.serialize_as_json())


def test_model_states_what_it_needs(registered: Registered) -> None:
    """Signature, parameters, a real example and pinned requirements are stored with the model."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    info = mlflow.models.get_model_info("models:/hapvr@champion")
    assert info.signature.inputs.input_names() == ["query", "reference", "references"]
    assert info.signature.outputs.input_names()[:4] == [
        "query",
        "reference",
        "similarity",
        "probability",
    ]
    assert {spec.name for spec in info.signature.params.params} >= {"segments", "precision"}
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri="models:/hapvr@champion"))
    example = json.loads((folder / "input_example.json").read_text())
    assert example["columns"] == ["query", "reference"]
    requirements = (folder / "requirements.txt").read_text().splitlines()
    assert all("==" in line for line in requirements)
    assert any(line.startswith("torch==") for line in requirements)
    assert (folder / "artifacts" / "bundle" / "model_card.md").read_text() == "# A card\n"
