"""`make ui`: Dagster's UI and an MLflow server over one configuration's data, on 127.0.0.1 only.

python -m pipelines.ui
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from pipelines.resources import CHECKOUT, project_resource

HOST = "127.0.0.1"
DAGSTER_PORT = 3000
MLFLOW_PORT = 5000


def commands() -> list[list[str]]:
    """MLflow, unless the configuration names a server; then Dagster's UI with its daemon."""
    project = project_resource().open()
    dagster = [sys.executable, "-m", "dagster", "dev", "--workspace", "workspace.yaml", "--host", HOST, "--port", str(DAGSTER_PORT)]
    if project.config.tracking.uri:
        return [dagster]
    artifacts = project.root.local_path("mlflow/artifacts")
    artifacts.mkdir(parents=True, exist_ok=True)
    mlflow = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(MLFLOW_PORT)]
    mlflow += ["--backend-store-uri", project.tracking_uri, "--artifacts-destination", artifacts.as_uri()]
    return [mlflow, dagster]


def main() -> int:
    """Runs until interrupted or until one of the servers ends; then ends the other."""
    os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home"))
    servers = [subprocess.Popen(command, cwd=CHECKOUT) for command in commands()]
    sys.stdout.write(
        f"Dagster: http://{HOST}:{DAGSTER_PORT}  MLflow: http://{HOST}:{MLFLOW_PORT}  (Ctrl-C ends both)\n"
    )
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
