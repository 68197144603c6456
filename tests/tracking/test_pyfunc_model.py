"""The registered model through MLflow's pyfunc, in this process and in others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel

from hapvr.scorer.bundle import load_bundle
from tests.conftest import CHECKOUT
from tests.tracking.conftest import Registered


def test_pairs_give_similarity_probability_and_threshold(model: PyFuncModel, registered: Registered) -> None:
    """Rows in order, equal to the library's; a bad video is a row of NaN with its reason."""
    names = ["a.mp4", "b.mp4", "bad.mp4", "copy.mp4"]
    pairs = [(str(registered.clips / "a.mp4"), str(registered.clips / name)) for name in names]
    table = model.predict(pd.DataFrame(pairs, columns=["query", "reference"]))
    assert list(table.columns) == ["query", "reference", "similarity", "probability", "threshold", "error", "warning"]
    scorer = load_bundle(registered.bundle)
    assert scorer.calibration is not None
    for row, wanted in zip(table.itertuples(), scorer.score_pairs(pairs), strict=True):
        assert (row.query, row.reference, row.error) == (wanted.query, wanted.reference, wanted.error)
        assert row.threshold == scorer.calibration.threshold(0.9).similarity
        if not wanted.error:
            assert row.similarity == pytest.approx(wanted.similarity, abs=1e-6)
            assert row.probability == pytest.approx(wanted.probability, abs=1e-4)
    assert table["error"][2].startswith("not_video: ")
    assert pd.isna(table["similarity"][2])
    assert pd.isna(table["probability"][2])


def test_one_query_against_a_list_with_segments(model: PyFuncModel, registered: Registered) -> None:
    """`references` gives a row for each; segments have their times; a wanted precision gives its threshold."""
    clips = [str(registered.clips / name) for name in ("a.mp4", "copy.mp4", "b.mp4")]
    frame = pd.DataFrame(
        {"query": [clips[0], clips[0]], "reference": [None, clips[2]], "references": [clips[1:], None]}
    )
    table = model.predict(frame, params={"segments": True, "precision": 0.5})
    assert list(table["reference"]) == [clips[1], clips[2], clips[2]]
    (segment,) = table["segments"][0]
    assert {name: round(value, 1) for name, value in segment.items() if name != "score"} == {
        "query_start_s": 2.0,
        "query_end_s": 5.0,
        "reference_start_s": 4.0,
        "reference_end_s": 7.0,
    }
    assert list(table["segments"][1:]) == [[], []]
    calibration = load_bundle(registered.bundle).calibration
    assert calibration is not None
    assert set(table["threshold"]) == {calibration.thresholds[0].similarity}


def test_requests_without_a_reference_and_above_limits_are_rows(model: PyFuncModel, registered: Registered) -> None:
    """Neither reference nor references; a request's own limit of pairs and of frames."""
    clip, other = str(registered.clips / "a.mp4"), str(registered.clips / "b.mp4")
    table = model.predict(pd.DataFrame({"query": [clip]}))
    assert table["error"][0].startswith("missing_file: video: no name is given")
    frame = pd.DataFrame({"query": [other, other], "reference": [other, other]})
    assert [error.split(":")[0] for error in model.predict(frame, params={"max_pairs": 1})["error"]] == [
        "",
        "too_many_pairs",
    ]
    frame = pd.DataFrame({"query": [other], "reference": [clip]})
    assert model.predict(frame, params={"max_frames": 8})["error"][0].startswith("too_long: ")


def test_names_stay_whole_beside_what_is_no_name(model: PyFuncModel, registered: Registered) -> None:
    """A null or half a letter among the references is a row with an error; the others are the names that were given."""
    clips = [str(registered.clips / name) for name in ("a.mp4", "b.mp4")]
    rows = model.predict(pd.DataFrame({"query": [clips[0]], "references": [[None, clips[1], 7, "\ud800"]]}))
    assert list(rows["reference"]) == ["", clips[1], "", "\\ud800"]
    assert rows["similarity"].notna().tolist() == [False, True, False, False]
    rows = model.predict(
        pd.DataFrame({"query": [clips[0]] * 2, "reference": [clips[0]] * 2, "references": [clips[1], {}]})
    )
    assert list(rows["reference"]) == [clips[0], clips[1], clips[0], ""]


