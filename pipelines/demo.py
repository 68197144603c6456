"""`make demo`: the jobs from the sources to a registered model and an index, one after the other, and a table of scores at the end.

python -m pipelines.demo

It starts Dagster for as long as it works, since the daemon launches the runs; `make ui` shows them afterwards.
"""

import os
import signal
import sys
from pathlib import Path

from hapvr.config_file import load_config
from hapvr.errors import ConfigError


def main() -> int:
    """0: registered; 1: a step failed; 2: the configuration is wrong, or the instance is in use; 130: interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that runs and servers are ended
    name = os.environ.get("HAPVR_CONFIG", "configs/demo.yaml")
    try:
        load_config(Path(__file__).parent.parent / name)
        sys.stdout.write(f"{name}: from its videos to a registered model and an index; Dagster is starting\n")
        sys.stdout.flush()
        from pipelines.demo_runs import run_demo  # takes seconds

        return run_demo()
    except ConfigError as error:
        sys.stdout.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
