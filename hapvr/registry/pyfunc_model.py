"""The registered model as MLflow loads it. MLflow runs this file as a script (models from code), so
nothing is pickled."""

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.environment_variables import MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException
from mlflow.pyfunc import PythonModel, PythonModelContext

from hapvr.errors import HapvrError
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.access import access_from_environment
from hapvr.scorer.bundle import load_bundle

_LOG = logging.getLogger(__name__)
COLUMNS = (
    "query",
    "reference",
    "similarity",
    "probability",
    "threshold",
    "verdict",
    "error",
    "warning",
)
ANSWER_S = 5.0
"""The answer must be ready this many seconds before the model server gives up on a request."""


class PairScorer(PythonModel):  # type: ignore[misc]
    """Scores pairs of videos: `query` against `reference`, or against each of the list
    `references`; a row per pair. Missing values are NaN. A model server answers null instead,
    because JSON has no NaN."""

    def load_context(self, context: PythonModelContext) -> None:
        self._scorer = load_bundle(Path(context.artifacts["bundle"]))
        self._access = access_from_environment()

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """The table of answers. Raises MlflowException with one sentence: another error would show
        the client its traceback."""
        try:
            return self._answers(list(_pairs(model_input)), params or {})
        except HapvrError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error
        except Exception as error:
            _LOG.exception("a request failed")
            raise MlflowException(
                f"internal error ({type(error).__name__}); the server's log says more"
            ) from None

    def _answers(self, pairs: list[tuple[str, str]], params: dict[str, Any]) -> pd.DataFrame:
        segments = bool(params.get("segments"))
        precision = params.get("precision")
        if precision is None:
            precision = DEFAULT_PRECISION
        served = os.environ.get("_MLFLOW_IS_IN_SERVING_ENVIRONMENT") == "true"
        limits = self._scorer.limits
        calibration = self._scorer.calibration
        if served:
            time_left = max(MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get() - ANSWER_S, 1.0)
            time_left = min(time_left, limits.request_timeout_s or time_left)
            limits = limits.model_copy(update={"request_timeout_s": time_left})

        rows = self._scorer.score_pairs(
            pairs, segments=segments, limits=limits, access=self._access
        )
        answers = [asdict(row) | {"threshold": None, "verdict": ""} for row in rows]
        if calibration is not None:
            threshold = calibration.threshold(precision).similarity
            for row, answer in zip(rows, answers, strict=True):
                answer["threshold"] = threshold
                if row.similarity is not None:
                    answer["verdict"] = calibration.verdict(
                        row.similarity, precision=precision, one_course=row.one_course
                    )

        table = pd.DataFrame(answers, columns=COLUMNS)
        table = table.astype(dict.fromkeys(("similarity", "probability", "threshold"), "float64"))
        if segments:
            table["segments"] = [list(answer["segments"] or ()) for answer in answers]
        return table.astype(object).where(table.notna(), None) if served else table


def _pairs(table: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The pairs of a row: with its reference, and with each of its references; a value that is not
    a list counts as a list of one. A row without any gives a pair with an empty name, which fails,
    as does any value that is not a name."""
    for row in table.to_dict(orient="records"):
        names = [row["reference"]] if isinstance(row.get("reference"), str) else []
        references = row.get("references")
        if isinstance(references, list | tuple | np.ndarray):
            names += list(references)
        elif not pd.isna(references):
            names.append(references)

        for name in names or [""]:
            yield _text(row.get("query")), _text(name)


def _text(name: object) -> str:
    """A name; "" for a value that is none. Bytes that are not UTF-8 are escaped, since no table can
    hold them."""
    return name.encode(errors="backslashreplace").decode() if isinstance(name, str) else ""


mlflow.models.set_model(PairScorer())
