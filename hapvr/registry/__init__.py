"""The MLflow side: runs, the registered model and its champion."""

import os

os.environ.setdefault(
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false"
)  # it would stand between an answer's lines
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # as would this
# with more, a server that is ill stops a caller for minutes
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # of silence
