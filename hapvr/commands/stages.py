"""`hapvr run | status | download | sample | extract | train | verify`, `hapvr features import |
labels`: the chain without Dagster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from hapvr.commands.progress_bars import progress_bar
from hapvr.commands.step_rows import lines_of, row_of
from hapvr.commands.terminal import ConfigOption, SetOption, Verbs, counted, open_project, say, show
from hapvr.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from hapvr.chain.step import Step
    from hapvr.steps.project import Project

features = Verbs(
    name="features",
    no_args_is_help=True,
    help="Stored features: bring published ones in, write pseudo labels out.",
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
    state = health(project)
    if post:
        tell(project, *state.concerns)
        deliver_alerts(project)

    needs_a_person = bool(state.concerns)
    result = asdict(state) | {"needs_a_person": needs_a_person}
    show(result, text=state.lines(), failed=needs_a_person)


def _chain_verb(name: str, does: str, *steps: str) -> Callable[..., None]:
    def verb(
        config: ConfigOption,
        set_: SetOption = None,
        shard: ShardOption = None,
        retry_failed: Annotated[
            bool, Option("--retry-failed", help="Try only failed videos again.")
        ] = False,
    ) -> None:
        project = open_project(config, set_)
        used = _steps_in_use(project, steps)
        _run_steps(project, used, shard, retry_failed=retry_failed)

    verb.__name__ = name
    verb.__doc__ = does
    return verb


download = _chain_verb(
    "download",
    "Read the sources into the manifest, fetch what is remote, and inspect every file.",
    "video_manifest",
    "videos",
)
sample = _chain_verb("sample", "Decode videos and store their sampled frames.", "frames")
extract = _chain_verb(
    "extract",
    "Whitening, features of all shards, and of the training shards the views and pseudo labels "
    "that `train.source` reads.",
    "whitening",
    "features",
    "training_views",
    "pseudo_labels",
)


def train(
    config: ConfigOption,
    set_: SetOption = None,
    row: Annotated[
        str,
        Option(
            metavar="TABLE/ROW",
            help="Settings of a row of the ablations.yaml beside the configuration.",
        ),
    ] = "",
    run: Annotated[
        str,
        Option(
            help="Name of the run; an unfinished one of that name is resumed. Without it, the row "
            "and the time.",
            show_default=False,
        ),
    ] = "",
    seeds: Annotated[
        int, Option(min=1, max=1000, help="Train with so many seeds; prints mean and spread.")
    ] = 1,
) -> None:
    """Train in a process of its own, tracked in MLflow."""
    from hapvr.chain import CHAIN
    from hapvr.steps.ingested import require_ingested
    from hapvr.steps.model_places import key_of_now

    key = run or key_of_now(row)
    project = open_project(config, set_, row=row)
    require_ingested(project.root)  # before the libraries that train are imported
    if seeds > 1:
        from hapvr.steps.evaluation import seeds_text, train_seeds

        runs = train_seeds(project, key=key, seeds=seeds, say=partial(say, err=True))
        return show({"runs": runs}, text=seeds_text(runs))

    show(CHAIN["similarity_model"].run(project, run=key))


def verify(
    config: ConfigOption,
    repair: Annotated[
        bool, Option("--repair", help="Rebuild what is damaged, with these settings.")
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

    lines = []
    for check in checks:
        line = f"{check.kind} {check.key}".rstrip() + f": {check.state}"
        if check.message:
            line += f", {check.message}"
        lines.append(line)

    result = {"data_root": project.root.url, "files": [asdict(check) for check in checks]}
    is_damaged = any(check.state == "damaged" for check in checks)
    show(result, text=lines, failed=is_damaged)


def forget(
    config: ConfigOption,
    video_ids: Annotated[list[str] | None, Argument(help="Ids such as SOURCE/NAME.mp4.")] = None,
    set_: SetOption = None,
    offline: Annotated[
        str, Option(metavar="SOURCE", help="All videos of a source whose files are gone.")
    ] = "",
    yes: Annotated[bool, Option("--yes", help="Do it; without, list what would go.")] = False,
) -> None:
    """Remove frames, features, vectors, pairs, marks and scores of videos, and files that were
    fetched; yours stay."""
    from hapvr.care import forget as step
    from hapvr.video.sources import is_remote

    project = open_project(config, set_)
    videos = step.plan_forgetting(project, video_ids or [], offline=offline)
    if yes:
        step.forget(project, videos)
    lines = []
    for video in videos:
        if is_remote(video.uri):
            lines.append(f"{video.video_id}: its fetched file goes, too")
        else:
            lines.append(f"{video.video_id}: the file {video.uri} stays")

    number = counted(len(videos), "video")
    if yes:
        lines.append(f"{number} forgotten")
    else:
        whose = "it" if len(videos) == 1 else "them"
        lines.append(
            f"{number} would be forgotten, with all that was made of {whose}; --yes does it"
        )

    result = {"forgotten": yes, "videos": [asdict(video) for video in videos]}
    show(result, text=lines)


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
        shards = step.import_features(root, file, name=name, fps=fps, progress=progress)
    settings = shards[0].shard.require({}).settings
    reasons: Counter[str] = Counter()
    for result in shards:
        reasons.update(reason for reason in result.shard.index()["reason"] if reason)
    show(
        {
            "data_root": root.url,
            "shards": [result.shard.key for result in shards],
            "new_shards": sum(result.done for result in shards),
            "ok": sum(result.num_ok for result in shards),
            "failed": dict(sorted(reasons.items())),
            "regions": settings["num_regions"],
            "dims": settings["dims"],
            "sha256": settings[IMPORTED]["sha256"],
        }
    )


@features.command("labels")
def export_labels(
    config: ConfigOption,
    out: Annotated[Path, Option(help="The .parquet file to write.")],
    set_: SetOption = None,
    shard: ShardOption = None,
) -> None:
    """Write the pseudo labels of all frame pairs that cached views train with."""
    from hapvr.commands.terminal import require_outside
    from hapvr.data.manifest import training_shard_keys
    from hapvr.steps import label_export

    require_outside(out)
    if out.suffix.lower() != ".parquet":
        raise ArgumentError(f"--out is {str(out)!r:.200}; expected a name that ends in .parquet")
    project = open_project(config, set_)
    keys = training_shard_keys(project.root)
    if not keys:
        raise DataError(
            "the manifest has no training videos yet; run `hapvr download`, `sample` and `extract` "
            "with this configuration first"
        )

    unknown = sorted(set(shard or []) - set(keys))
    if unknown:
        raise ArgumentError(
            f"--shard {unknown[0]}: there is no such training shard; there are {', '.join(keys)}"
        )

    chosen = list(dict.fromkeys(shard or keys))
    with progress_bar("shards") as progress:
        num_pairs = label_export.export_labels(project, chosen, out, progress=progress)
    show({"file": str(out), "shards": chosen, "pairs": num_pairs})


def _steps_in_use(project: Project, names: Sequence[str]) -> list[str]:
    """These steps without those whose results the training does not read, which are named."""
    from hapvr.chain import CHAIN

    used = []
    for name in names:
        reason = CHAIN[name].unused_reason(project)
        if reason:
            say(f"{name}: left out, as {reason}", err=True)
        else:
            used.append(name)

    return used


def _run_steps(
    project: Project, names: Sequence[str], wanted: list[str] | None, *, retry_failed: bool = False
) -> None:
    """Run steps one after the other, each for its shards, and show a row for each shard."""
    from hapvr.chain import CHAIN
    from hapvr.chain.step import shards_of

    # Views and labels of a shard are made in one pass.
    both = {"training_views", "pseudo_labels"} <= set(names)
    rows = []
    for name in names:
        if both and name == "pseudo_labels":
            continue
        step = CHAIN[name]
        _check_shards(project, step, wanted or [])
        for key in shards_of(project, step):
            if wanted and step.per_shard and key not in wanted:
                continue
            if both and name == "training_views":
                results = _make_views_and_labels(project, key)
            else:
                results = {name: _run_step(project, step, key, retry_failed=retry_failed)}

            rows += [row_of(made_by, key, result) for made_by, result in results.items()]

    lines = []
    for row in rows:
        lines += lines_of(row)

    show({"shards": rows}, text=lines)


def _run_step(project: Project, step: Step, key: str, *, retry_failed: bool) -> Any:
    options = {"retry_failed": True} if retry_failed and step.job == "ingest" else {}
    with progress_bar(f"{step.name} {key}".rstrip()) as progress:
        return step.run(project, key, progress=progress, **options)


def _make_views_and_labels(project: Project, key: str) -> dict[str, Any]:
    from hapvr.steps.views import make_views_and_labels

    with progress_bar(f"training_views {key}") as progress:
        return dict(make_views_and_labels(project, key, progress=progress))


def _check_shards(project: Project, step: Step, wanted: Sequence[str]) -> None:
    """Raise DataError where there are no videos yet, ArgumentError for shards that do not exist."""
    from hapvr.data.manifest import shard_keys

    keys = shard_keys(project.root)
    if not keys and step.name != "video_manifest":
        raise DataError(
            "the manifest has no videos yet; run `hapvr download` with this configuration first"
        )

    unknown = sorted(set(wanted) - set(keys))
    if unknown and step.per_shard:
        raise ArgumentError(
            f"--shard {unknown[0]}: there is no such shard; the manifest has {', '.join(keys)}"
        )
