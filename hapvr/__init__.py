"""HAP-VR: hierarchical learning for average-precision-oriented video retrieval (Liu et al., ACM MM
2024)."""

import os
import sys

__version__ = "0.1.0"

# Before any library is imported: none of them reports its use to its makers, nor starts what is not
# used here.
os.environ.update(
    DO_NOT_TRACK="1",
    DAGSTER_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
    ORT_DISABLE_TELEMETRY="1",
    RAY_USAGE_STATS_ENABLED="0",
)
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # OpenVINO then takes a stand-in
