"""Step 9: a benchmark's similarities, metrics and plots, of the trained model and of the untrained
baseline. And the promotion gate: is a version better than the champion, on the same benchmarks and
the same videos?"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure
from pydantic import BaseModel

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.paired_bootstrap import Difference, Verdict, compare, decide
from hapvr.benchmark.protocol import EvaluationResult, evaluate
from hapvr.benchmark.ranking import relevant_and_irrelevant
from hapvr.benchmark.report import pr_curve_figure, similarity_distribution_figure
from hapvr.benchmark.scoring import score_benchmark
from hapvr.errors import DataError, HapvrError, RegistryError
from hapvr.files import digest_of, read_json_as, write_text
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.torch_runtime import choose_device
from hapvr.progress import Progress, no_progress
from hapvr.registry import versions
from hapvr.registry.client import registered_bundle
from hapvr.scorer.bundle import load_similarity_model
from hapvr.steps import training
from hapvr.steps.benchmark_features import open_benchmark, target_mean
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, tracker_of
from hapvr.tables import read_frame
from hapvr.train.run_folder import read_history

BASELINE = "untrained baseline"
TRAINED = "trained model"
SIMILARITIES = {BASELINE: "similarities-untrained.parquet", TRAINED: "similarities-trained.parquet"}
CHAMPION_TAG = "hapvr.gate.champion"
CHAMPION_RUN_TAG = "hapvr.gate.champion_run"
SEEDS_TAG = "hapvr.seeds"
"""Tag of the MLflow runs of several seeds that are compared with each other."""


def score_benchmarks(
    project: Project, *, run: str = "", progress: Progress = no_progress
) -> dict[str, tuple[dict[str, EvaluationResult], dict[str, Figure]]]:
    """`make_benchmark_scores` of every benchmark, by name. run: of the training; "" for the current
    one."""
    trained, names = training.trained_run(project, run), project.config.evaluation.benchmarks
    made = {}
    for number, name in enumerate(names, start=1):
        made[name] = make_benchmark_scores(project, trained, name)
        progress(number, len(names))
    return made


def make_benchmark_scores(
    project: Project, run: TrainingRun, name: str
) -> tuple[dict[str, EvaluationResult], dict[str, Figure]]:
    """Score benchmark `name` with the run's model and with frozen features alone (TopK-Chamfer,
    nothing learned). Writes `models/<run>/benchmarks/<name>/` and logs metrics, tables and plots to
    the training's MLflow run. Returns the results of BASELINE and TRAINED, and the plots by name.
    """
    definition, features = open_benchmark(project, name)
    made = {part: features.settings[part] for part in ("backbone", "whitening")}
    training.require_trained_on(run, made, what="the features were made")
    trained, _ = load_network(run.network_folder)
    # the rates of Chamfer similarity are those of the trained network, where it has such
    chamfer = trained.settings if isinstance(trained, SimilarityNetwork) else NetworkSettings()
    frozen = NetworkSettings(
        spatial_rate=chamfer.spatial_rate,
        temporal_rate=chamfer.temporal_rate,
        attention=False,
        comparator=False,
    )
    networks = {BASELINE: SimilarityNetwork(frozen, dims=trained.dims), TRAINED: trained}
    folder = run.folder / "benchmarks" / definition.name
    policy, available = project.config.evaluation.policy, frozenset(features.available())
    results, device = {}, choose_device(project.config.device)
    for row, network in networks.items():
        scored = score_benchmark(
            network, definition, features, folder / SIMILARITIES[row], device=device
        )
        results[row] = evaluate(
            definition, scored, policy=policy, available=available, bootstrap_samples=1000
        )
    figures = {
        f"precision-recall-{task.name}": pr_curve_figure(results, task=task.name)
        for task in definition.tasks
    }
    first = definition.tasks[0].name
    relevant, irrelevant = relevant_and_irrelevant(
        definition, folder / SIMILARITIES[TRAINED], task=first
    )
    if len(relevant) and len(irrelevant):
        figures[f"similarities-{first}"] = similarity_distribution_figure(
            relevant, irrelevant, title=first
        )
    means = {row: target_mean(result, project.config.evaluation) for row, result in results.items()}
    stored = {row: result.to_json() for row, result in results.items()}
    data = {"digest": definition_digest(definition), "target_means": means, "results": stored}
    # last: the others are complete where it is there
    write_text(folder / "scores.json", json.dumps(data, indent=1))
    tracker, run_id = tracker_of(project), run.mlflow_run_id
    for row, result in results.items():
        values = {**result.metrics, "mean": means[row]}
        tracker.metrics(
            run_id,
            {f"{definition.name}/{row.split()[0]}/{task}": value for task, value in values.items()},
        )
    for title, figure in figures.items():
        tracker.client.log_figure(run_id, figure, f"figures/{definition.name}/{title}.png")
    tracker.client.log_artifacts(run_id, str(folder), f"benchmarks/{definition.name}")
    return results, figures


def definition_digest(definition: BenchmarkDefinition) -> str:
    """Changes when queries, database or labels do, and what a generated benchmark was made of."""
    hashes = definition.labels.sort(definition.labels.columns).hash_rows(seed=0)
    made = [
        definition.provenance[part]
        for part in ("settings", "inputs")
        if part in definition.provenance
    ]
    return digest_of(
        [definition.name, definition.queries, definition.database, hashes.to_list(), *made]
    )


class StoredScores(BaseModel, extra="allow"):
    """scores.json. digest: the edition of the benchmark, see `definition_digest`; results:
    `EvaluationResult.to_json`."""

    digest: str
    target_means: dict[str, float]
    results: dict[str, dict[str, Any]]


def stored_scores(project: Project, run: TrainingRun, name: str) -> dict[str, Any]:
    """What `make_benchmark_scores` wrote for a run. Raises DamagedError if it has not been run."""
    hint = f"materialise benchmark_scores for model {run.key}"
    return read_json_as(
        run.folder / "benchmarks" / name / "scores.json", StoredScores, hint=hint
    ).model_dump()


@dataclass(frozen=True)
class Decision:
    """promoted: the version is champion now; champion, champion_run: what it was compared with;
    verdict: the numbers, None where the two could not be compared, or were before."""

    promoted: bool
    reason: str
    champion: str
    champion_run: str
    verdict: Verdict | None = None


def make_decision(project: Project, run: TrainingRun, version: int) -> Decision:
    """Compare a version with the champion, make it champion if the gate passes, and leave the
    decision on version and run. Two runs that decide at once wait for each other; a champion that a
    person chose meanwhile stays. Raises DataError without a champion; `ensure_baseline` makes one.
    """
    client, name = tracker_of(project).client, project.config.tracking.registered_model
    with project.root.lock("promotion"):
        champion, tags = (
            versions.champion_of(client, name),
            versions.version_tags(client, name, version),
        )
        if champion is None:
            raise DataError(
                f"registry: {name} has lost its champion meanwhile; materialise "
                "registered_model again"
            )
        reason, decided = tags.get(versions.REASON_TAG, ""), versions.DECISION_TAG in tags
        before = tags.get(CHAMPION_TAG, ""), tags.get(CHAMPION_RUN_TAG, "")
        if (
            not decided and champion.version == version
        ):  # its promotion was ended before the last tag
            versions.promote(client, name, version, how="gate", reason=reason)
            versions.decide(client, name, version, "promoted", reason)
            if before[0] not in ("", str(version)):
                versions.decide(
                    client,
                    name,
                    int(before[0]),
                    f"was champion; version {version} replaced it by gate",
                )
        if (
            decided or champion.version == version
        ):  # a repeated run does not undo what people did since
            return Decision(champion.version == version, f"decided before: {reason}", *before)
        decision = _decide(project, run, version, champion)
        if decision.promoted and versions.champion_of(client, name) != champion:
            reason = (
                f"not promoted: the champion changed meanwhile; `hapvr models promote "
                f"{version}` does it by hand"
            )
            decision = replace(decision, promoted=False, reason=reason)
        known = {CHAMPION_TAG: decision.champion, CHAMPION_RUN_TAG: decision.champion_run}
        for key, value in (
            known | {versions.REASON_TAG: decision.reason[: versions.MAX_CHARACTERS]}
        ).items():
            client.set_model_version_tag(name, str(version), key, value)
        if decision.promoted:
            versions.promote(client, name, version, how="gate", reason=decision.reason)
        versions.decide(
            client,
            name,
            version,
            "promoted" if decision.promoted else "not promoted",
            decision.reason,
        )
        values = vars(decision) | {
            "verdict": decision.verdict.to_json() if decision.verdict else None
        }
        client.log_text(run.mlflow_run_id, json.dumps(values, indent=1), "gate/decision.json")
    return decision


def _decide(
    project: Project, run: TrainingRun, version: int, champion: versions.Champion
) -> Decision:
    evaluation = project.config.evaluation
    number, by_hand, verdict = str(champion.version), f"`hapvr models promote {version}`", None
    reason = f"not promoted: evaluation.gate.enabled is false; {by_hand} does it by hand"
    if evaluation.gate.enabled:
        try:
            differences = [_compare(project, run, champion, name) for name in evaluation.benchmarks]
            verdict = decide(
                differences, target_metrics=evaluation.target_metrics, config=evaluation.gate
            )
            word = "promoted" if verdict.passed else "not promoted"
            reason = f"{word}: against champion version {number}, {verdict.reason}"
        except RegistryError:  # a repetition decides
            raise
        except HapvrError as error:
            reason = (
                f"not promoted: champion version {number} cannot be compared on these "
                f"benchmarks ({error}). Compare by "
                f"hand with `hapvr evaluate`, then {by_hand}"
            )
    return Decision(
        verdict is not None and verdict.passed, reason, number, champion.run_id, verdict
    )


def _compare(
    project: Project, run: TrainingRun, champion: versions.Champion, name: str
) -> dict[str, Difference]:
    """On the videos of a benchmark that both have scores of. Raises DataError where the champion
    does not go with its features."""
    definition, features = open_benchmark(project, name)
    tracker, folder, stored = tracker_of(project), f"benchmarks/{definition.name}", None
    if (written := tracker.artifact(champion.run_id, f"{folder}/scores.json")) is not None:
        edition = read_json_as(written, StoredScores, hint="evaluate the champion again").digest
        if edition == definition_digest(definition):
            stored = tracker.artifact(champion.run_id, f"{folder}/{SIMILARITIES[TRAINED]}")
    if stored is None:
        uri = f"models:/{project.config.tracking.registered_model}/{champion.version}"
        place = registered_bundle(uri, project.tracking_uri)
        network, description = load_similarity_model(place)
        if description is not None:
            description.require_features(place, features.settings)
        stored = run.folder / folder / f"similarities-champion-{champion.version}.parquet"
        score_benchmark(
            network, definition, features, stored, device=choose_device(project.config.device)
        )
    with project.root.corruption_errors(str(stored), hint="evaluate both models again"):
        scores = read_frame(stored), read_frame(run.folder / folder / SIMILARITIES[TRAINED])
    first, second = ({*one["query_id"].unique(), *one["reference_id"].unique()} for one in scores)
    return compare(
        definition,
        *scores,
        available=frozenset(first & second),
        config=project.config.evaluation.gate,
    )


def train_seeds(
    project: Project, *, key: str, seeds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train with `seeds` seeds, from `train.seed` on, and score the benchmarks. No run becomes the
    current model. key: names the trainings, KEY-SEED; a second call of that name leaves finished
    ones alone and goes on with the others. Returns seed, key and metrics of each: validation at the
    best step, and every task of `evaluation.benchmarks`."""
    runs, train = [], project.config.train
    for seed in range(train.seed, train.seed + seeds):
        say(f"seed {seed}")
        config = project.config.model_copy(
            update={"train": train.model_copy(update={"seed": seed})}
        )
        seeded, metrics = replace(project, config=config), dict[str, float]()
        run = training.prepare_training(seeded, f"{key}-{seed}", tags={SEEDS_TAG: key})
        training.run_training(seeded, run)
        best_step = training.finish_training(seeded, run, make_current=False)["best_step"]
        for line in (line for line in read_history(run.folder) if line["step"] == best_step):
            metrics |= {
                name: value for name, value in line.items() if name.startswith("validation/")
            }
        for name in config.evaluation.benchmarks:
            results, _ = make_benchmark_scores(seeded, run, name)
            metrics |= {f"{name}/{task}": value for task, value in results[TRAINED].metrics.items()}
        runs.append({"seed": seed, "key": run.key, "metrics": metrics})
    return runs


def seeds_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± standard deviation of each metric over the trainings."""
    lines = [f"{len(runs)} trainings"]
    for name in runs[0]["metrics"]:
        values = [run["metrics"][name] for run in runs]
        lines.append(f"{name}: {statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}")
    return "\n".join(lines)
