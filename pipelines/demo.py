"""`make demo`: the demo job in this process, without a daemon; its runs are in the UI afterwards.

python -m pipelines.demo
"""

import logging
import os
import sys
import warnings

import dagster as dg
from rich.console import Console

from pipelines.resources import CHECKOUT, project_resource


class _Once:
    """Prints each warning once, without the place in the code that it came from."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: set[str] = set()

    def __call__(self, message: Warning | str, category: type[Warning], *_place: object) -> None:
        text = str(message)
        if text not in self._seen and not issubclass(category, dg.BetaWarning | dg.PreviewWarning):
            self._seen.add(text)
            self._console.print(f"warning: {text}", markup=False, highlight=False)


def main() -> int:
    """0: registered; 1: a stage failed; 2: the configuration is wrong."""
    from hapvr.errors import HapvrError
    from pipelines.chain import QUIET, failure_reason
    from pipelines.jobs import demo
    from pipelines.summary import print_summary

    console = Console(soft_wrap=True)
    os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home"))
    warnings.showwarning = _Once(console)
    for library in ("alembic", "mlflow"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        project = project_resource().open()
    except HapvrError as error:
        console.print(str(error), markup=False)
        return 2
    with dg.DagsterInstance.get() as instance:
        result = demo.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
    if not result.success:
        console.print(failure_reason(result), markup=False)
        console.print(f"The log is in the UI (`make ui`) under run {result.run_id}.", markup=False)
        return 1
    print_summary(project, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
