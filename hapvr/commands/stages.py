"""`hapvr run | status | download | sample | extract | train | verify`, `hapvr features import`: the
chain without Dagster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from hapvr.commands.terminal import (
    ConfigOption,
    SetOption,
    Verbs,
    counted,
    open_project,
    progress_bar,
    say,
    show,
)
from hapvr.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from hapvr.steps.project import Project

features = Verbs(
    name="features", no_args_is_help=True, help="Stored features: bring published ones in."
)
ShardOption = Annotated[list[str] | None, Option("--shard", help="Only these shards; default all.")]


def run(
    step: Annotated[
        str, Argument(help="A step of the chain, e.g. features; `hapvr status --json` lists them.")
    ],
    config: ConfigOption,
    set_: SetOption = None,
    shard: ShardOption = None,
) -> None:
    """Make what one step of the chain lacks, for all shards or for those that are named."""
    from hapvr.chain import CHAIN

    if step not in CHAIN or step == "similarity_model":
        steps = f"the steps are {', '.join(CHAIN)}; `hapvr train` trains"
        raise ArgumentError(f"{step!r:.80} is not a step that runs here; {steps}")
    _run_steps(open_project(config, set_), [step], shard)


def status(
    config: ConfigOption,
    set_: SetOption = None,
    post: Annotated[
        bool, Option("--tell", help="Also post what needs a person, and what waits.")
    ] = False,
) -> None:
    """How the project is, and what of it needs a person: then the exit code is 1. As JSON also how
    far every step is."""
    from hapvr.care.health import health
    from hapvr.steps.alerts import deliver_alerts, tell

    project = open_project(config, set_)
    found = health(project)
    if post:
        tell(project, *found.concerns)
        deliver_alerts(project)
    result = asdict(found) | {"needs_a_person": bool(found.concerns)}
    show(result, text="\n".join(found.lines()), failed=bool(found.concerns))


def _chain_verb(name: str, does: str, *steps: str) -> Callable[..., None]:
    def verb(
        config: ConfigOption,
        set_: SetOption = None,
        shard: ShardOption = None,
        retry_failed: Annotated[
            bool, Option("--retry-failed", help="Try only failed videos again.")
        ] = False,
    ) -> None:
        _run_steps(open_project(config, set_), steps, shard, retry_failed=retry_failed)

    verb.__name__, verb.__doc__ = name, does
    return verb


does = "Read the sources into the manifest, fetch what is remote, and inspect every file."
download = _chain_verb("download", does, "video_manifest", "videos")
does = "Decode videos and store their sampled frames."
sample = _chain_verb("sample", does, "frames")
does = "Whitening, features of all shards, and views and pseudo labels of the training shards."
extract = _chain_verb("extract", does, "whitening", "features", "training_views", "pseudo_labels")


def train(
    config: ConfigOption,
    set_: SetOption = None,
    run: Annotated[
        str, Option(help="Name of the run; an unfinished one of that name is resumed.")
    ] = "",
    seeds: Annotated[
        int, Option(min=1, max=1000, help="Train with so many seeds; prints mean and spread.")
    ] = 1,
) -> None:
    """Train in a process of its own, tracked in MLflow."""
    from hapvr.chain import CHAIN

    key = run or time.strftime("run-%Y%m%d-%H%M%S")
    project = open_project(config, set_)
    if seeds > 1:
        from hapvr.steps.evaluation import seeds_text, train_seeds

        runs = train_seeds(project, key=key, seeds=seeds, say=partial(say, err=True))
        return show({"runs": runs}, text=seeds_text(runs))
    show(CHAIN["similarity_model"].run(project, run=key))


def verify(
    config: ConfigOption,
    repair: Annotated[
        bool, Option("--repair", help="Make what is damaged again, with these settings.")
    ] = False,
    videos: Annotated[
        bool, Option("--videos/--no-videos", help="Also read fetched and generated videos.")
    ] = True,
) -> None:
    """Read every stored file and compare it with what was written; exit 1 and name every file that
    is damaged."""
    from hapvr.care import repair as repairs
    from hapvr.care.stores import STORES
    from hapvr.care.verify import verify_root

    project = open_project(config)
    kinds = None if videos else STORES.keys() - {"downloads"}
    with progress_bar("files") as progress:
        checks = verify_root(project.root, kinds=kinds, progress=progress)
    if repair:
        with progress_bar("repairs") as progress:
            checks = repairs.repair(project, checks, progress=progress)
    lines = [
        f"{check.kind} {check.key}".rstrip()
        + f": {check.state}"
        + f", {check.message}" * bool(check.message)
        for check in checks
    ]
    result = {"data_root": project.root.url, "files": [asdict(check) for check in checks]}
    show(result, text="\n".join(lines), failed=any(check.state == "damaged" for check in checks))


def forget(
    config: ConfigOption,
    video_ids: Annotated[list[str] | None, Argument(help="Ids such as SOURCE/NAME.mp4.")] = None,
    set_: SetOption = None,
    offline: Annotated[
        str, Option(metavar="SOURCE", help="All videos of a source whose files are gone.")
    ] = "",
    yes: Annotated[bool, Option("--yes", help="Do it; without, say what would go.")] = False,
) -> None:
    """Remove frames, features, vectors, pairs, marks and scores of videos, and files that were
    fetched; yours stay."""
    from hapvr.care import forget as step
    from hapvr.video.sources import is_remote

    project = open_project(config, set_)
    videos = step.plan_forgetting(project, video_ids or [], offline=offline)
    if yes:
        step.forget(project, videos)
    done = (
        "forgotten" if yes else "would be forgotten, with all that was made of them; --yes does it"
    )
    lines = [
        f"{one.video_id}: "
        f"{'its fetched file goes, too' if is_remote(one.uri) else f'the file {one.uri} stays'}"
        for one in videos
    ]
    result = {"forgotten": yes, "videos": [asdict(one) for one in videos]}
    show(result, text="\n".join([*lines, f"{counted(len(videos), 'video')} {done}"]))


@features.command("import")
def import_features(
    file: Annotated[Path, Argument(help="HDF5, a dataset per video id: [T, 9, D] or [T, D].")],
    out: Annotated[str, Option(help="The data root that gets features/NAME-00000, ...")],
    name: Annotated[str, Option(help="What the shards are called.")] = "imported",
    fps: Annotated[float, Option(help="Frames per second of the features.")] = 1.0,
) -> None:
    """Convert published features; videos that cannot be used are rows with a reason, counted
    here."""
    from hapvr.data.features import IMPORTED
    from hapvr.data.filesystem import DataRoot
    from hapvr.steps import features as step

    root = DataRoot(out)
    with progress_bar("videos") as progress:
        done = step.import_features(root, file, name=name, fps=fps, progress=progress)
    settings = done[0].shard.require({}).settings
    reasons = Counter(reason for one in done for reason in one.shard.index()["reason"] if reason)
    shards = {
        "shards": [one.shard.key for one in done],
        "new_shards": sum(one.done for one in done),
    }
    videos = {"ok": sum(one.num_ok for one in done), "failed": dict(sorted(reasons.items()))}
    kind = {
        "regions": settings["num_regions"],
        "dims": settings["dims"],
        "sha256": settings[IMPORTED]["sha256"],
    }
    show({"data_root": root.url, **shards, **videos, **kind})


def _run_steps(
    project: Project, names: Sequence[str], wanted: list[str] | None, *, retry_failed: bool = False
) -> None:
    """Run steps one after the other, each for its shards, and show a row for each shard."""
    from hapvr.chain import CHAIN, shards_of
    from hapvr.data.manifest import shard_keys

    rows: list[dict[str, Any]] = []
    lines, both = [], {"training_views", "pseudo_labels"} <= set(names)
    for step in (CHAIN[name] for name in names if not (both and name == "pseudo_labels")):
        known = shard_keys(project.root)
        if not known and step.name != "video_manifest":
            raise DataError(
                "the manifest has no videos yet; run `hapvr download` with this configuration first"
            )
        if (unknown := sorted(set(wanted or []) - set(known))) and step.per_shard:
            raise ArgumentError(
                f"--shard {unknown[0]}: there is no such shard; the manifest has {', '.join(known)}"
            )
        options = {"retry_failed": True} if retry_failed and step.job == "ingest" else {}
        for key in (
            key
            for key in shards_of(project, step)
            if not wanted or not step.per_shard or key in wanted
        ):
            with progress_bar(f"{step.name} {key}".rstrip()) as progress:
                if both and step.name == "training_views":  # in one pass
                    from hapvr.steps.views import make_views_and_labels

                    made = make_views_and_labels(project, key, progress=progress)
                else:
                    made = {step.name: step.run(project, key, progress=progress, **options)}
            for name, result in made.items():
                row: dict[str, Any] = {"step": name, "shard": key}
                done, counts = getattr(result, "done", True), ""
                if hasattr(result, "num_ok"):
                    row |= {
                        "ok": result.num_ok,
                        "failed": result.num_failed,
                        "rows": result.num_rows,
                    }
                    counts = (
                        f": {result.num_ok} videos, {result.num_failed} failed, "
                        f"{result.num_rows} rows"
                    )
                rows.append(row | {"was_finished": not done})
                lines.append(f"{name} {key}".rstrip() + counts + " (was finished)" * (not done))
    show({"shards": rows}, text="\n".join(lines))
