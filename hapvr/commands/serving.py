"""`hapvr serve`: search over HTTP, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hapvr.commands.terminal import (
    ConfigOption,
    IndexModelOption,
    JsonOption,
    SetOption,
    exit_codes,
    open_project,
    show,
)


@exit_codes
def serve(
    config: ConfigOption,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Really listen on an address that others reach.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(help="Answer only those with a token: lines of a name, read or mark, and a SHA-256.")
    ] = None,
    model: IndexModelOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve searches and their page until it is interrupted. The address is printed first."""
    from hapvr.serving.server import Server

    project = open_project(config, set_)
    server = Server(project, host=host, port=port, allow_remote=allow_remote, token_file=token_file, model=model)
    show({"address": server.address}, as_json=as_json, text=f"Search: {server.address}")
    server.run()
