"""Files of a run's folder by which the process that prepares a training and those that do it know each other."""

from __future__ import annotations

CONFIG_NAME = "config.yaml"
RUN_NAME = "run.json"
FAILURE_NAME = "failure.txt"
RECORD_KEYS = ("mlflow_run_id", "shards")
"""What every RUN_NAME has."""
