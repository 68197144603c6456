"""The promotion gate: is the new version better than the champion, on the same benchmarks and the same videos?"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.definitions.marks import MARKS
from hapvr.benchmark.definitions.marks import TASK as MARKS_TASK
from hapvr.benchmark.paired_bootstrap import Difference, Verdict, compare, decide
from hapvr.benchmark.scoring import score_benchmark
from hapvr.errors import DamagedError, HapvrError
from hapvr.features.extract import choose_device
from hapvr.files import read_json_as
from hapvr.model.checkpoint import load_network
from hapvr.scorer.similarity_model import SimilarityModel, load_similarity_model
from hapvr.stages.benchmark_features import BenchmarkFeatures
from hapvr.stages.evaluation import SIMILARITIES, TRAINED, StoredDigest, definition_digest, stored_similarities
from hapvr.stages.marks_benchmark import MarkedPairs, marked_pairs, score_marks
from hapvr.stages.project import Project
from hapvr.stages.sources import benchmark_folder
from hapvr.stages.training import MODELS, TrainingRun, tracker_of
from hapvr.stages.validation import benchmark_shards
from hapvr.storage.features import FeatureStore
from hapvr.tables import read_frame
from hapvr.tracking.champions import (
    DECISION_TAG,
    REASON_TAG,
    Champion,
    champion_of,
    describe,
    set_champion,
    version_tags,
)
from hapvr.tracking.runs import Tracker
from hapvr.tracking.store import registered_bundle

CHAMPION_TAG = "hapvr.gate.champion"
CHAMPION_RUN_TAG = "hapvr.gate.champion_run"
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Decision:
    """promoted: the version is champion now; champion, champion_run: what it was compared with, "" if with nothing;
    verdict: the numbers, None where there was nothing to compare."""

    promoted: bool
    reason: str
    champion: str = ""
    champion_run: str = ""
    verdict: Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {
            "promoted": self.promoted,
            "reason": self.reason,
            "champion": self.champion,
            "champion_run": self.champion_run,
            "verdict": self.verdict.to_json() if self.verdict else None,
        }


def make_decision(project: Project, run: TrainingRun, version: int) -> Decision:
    """Compare a version with the champion, make it champion if the gate passes, and leave the decision on version and run.

    Two runs that decide at once wait for each other; a champion that changed meanwhile, by hand or from another machine, is
    compared with anew.
    """
    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    lock = project.root.local_path(f"{MODELS}/promotion.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        earlier = _earlier(tracker, name, version)
        if earlier is not None:
            return earlier
        for _ in range(MAX_ATTEMPTS):
            champion = champion_of(tracker.client, name)
            decision = _decide(project, run, version, champion)
            if champion_of(tracker.client, name) == champion:
                break
        if decision.promoted:
            set_champion(tracker.client, name, version, how="gate", reason=decision.reason)
        _record(tracker, name, run, version, decision)
    return decision


def _earlier(tracker: Tracker, name: str, version: int) -> Decision | None:
    """The decision on a version that was decided on before: a repeated run does not undo what people did since."""
    champion = champion_of(tracker.client, name)
    tags = version_tags(tracker.client, name, version)
    if champion is None or DECISION_TAG not in tags:
        return None
    return Decision(
        champion.version == version,
        f"decided before: {tags.get(REASON_TAG, '')}",
        tags.get(CHAMPION_TAG, ""),
        tags.get(CHAMPION_RUN_TAG, ""),
    )


def _decide(project: Project, run: TrainingRun, version: int, champion: Champion | None) -> Decision:
    if champion is None:
        return Decision(True, "promoted: there is no champion to compare with")
    number, champion_run = str(champion.version), champion.run_id
    if not project.config.evaluation.gate.enabled:
        reason = f"not promoted: evaluation.gate.enabled is false; `hapvr models promote {version}` does it by hand"
        return Decision(False, reason, number, champion_run)
    evaluation = project.config.evaluation
    try:
        differences = [_compare(project, run, champion, name) for name in evaluation.benchmarks]
        gate = evaluation.gate
        marked = marked_pairs(project)
        if marked.suffice(project):
            differences.append(_compare_marks(project, run, champion, marked))
            required = (*(gate.required_metrics or _measured(evaluation.target_metrics, differences)), MARKS_TASK)
            gate = gate.model_copy(update={"required_metrics": tuple(dict.fromkeys(required))})
        verdict = decide(differences, target_metrics=evaluation.target_metrics, config=gate)
    except HapvrError as error:
        reason = (
            f"not promoted: champion version {number} cannot be compared on these benchmarks ({error}). Compare by hand "
            f"with `hapvr evaluate`, then `hapvr models promote {version}`"
        )
        return Decision(False, reason, number, champion_run)
    word = "promoted" if verdict.passed else "not promoted"
    reason = f"{word}: against champion version {number}, {verdict.reason}"
    return Decision(verdict.passed, reason, number, champion_run, verdict)


def _compare(project: Project, run: TrainingRun, champion: Champion, name: str) -> dict[str, Difference]:
    definition = load_definition(str(benchmark_folder(project, name) or name))
    challenger = read_frame(stored_similarities(run, definition.name))
    other = read_frame(_champion_similarities(project, run, champion, definition))
    return compare(
        definition,
        other,
        challenger,
        available=_scored(other) & _scored(challenger),
        config=project.config.evaluation.gate,
    )


def _compare_marks(
    project: Project, run: TrainingRun, champion: Champion, marked: MarkedPairs
) -> dict[str, Difference]:
    """Both networks on the pairs that people marked; they are scored here, since marks change between two trainings."""
    model, device = _champion_model(project, champion), choose_device(project.config.device)
    model.require_features(FeatureStore(project.root, list(marked.shards)).settings)
    network, _ = load_network(run.network_folder)
    folder = run.folder / "benchmarks" / MARKS
    folder.mkdir(parents=True, exist_ok=True)
    scores = {
        name: score_marks(scored, project, marked, folder / f"similarities-{name}.parquet", device=device)
        for name, scored in (("trained", network), (f"champion-{champion.version}", model.network))
    }
    challenger, other = scores["trained"], scores[f"champion-{champion.version}"]
    return compare(
        marked.definition,
        other,
        challenger,
        available=_scored(other) & _scored(challenger),
        config=project.config.evaluation.gate,
    )


def _measured(names: Sequence[str], differences: Sequence[Mapping[str, Difference]]) -> list[str]:
    """Those of the names that a benchmark has."""
    return [name for name in names if any(name in one for one in differences)]


def _champion_model(project: Project, champion: Champion) -> SimilarityModel:
    uri = f"models:/{project.config.tracking.registered_model}/{champion.version}"
    return load_similarity_model(registered_bundle(uri, project.tracking_uri))


def _champion_similarities(
    project: Project, run: TrainingRun, champion: Champion, definition: BenchmarkDefinition
) -> Path:
    """What the champion's own evaluation stored, if it was of the same benchmark; else its network is scored here.

    Raises DataError if its network does not go with the features that are here.
    """
    stored = _stored_similarities(tracker_of(project), champion.run_id, definition)
    if stored is not None:
        return stored
    model = _champion_model(project, champion)
    store = FeatureStore(project.root, benchmark_shards(project, definition.name))
    model.require_features(store.settings)
    path = run.folder / "benchmarks" / definition.name / f"similarities-champion-{champion.version}.parquet"
    device = choose_device(project.config.device)
    score_benchmark(model.network, definition, BenchmarkFeatures(store, definition), path, device=device)
    return path


def _stored_similarities(tracker: Tracker, run_id: str, definition: BenchmarkDefinition) -> Path | None:
    """Similarities among a run's artifacts; None if it has none, or those of another version of the benchmark."""
    folder = f"benchmarks/{definition.name}"
    scores, similarities = (
        tracker.artifact(run_id, f"{folder}/{name}") for name in ("scores.json", SIMILARITIES[TRAINED])
    )
    if scores is None or similarities is None:
        return None
    try:
        stored = read_json_as(scores, StoredDigest, remedy="the champion is scored again")
    except DamagedError as error:
        warnings.warn(str(error), stacklevel=2)
        return None
    return similarities if stored.digest == definition_digest(definition) else None


def _scored(similarities: pl.DataFrame) -> frozenset[str]:
    return frozenset(similarities["query_id"].unique()) | frozenset(similarities["reference_id"].unique())


def _record(tracker: Tracker, name: str, run: TrainingRun, version: int, decision: Decision) -> None:
    tags = {
        DECISION_TAG: "promoted" if decision.promoted else "not promoted",
        REASON_TAG: decision.reason,
        CHAMPION_TAG: decision.champion,
        CHAMPION_RUN_TAG: decision.champion_run,
    }
    describe(tracker.client, name, version, description=decision.reason, tags=tags)
    tracker.text(run.mlflow_run_id, json.dumps(decision.to_json(), indent=1), "gate/decision.json")