def test_errors_of_a_request_are_a_sentence_without_traceback(model: PyFuncModel, registered: Registered) -> None:
    """Wrong parameters come as MLflow's own kind of error, which its server passes on without a stack trace."""
    request = pd.DataFrame({"query": ["a.mp4"], "reference": ["b.mp4"]})
    for params in ({"video_timeout_s": float("nan")}, {"request_timeout_s": -1.0}):
        with pytest.raises(MlflowException, match="wanted a finite number") as caught:
            model.predict(request, params=params)
        assert "stack_trace" not in json.loads(caught.value.serialize_as_json())


def test_wrong_columns_and_parameters_are_refused(model: PyFuncModel) -> None:
    """No query, a parameter of a wrong type, a precision that no table has: errors before any work."""
    with pytest.raises(MlflowException, match="query"):
        model.predict(pd.DataFrame({"reference": ["b.mp4"]}))
    frame = pd.DataFrame({"query": ["a.mp4"], "reference": ["b.mp4"]})
    with pytest.raises(MlflowException, match="max_pairs"):
        model.predict(frame, params={"max_pairs": "many"})
    for precision in (0.999, 0.0, -1.0, float("-inf"), float("nan")):
        with pytest.raises(MlflowException, match=r"wanted above 0 and at most 0\.99"):
            model.predict(frame, params={"precision": precision})
    assert list(model.predict(frame, params={"max_pairs": 10**400})["error"]) == list(model.predict(frame)["error"])


def test_model_states_what_it_needs(registered: Registered) -> None:
    """Signature, parameters, a real example and pinned requirements are stored with the model."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    info = mlflow.models.get_model_info("models:/hapvr@champion")
    assert info.signature is not None
    assert info.signature.inputs.input_names() == ["query", "reference", "references"]
    assert info.signature.outputs.input_names()[:4] == ["query", "reference", "similarity", "probability"]
    assert {spec.name for spec in info.signature.params.params} >= {"segments", "precision", "max_pairs"}
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri="models:/hapvr@champion"))
    example = json.loads((folder / "input_example.json").read_text())
    assert example["columns"] == ["query", "reference"]
    requirements = (folder / "requirements.txt").read_text().splitlines()
    assert all("==" in line for line in requirements)
    assert any(line.startswith("torch==") for line in requirements)
    assert (folder / "artifacts" / "bundle" / "model_card.md").read_text() == "# A card\n"


@pytest.mark.slow
def test_fresh_process_without_the_checkout(registered: Registered, tmp_path: Path) -> None:
    """Downloaded and loaded where this package is not installed, it brings its code and gives the library's score."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    copy = tmp_path / "elsewhere"
    mlflow.artifacts.download_artifacts(artifact_uri="models:/hapvr@champion", dst_path=str(copy))
    code = (
        f"import sys, json; sys.path = [p for p in sys.path if p not in ('', {str(CHECKOUT)!r})]\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import mlflow, pandas as pd\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "import hapvr\n"
        "rows = model.predict(pd.DataFrame({'query': [sys.argv[2]], 'reference': [sys.argv[3]]}), {'segments': True})\n"
        "print(json.dumps([hapvr.__file__, rows.to_dict(orient='records')]))"
    )
    a, b = str(registered.clips / "a.mp4"), str(registered.clips / "copy.mp4")
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy), a, b], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    package, (row,) = json.loads(done.stdout.strip().splitlines()[-1])
    assert Path(package).is_relative_to(copy)
    (wanted,) = load_bundle(registered.bundle).score_pairs([(a, b)], segments=True)
    assert row["similarity"] == pytest.approx(wanted.similarity, abs=1e-6)
    assert len(row["segments"]) == len(wanted.segments or ()) == 1
