"""The promotion gate: is the new version better than the champion, on the same benchmarks and the same videos?"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hapvr.benchmark.paired_bootstrap import Difference, Verdict, compare, decide
from hapvr.benchmark.scoring import score_benchmark
from hapvr.errors import DataError, HapvrError
from hapvr.files import read_json_as
from hapvr.networks.extract import choose_device
from hapvr.registry.client import registered_bundle
from hapvr.registry.versions import DECISION_TAG, REASON_TAG, Champion, champion_of, promote, version_tags
from hapvr.registry.versions import decide as decide_version
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
    """promoted: the version is champion now; champion, champion_run: what it was compared with; verdict: the numbers, None
    where the two could not be compared, or were before."""

    promoted: bool
    reason: str
    champion: str
    champion_run: str
    verdict: Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return vars(self) | {"verdict": self.verdict.to_json() if self.verdict else None}


def make_decision(project: Project, run: TrainingRun, version: int) -> Decision:
    """Compare a version with the champion, make it champion if the gate passes, and leave the decision on version and run.

    Two runs that decide at once wait for each other; a champion that a person chose meanwhile stays. Raises DataError without
    a champion; `ensure_baseline` makes one.
    """
    client, name = tracker_of(project).client, project.config.tracking.registered_model
    with project.root.lock("promotion"):
        champion, tags = champion_of(client, name), version_tags(client, name, version)
        if champion is None:
            raise DataError(f"registry: {name} has lost its champion meanwhile; materialise registered_model again")
        if DECISION_TAG in tags:  # a repeated run does not undo what people did since
            before = tags.get(CHAMPION_TAG, ""), tags.get(CHAMPION_RUN_TAG, "")
            return Decision(champion.version == version, f"decided before: {tags.get(REASON_TAG, '')}", *before)
        decision = _decide(project, run, version, champion)
        if decision.promoted and champion_of(client, name) != champion:
            reason = (
                f"not promoted: the champion was changed meanwhile; `hapvr models promote {version}` does it by hand"
            )
            decision = replace(decision, promoted=False, reason=reason)
        if decision.promoted:
            promote(client, name, version, how="gate", reason=decision.reason)
        for key, value in {CHAMPION_TAG: decision.champion, CHAMPION_RUN_TAG: decision.champion_run}.items():
            client.set_model_version_tag(name, str(version), key, value)
        decide_version(client, name, version, "promoted" if decision.promoted else "not promoted", decision.reason)
        client.log_text(run.mlflow_run_id, json.dumps(decision.to_json(), indent=1), "gate/decision.json")
    return decision


def _decide(project: Project, run: TrainingRun, version: int, champion: Champion) -> Decision:
    evaluation = project.config.evaluation
    number, by_hand = str(champion.version), f"`hapvr models promote {version}`"
    if not evaluation.gate.enabled:
        reason = f"not promoted: evaluation.gate.enabled is false; {by_hand} does it by hand"
        return Decision(False, reason, number, champion.run_id)
    try:
        differences = [_compare(project, run, champion, name) for name in evaluation.benchmarks]
        verdict = decide(differences, target_metrics=evaluation.target_metrics, config=evaluation.gate)
    except HapvrError as error:
        reason = (
            f"not promoted: champion version {number} cannot be compared on these benchmarks ({error}). Compare by hand "
            f"with `hapvr evaluate`, then {by_hand}"
        )
        return Decision(False, reason, number, champion.run_id)
    word = "promoted" if verdict.passed else "not promoted"
    reason = f"{word}: against champion version {number}, {verdict.reason}"
    return Decision(verdict.passed, reason, number, champion.run_id, verdict)


def _compare(project: Project, run: TrainingRun, champion: Champion, name: str) -> dict[str, Difference]:
    """On the videos of a benchmark that both have scores of. Raises DataError where the champion does not go with the
    features of the benchmark."""
    definition, features = open_benchmark(project, name)
    tracker, folder, stored = tracker_of(project), f"benchmarks/{definition.name}", None
    if (written := tracker.artifact(champion.run_id, f"{folder}/scores.json")) is not None:
        edition = read_json_as(written, StoredScores, hint="evaluate the champion again").digest
        if edition == definition_digest(definition):
            stored = tracker.artifact(champion.run_id, f"{folder}/{SIMILARITIES[TRAINED]}")
    if stored is None:
        uri = f"models:/{project.config.tracking.registered_model}/{champion.version}"
        model = load_similarity_model(registered_bundle(uri, project.tracking_uri))
        model.require_features(features.settings)
        stored = run.folder / folder / f"similarities-champion-{champion.version}.parquet"
        score_benchmark(model.network, definition, features, stored, device=choose_device(project.config.device))
    scores = read_frame(stored), read_frame(run.folder / folder / SIMILARITIES[TRAINED])
    first, second = ({*one["query_id"].unique(), *one["reference_id"].unique()} for one in scores)
    return compare(definition, *scores, available=frozenset(first & second), config=project.config.evaluation.gate)
