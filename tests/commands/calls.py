"""Calls of `hapvr` in one process: `python -m tests.commands.calls` reads a list of calls as JSON
from standard input and prints a list of [exit code, standard output, standard error]."""

import json
import sys
import threading
import urllib.request

from hapvr.serving.server import Server
from tests.commands.conftest import invoke

RUN = Server.run


def run_until_it_answers(server: Server) -> None:
    """In the place of `Server.run`, which serves until it is interrupted."""

    def ask() -> None:
        with urllib.request.urlopen(f"{server.address}/health", timeout=60):
            server.stop()

    threading.Thread(target=ask).start()
    RUN(server)


def main() -> None:
    """`hapvr serve` ends as soon as it answers. An error that no verb expects is printed as if
    Python had ended by it."""
    Server.run = run_until_it_answers  # type: ignore[method-assign]
    answers = []
    for call in json.load(sys.stdin):
        result = invoke(*call)
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        error_output = f"Traceback: {result.exception!r}" if unexpected else result.stderr
        answers.append([result.exit_code, result.stdout, error_output])

    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
