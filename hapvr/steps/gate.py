"""The promotion gate: is a version better than the champion, on the same benchmarks and the same
videos?"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.paired_bootstrap import Difference, Verdict, compare, decide
from hapvr.benchmark.scoring import score_benchmark
from hapvr.errors import DataError, HapvrError, RegistryError
from hapvr.files import read_json_as
from hapvr.model.family import VideoNetwork
from hapvr.networks.torch_runtime import choose_device
from hapvr.registry import champions, versions
from hapvr.registry.client import registered_bundle
from hapvr.registry.records import count_of
from hapvr.registry.runs import Tracker
from hapvr.scorer.bundle import load_similarity_model
from hapvr.steps.benchmark_features import open_benchmark
from hapvr.steps.evaluation import SIMILARITIES, TRAINED, StoredScores, definition_digest
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, tracker_of
from hapvr.tables import read_frame

CHAMPION_TAG = "hapvr.gate.champion"
CHAMPION_RUN_TAG = "hapvr.gate.champion_run"


@dataclass(frozen=True)
class Decision:
    """Whether a version was promoted, and why."""

    promoted: bool
    """whether it is champion now"""
    reason: str
    champion: str
    """what it was compared with"""
    champion_run: str
    verdict: Verdict | None = None
    """the numbers; None where the two could not be compared, or were before"""


def make_decision(project: Project, run: TrainingRun, version: int) -> Decision:
    """Compare a version with the champion, make it champion if the gate passes, and leave the
    decision on version and run. Two runs that decide at once wait for each other; a champion that a
    person chose meanwhile stays. Raises DataError without a champion; `ensure_baseline` makes one.
    """
    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    with project.root.lock("promotion"):
        champion = champions.champion_of(tracker.client, name)
        if champion is None:
            raise DataError(
                f"registry: {name} has lost its champion meanwhile; materialise "
                "registered_model again"
            )

        tags = versions.version_tags(tracker.client, name, version)
        is_champion = champion.version == version
        is_decided = versions.DECISION_TAG in tags
        if is_champion and not is_decided:
            _end_promotion(tracker, name, version, tags)
        if is_champion or is_decided:
            # a repeated run does not undo what people did since
            return Decision(
                promoted=is_champion,
                reason=f"decided before: {tags.get(versions.REASON_TAG, '')}",
                champion=tags.get(CHAMPION_TAG, ""),
                champion_run=tags.get(CHAMPION_RUN_TAG, ""),
            )

        decision = _decide(project, run, version, champion)
        if decision.promoted and champions.champion_of(tracker.client, name) != champion:
            reason = (
                f"not promoted: the champion changed meanwhile; `hapvr models promote "
                f"{version}` does it by hand"
            )
            decision = replace(decision, promoted=False, reason=reason)

        _record(tracker, name, version, run, decision)

    return decision


def _end_promotion(tracker: Tracker, name: str, version: int, tags: Mapping[str, str]) -> None:
    """Finish a promotion that was interrupted before its last tag."""
    reason = tags.get(versions.REASON_TAG, "")
    champions.promote(tracker.client, name, version, how="gate", reason=reason)
    versions.decide(tracker.client, name, version, "promoted", reason)
    replaced = count_of(tags.get(CHAMPION_TAG))
    if replaced not in (None, version):
        outcome = f"was champion; version {version} replaced it by gate"
        versions.decide(tracker.client, name, replaced, outcome)


def _record(
    tracker: Tracker, name: str, version: int, run: TrainingRun, decision: Decision
) -> None:
    """Leave a decision on version and run, and promote the version if that was decided."""
    tags = {
        CHAMPION_TAG: decision.champion,
        CHAMPION_RUN_TAG: decision.champion_run,
        versions.REASON_TAG: decision.reason[: versions.MAX_CHARACTERS],
    }
    for key, value in tags.items():
        tracker.client.set_model_version_tag(name, str(version), key, value)
    outcome = "not promoted"
    if decision.promoted:
        outcome = "promoted"
        champions.promote(tracker.client, name, version, how="gate", reason=decision.reason)

    versions.decide(tracker.client, name, version, outcome, decision.reason)
    verdict = None if decision.verdict is None else decision.verdict.to_json()
    text = json.dumps({**vars(decision), "verdict": verdict}, indent=1)
    tracker.client.log_text(run.mlflow_run_id, text, "gate/decision.json")


def _decide(
    project: Project, run: TrainingRun, version: int, champion: champions.Champion
) -> Decision:
    """The gate's decision between a version and this champion."""
    evaluation = project.config.evaluation
    number = str(champion.version)
    by_hand = f"`hapvr models promote {version}`"
    verdict = None
    if evaluation.gate.enabled:
        try:
            verdict = decide(
                [_compare(project, run, champion, name) for name in evaluation.benchmarks],
                target_metrics=evaluation.target_metrics,
                config=evaluation.gate,
            )
            word = "promoted" if verdict.passed else "not promoted"
            reason = f"{word}: against champion version {number}, {verdict.reason}"
        except RegistryError:  # a repetition decides
            raise
        except HapvrError as error:
            reason = (
                f"not promoted: champion version {number} cannot be compared on these "
                f"benchmarks ({error}). Compare by hand with `hapvr evaluate`, then {by_hand}"
            )
    else:
        reason = f"not promoted: evaluation.gate.enabled is false; {by_hand} does it by hand"

    is_passed = verdict is not None and verdict.passed
    return Decision(is_passed, reason, number, champion.run_id, verdict)


def _compare(
    project: Project, run: TrainingRun, champion: champions.Champion, name: str
) -> dict[str, Difference]:
    """On the videos of a benchmark that both have scores of. Raises DataError where the champion
    does not go with its features."""
    definition, features = open_benchmark(project, name)
    folder = run.folder / "benchmarks" / definition.name
    stored = _stored_similarities(project, champion, definition)
    if stored is None:
        stored = folder / f"similarities-champion-{champion.version}.parquet"
        network = _champion_network(project, champion, features.settings)
        device = choose_device(project.config.device)
        score_benchmark(network, definition, features, stored, device=device)

    with project.root.corruption_errors(str(stored), hint="evaluate both models again"):
        before = read_frame(stored)
        now = read_frame(folder / SIMILARITIES[TRAINED])

    return compare(
        definition,
        before,
        now,
        available=frozenset(_scored_videos(before) & _scored_videos(now)),
        config=project.config.evaluation.gate,
    )


def _scored_videos(scores: pl.DataFrame) -> set[str]:
    return {*scores["query_id"].unique(), *scores["reference_id"].unique()}


def _stored_similarities(
    project: Project, champion: champions.Champion, definition: BenchmarkDefinition
) -> Path | None:
    """The similarities that the champion's run has of this edition of a benchmark."""
    tracker = tracker_of(project)
    folder = f"benchmarks/{definition.name}"
    scores = tracker.artifact(champion.run_id, f"{folder}/scores.json")
    if scores is None:
        return None
    edition = read_json_as(scores, StoredScores, hint="evaluate the champion again").digest
    if edition != definition_digest(definition):
        return None
    return tracker.artifact(champion.run_id, f"{folder}/{SIMILARITIES[TRAINED]}")


def _champion_network(
    project: Project, champion: champions.Champion, feature_settings: Mapping[str, Any]
) -> VideoNetwork:
    """The network of the registered champion, which has to go with these features."""
    uri = f"models:/{project.config.tracking.registered_model}/{champion.version}"
    place = registered_bundle(uri, project.tracking_uri)
    network, description = load_similarity_model(place)
    if description is not None:
        description.require_features(place, feature_settings)
    return network
