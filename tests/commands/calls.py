"""Calls of `hapvr` in one process: `python -m tests.commands.calls` reads a list of calls as JSON from standard input and
prints a list of [exit code, standard output, standard error]."""

from __future__ import annotations

import json
import sys

from hapvr.serving.server import Server
from tests.commands.conftest import invoke


def main() -> None:
    """`hapvr serve` ends as soon as it answers. An error that no verb expects is printed as if Python had ended by it."""
    run = Server.run
    Server.run = lambda server, ready: run(server, lambda: (ready(), server.stop())[0])  # type: ignore[method-assign]
    answers = []
    for call in json.load(sys.stdin):
        result = invoke(*call)
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        said = f"Traceback: {result.exception!r}" if unexpected else result.stderr
        answers.append([result.exit_code, result.stdout, said])
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
