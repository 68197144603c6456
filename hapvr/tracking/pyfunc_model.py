"""The registered model as MLflow loads it. MLflow runs this file as a script (models from code), so nothing is pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel, PythonModelContext

from hapvr.scorer.bundle import load_bundle


class PairScorer(PythonModel):  # type: ignore[misc]
    """Scores pairs of video files: columns query, reference (paths) in; similarity and error out, row for row."""

    def load_context(self, context: PythonModelContext) -> None:
        self._scorer = load_bundle(Path(context.artifacts["bundle"]))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        columns = zip(model_input["query"], model_input["reference"], strict=True)
        pairs = [(Path(query), Path(reference)) for query, reference in columns]
        rows = self._scorer.score_pairs(pairs)
        return pd.DataFrame(
            {
                "query": [row.query for row in rows],
                "reference": [row.reference for row in rows],
                "similarity": [float("nan") if row.similarity is None else row.similarity for row in rows],
                "error": [row.error for row in rows],
            }
        )


mlflow.models.set_model(PairScorer())
