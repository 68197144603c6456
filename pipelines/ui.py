"""`make ui`: Dagster's UI and an MLflow server over one configuration's data, on 127.0.0.1 only.

python -m pipelines.ui [--dagster-port 3000] [--mlflow-port 5000]
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from pipelines.resources import CHECKOUT, project_resource

HOST = "127.0.0.1"


def commands(*, dagster_port: int, mlflow_port: int) -> list[list[str]]:
    """MLflow, unless the configuration names a server; then Dagster's UI with its daemon."""
    project = project_resource().open()
    dagster = [sys.executable, "-m", "dagster", "dev", "--workspace", "workspace.yaml"]
    dagster += ["--host", HOST, "--port", str(dagster_port)]
    if project.config.tracking.uri:
        return [dagster]
    artifacts = project.root.local_path("mlflow/artifacts")
    artifacts.mkdir(parents=True, exist_ok=True)
    mlflow = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(mlflow_port)]
    mlflow += ["--backend-store-uri", project.tracking_uri, "--artifacts-destination", artifacts.as_uri()]
    return [mlflow, dagster]


def main() -> int:
    """Runs until interrupted, terminated, or until one of the servers ends; then ends the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dagster-port", type=int, default=3000)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    ports = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the servers are ended below
    os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home"))
    os.environ.setdefault("HAPVR_MLFLOW_PAGE", f"http://{HOST}:{ports.mlflow_port}")
    servers = [
        subprocess.Popen(command, cwd=CHECKOUT)
        for command in commands(dagster_port=ports.dagster_port, mlflow_port=ports.mlflow_port)
    ]
    sys.stdout.write(
        f"Dagster: http://{HOST}:{ports.dagster_port}  MLflow: http://{HOST}:{ports.mlflow_port}  (Ctrl-C ends both)\n"
    )
    sys.stdout.flush()
    try:
        return _wait(servers)
    except KeyboardInterrupt:
        return 0
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(timeout=60)


def _wait(servers: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        for server in servers:
            code = server.poll()
            if code is not None:
                return code
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
