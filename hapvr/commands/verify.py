"""`hapvr verify`: whether the files of a data root are what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hapvr.commands.terminal import FAILED, JsonOption, data_root, exit_codes, progress_bar, show
from hapvr.errors import ArgumentError

if TYPE_CHECKING:
    from hapvr.data.filesystem import DataRoot
    from hapvr.steps.shard_check import FileCheck


@exit_codes
def verify(
    root: Annotated[str | None, typer.Option(help="The data root: a folder or a URL.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Check the data root of this configuration.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make what is damaged again, with the settings of --config.")
    ] = False,
    videos: Annotated[
        bool, typer.Option("--videos/--no-videos", help="Read fetched and generated videos, too, which takes longest.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Read every stored file and compare it with what was written; exit 1 and name every file that is damaged."""
    from hapvr.steps.project import Project
    from hapvr.upkeep import KINDS, verify_root
    from hapvr.upkeep import repair as make_again

    if repair and config is None:
        raise ArgumentError("--repair: give --config too, since files are made again with its settings")
    opened = data_root(root, config, option="--root")
    with progress_bar("files") as progress:
        checks = verify_root(opened, kinds=None if videos else KINDS.keys() - {"downloads"}, progress=progress)
    if repair and config is not None:
        with progress_bar("repairs") as progress:
            checks = make_again(Project.open(config), checks, progress=progress)
    show_checks(opened, checks, as_json=as_json)


def show_checks(root: DataRoot, checks: Sequence[FileCheck], *, as_json: bool) -> None:
    """Print the checks; exit 1 if something is damaged or unfinished."""
    lines = []
    for check in checks:
        videos = f"{check.num_ok} videos, {check.num_failed} failed" if check.num_ok or check.num_failed else ""
        said = check.message or videos
        lines.append(f"{check.kind} {check.key}".rstrip() + f": {check.state}" + (f", {said}" if said else ""))
    show({"data_root": root.url, "files": [asdict(check) for check in checks]}, as_json=as_json, text="\n".join(lines))
    if any(check.state not in ("ok", "repaired") for check in checks):
        raise typer.Exit(FAILED)
