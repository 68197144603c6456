"""`hapvr forget`: remove what was made of videos."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hapvr.commands.terminal import ConfigOption, JsonOption, SetOption, counted, exit_codes, overrides, show


@exit_codes
def forget(
    config: ConfigOption,
    video_ids: Annotated[list[str] | None, typer.Argument(help="Ids such as SOURCE/NAME.mp4.")] = None,
    set_: SetOption = None,
    offline: Annotated[str, typer.Option(metavar="SOURCE", help="All videos of a source whose files are gone.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove frames, features, vectors, pairs, marks and scores of videos, and files that were fetched; yours stay."""
    from hapvr.steps.forget import forget as forget_videos
    from hapvr.steps.forget import plan_forgetting
    from hapvr.steps.project import Project
    from hapvr.video.sources import is_remote

    project = Project.open(config, overrides=overrides(set_))
    videos = plan_forgetting(project, video_ids or [], offline=offline)
    if yes:
        forget_videos(project, videos)
    done = "forgotten" if yes else "would be forgotten, with all that was made of them; --yes does it"
    lines = [
        f"{one.video_id}: {'its fetched file goes, too' if is_remote(one.uri) else f'the file {one.uri} stays'}"
        for one in videos
    ]
    result = {"forgotten": yes, "videos": [asdict(one) for one in videos]}
    show(result, as_json=as_json, text="\n".join([*lines, f"{counted(len(videos), 'video')} {done}"]))
