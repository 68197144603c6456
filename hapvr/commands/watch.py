"""`hapvr watch`: which videos of the collection show footage of the queries of watch lists."""

from __future__ import annotations

import typer

from hapvr.commands.terminal import (
    FAILED,
    ConfigOption,
    JsonOption,
    SetOption,
    exit_codes,
    overrides,
    progress_bar,
    show,
)


@exit_codes
def watch(config: ConfigOption, set_: SetOption = None, as_json: JsonOption = False) -> None:
    """Compare the queries of `watch.lists` with shards that are new, list all matches, and post those that wait.

    The exit code is 1 if a query cannot be read, or if the webhook did not take a match.
    """
    from hapvr.errors import ConfigError
    from hapvr.steps.alerts import deliver_alerts
    from hapvr.steps.project import Project
    from hapvr.steps.searcher import Searcher
    from hapvr.steps.watch_lists import all_matches, make_watch_matches, unwatched_shards

    project = Project.open(config, overrides=overrides(set_))
    if not project.config.watch.lists:
        raise ConfigError("watch.lists: the configuration has none; see docs/search.md, section watch lists")
    keys = list(unwatched_shards(project))
    failed: dict[str, str] = {}
    if keys:
        searcher = Searcher.open(project)
        for key in keys:
            with progress_bar(key) as progress:
                failed |= make_watch_matches(project, searcher, key, progress=progress).failed
    delivery = deliver_alerts(project)
    rows = all_matches(project)
    lines = [f"{len(keys)} shards compared, {len(rows)} matches"]
    lines += [
        f"{row['watch_list']:<16}  {100 * row['probability']:5.1f} %  {row['query']} - {row['video_id']}"
        for row in rows
    ]
    lines += [f"failed   {name}: {reason}" for name, reason in sorted(failed.items())]
    if project.config.watch.webhook is not None:
        said = f"; {delivery.problem}" if delivery.problem else ""
        lines.append(f"{delivery.delivered} matches posted, {delivery.waiting} wait{said}")
    result = {
        "shards": keys,
        "matches": rows,
        "failed": failed,
        "posted": delivery.delivered,
        "waiting": delivery.waiting,
    }
    show(result, as_json=as_json, text="\n".join(lines))
    if failed or delivery.problem:
        raise typer.Exit(FAILED)
