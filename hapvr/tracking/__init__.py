"""The MLflow side: runs, the packaged model, the registry; and progress to an orchestrator."""

import os

os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # it would stand between an answer's lines
