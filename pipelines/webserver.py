"""Dagster's web server behind the guard.

HAPVR_ANY_HOST=1 python -m pipelines.webserver [arguments of dagster-webserver]

HAPVR_ANY_HOST: the server may be reached by names other than those of this machine.
"""

import os

from dagster_webserver.cli import main
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from hapvr.serving.guard import Guard


def guard_all_requests(*, any_host: bool) -> None:
    """Put the guard in front of everything that Dagster's web server answers; it has no setting for
    this."""
    others = DagsterWebserver.build_middleware

    def build_middleware(server: DagsterWebserver) -> list[Middleware]:
        return [Middleware(Guard, any_host=any_host), *others(server)]

    setattr(DagsterWebserver, "build_middleware", build_middleware)  # noqa: B010  # mypy refuses the plain assignment


if __name__ == "__main__":
    guard_all_requests(any_host=os.environ.get("HAPVR_ANY_HOST") == "1")
    main()  # type: ignore[no-untyped-call]
