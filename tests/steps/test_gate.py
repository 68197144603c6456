"""The gate on stored evaluations, in a real registry: what is promoted, what is written down, what
is not comparable."""

import json
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from hapvr.errors import DataError
from hapvr.registry.champions import SINCE_TAG, champion_of, promote, rollback
from hapvr.registry.client import registered_bundle
from hapvr.registry.versions import DECISION_TAG, register, version_tags
from hapvr.scorer.bundle import read_calibration
from hapvr.seeding import numpy_rng
from hapvr.steps import gate
from hapvr.steps.baseline import ensure_baseline
from hapvr.steps.benchmark_features import project_benchmark
from hapvr.steps.evaluation import BASELINE, SIMILARITIES, TRAINED, definition_digest
from hapvr.steps.gate import make_decision
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, tracker_of
from tests.conftest import short_edits, write_settings
from tests.steps.search_projects import bundle_of, copied

Version = tuple[TrainingRun, int]
BENCHMARK = "own-test"


@pytest.fixture(scope="module")
def base(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of one's own with a registry, on a copy of the small project's data."""
    return copied(
        small_project.folder, tmp_path_factory.mktemp("gate"), **{"evaluation.gate.enabled": True}
    )


@pytest.fixture
def project(base: Project, request: pytest.FixtureRequest) -> Project:
    """The same data under a model name of the test's own."""
    settings = base.config.model_dump(mode="json")
    name = re.sub(r"\W", "-", request.node.name[:60])
    settings["tracking"]["registered_model"] = name
    return Project.open(write_settings(base.folder / f"{name}.yaml", settings), folder=base.folder)


def similarities(project: Project, gain: float, seed: int) -> pl.DataFrame:
    """Noise over all pairs of the benchmark, and `gain` on copies."""
    definition = project_benchmark(project, BENCHMARK)
    pairs = [
        (query, reference) for query in definition.queries for reference in definition.database
    ]
    frame = pl.DataFrame(pairs, schema=["query_id", "reference_id"], orient="row").with_columns(
        pl.Series("similarity", numpy_rng(seed, "gate").normal(size=len(pairs)))
    )
    both = ["query_id", "reference_id"]
    relevant = definition.labels.unique(both).select(*both, gain=pl.lit(gain))
    return frame.join(relevant, on=["query_id", "reference_id"], how="left").select(
        "query_id", "reference_id", similarity=pl.col("similarity") + pl.col("gain").fill_null(0.0)
    )


def evaluated(
    project: Project,
    key: str,
    *,
    gain: float,
    seed: int = 0,
    digest: str | None = None,
    model_uri: str | None = None,
) -> Version:
    """A run with a stored evaluation of that quality, registered as the next version."""
    tracker = tracker_of(project)
    run_id = tracker.start(
        f"{project.config.tracking.registered_model}-{key}", name=key, params={}, tags={}
    )
    run = TrainingRun(key, project.root.local_path(f"models/{run_id}"), run_id)
    folder = run.folder / "benchmarks" / BENCHMARK
    folder.mkdir(parents=True)
    similarities(project, gain, seed).write_parquet(folder / SIMILARITIES[TRAINED])
    result = {"policy": "strict", "metrics": {}, "intervals": {}, "tasks": {}}
    scores = {
        "digest": digest or definition_digest(project_benchmark(project, BENCHMARK)),
        "target_means": {BASELINE: 0.5, TRAINED: 0.6},
        "results": {BASELINE: result, TRAINED: result},
    }
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    for path in folder.iterdir():
        tracker.client.log_artifact(run_id, str(path), f"benchmarks/{BENCHMARK}")
    name = project.config.tracking.registered_model
    uri = model_uri or f"runs:/{run_id}/model"
    return run, register(tracker, name, run_id=run_id, model_uri=uri, target=0.5, tags={})


def champion_with(project: Project, **quality: Any) -> Version:
    """A version of this quality that a person has made champion."""
    first, version_number = evaluated(project, "first", **quality)
    name = project.config.tracking.registered_model
    promote(tracker_of(project).client, name, version_number, how="hand", reason="the first")
    return first, version_number


def changed(project: Project, **evaluation: Any) -> Project:
    """The project with other settings of its evaluation."""
    settings = project.config.model_dump(mode="json")
    settings["evaluation"] |= evaluation
    config = write_settings(project.folder / f"{secrets.token_hex(4)}.yaml", settings)
    return Project.open(config, folder=project.folder)


def champion(project: Project) -> int | None:
    """Number of the version with the alias."""
    current_champion = champion_of(
        tracker_of(project).client, project.config.tracking.registered_model
    )
    return current_champion.version if current_champion else None


def test_a_better_version_becomes_champion(project: Project) -> None:
    """The version says so, with the one that it was compared with."""
    first, first_version = champion_with(project, gain=0.5)
    second, second_version = evaluated(project, "second", gain=6.0)
    assert make_decision(project, second, second_version).promoted
    assert champion(project) == second_version
    client = tracker_of(project).client
    name = project.config.tracking.registered_model
    tags = version_tags(client, name, second_version)
    assert tags["hapvr.gate.decision"] == "promoted"
    assert tags["hapvr.gate.champion"] == str(first_version)
    assert tags["hapvr.gate.champion_run"] == first.mlflow_run_id
    assert "better" in client.get_model_version(name, str(second_version)).description
    assert version_tags(client, name, first_version)[SINCE_TAG] <= tags[SINCE_TAG]


def test_the_run_of_a_decided_version_has_the_numbers(project: Project) -> None:
    champion_with(project, gain=0.5)
    second, version = evaluated(project, "second", gain=6.0)
    make_decision(project, second, version)
    stored = tracker_of(project).artifact(second.mlflow_run_id, "gate/decision.json")
    verdict = json.loads(stored.read_text(encoding="utf-8"))["verdict"]
    assert verdict["target"]["difference"] > 0
    metrics = {row["name"] for row in verdict["metrics"]}
    assert metrics == {"own-test/DSVR", "own-test/DSVD", "own-test/parts"}


def test_a_version_is_decided_on_once(project: Project) -> None:
    """A repeated registration does not undo a rollback."""
    _, first_version = champion_with(project, gain=0.5)
    second, second_version = evaluated(project, "second", gain=6.0)
    make_decision(project, second, second_version)
    client = tracker_of(project).client
    name = project.config.tracking.registered_model
    assert rollback(client, name, reason="complaints") == first_version
    again = make_decision(project, second, second_version)
    assert not again.promoted
    assert "decided before" in again.reason
    assert champion(project) == first_version
    client.delete_registered_model_alias(name, "champion")
    with pytest.raises(DataError, match="has lost its champion meanwhile"):
        make_decision(project, second, second_version)


@pytest.mark.slow
def test_the_first_trained_version_has_to_beat_the_untrained_baseline(project: Project) -> None:
    """The baseline is a calibrated version and the first champion, made once; it is scored on the
    benchmark by its bundle."""
    weak, weak_version = evaluated(project, "weak", gain=0.0)
    with short_edits():
        for _ in range(2):
            ensure_baseline(project)
            assert champion(project) == 2

    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    baseline_version = tracker.client.get_model_version(name, "2")
    assert baseline_version.tags["hapvr.warning"].startswith("this model is untrained")
    tracked = tracker.client.get_run(baseline_version.run_id)
    assert tracked.info.run_name == "small-untrained"
    assert tracked.data.params["backbone.architecture"] == "test_resnet.r160_in1k"
    assert tracked.data.metrics["calibration/num_matches"] > 0
    assert 0 <= tracked.data.metrics["calibration/brier"] < 0.25
    assert (
        read_calibration(registered_bundle(f"models:/{name}/2", project.tracking_uri)) is not None
    )
    decision = make_decision(project, weak, weak_version)
    assert decision.reason.startswith(
        "not promoted: against champion version 2, worse on own-test/DSVR"
    )
    promote(tracker.client, name, weak_version, reason="all the same")
    ensure_baseline(project)  # a trained champion stays
    assert champion(project) == weak_version


def test_worse_and_equal_versions_stay_challengers(project: Project) -> None:
    """A worse one names the metrics; the same scores again are not better."""
    _, champion_version = champion_with(project, gain=6.0)
    bad, two = evaluated(project, "bad", gain=0.5)
    decision = make_decision(project, bad, two)
    assert not decision.promoted
    assert "worse on own-test/DSVR, own-test/DSVD, own-test/parts" in decision.reason
    same, three = evaluated(project, "same", gain=6.0)
    decision = make_decision(project, same, three)
    assert not decision.promoted
    assert "not clearly better" in decision.reason
    assert champion(project) == champion_version


@pytest.mark.parametrize(
    ("settings", "digest", "said"),
    [
        ({"gate": {"enabled": False}}, None, "evaluation.gate.enabled is false"),
        (
            {"gate": {"required_metrics": ["DSVRR"]}},
            None,
            "required_metrics: DSVRR was measured on no benchmark",
        ),
        ({}, "another edition", "cannot be compared"),  # and its model cannot be loaded
    ],
    ids=["closed", "misspelt", "gone"],
)
def test_what_cannot_be_compared_waits_for_a_person(
    project: Project, settings: dict[str, Any], digest: str | None, said: str
) -> None:
    """The reason, and the verb that promotes by hand."""
    _, champion_version = champion_with(project, gain=0.5, digest=digest)
    asked = changed(project, **settings)
    second, two = evaluated(asked, "second", gain=6.0)
    decision = make_decision(asked, second, two)
    assert not decision.promoted
    assert said in decision.reason
    assert f"hapvr models promote {two}" in decision.reason
    assert champion(project) == champion_version


def test_a_champion_of_another_edition_is_scored_on_this_one(
    project: Project, tmp_path: Path
) -> None:
    """Its stored scores are of other pairs, so its network is loaded from the registry and scores
    the present ones."""
    bundle = bundle_of(project, tmp_path)
    _, champion_version = champion_with(
        project, gain=0.5, digest="another edition", model_uri=bundle.as_uri()
    )
    second, two = evaluated(project, "second", gain=0.0)
    decision = make_decision(project, second, two)
    assert decision.verdict is not None, decision.reason
    assert (
        second.folder
        / "benchmarks"
        / BENCHMARK
        / f"similarities-champion-{champion_version}.parquet"
    ).is_file()
    assert not decision.promoted  # noise does not beat a network on real features


def test_a_champion_that_somebody_chose_meanwhile_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promoted by hand while the gate compares."""
    _, champion_version = champion_with(project, gain=0.5)
    run, version = evaluated(project, "meanwhile 6.0", gain=6.0)
    _, chosen_version = evaluated(project, "meanwhile 1.0", gain=1.0)
    client = tracker_of(project).client
    name = project.config.tracking.registered_model

    def decide_slowly(*arguments: Any) -> gate.Decision:
        decision = decide(*arguments)
        promote(client, name, chosen_version, reason="by hand")
        return decision

    decide = gate._decide
    monkeypatch.setattr(gate, "_decide", decide_slowly)
    assert "changed meanwhile" in make_decision(project, run, version).reason
    assert champion_of(client, name).version == chosen_version != champion_version


def test_a_promotion_that_was_ended_is_finished(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the alias and the tags that say why."""
    _, champion_version = champion_with(project, gain=0.5)
    run, version = evaluated(project, "ended", gain=6.0)
    with monkeypatch.context() as ended:
        ended.setattr("hapvr.registry.champions.decide", None)
        with pytest.raises(TypeError):
            make_decision(project, run, version)

    decision = make_decision(project, run, version)
    client = tracker_of(project).client
    tags = version_tags(client, project.config.tracking.registered_model, version)
    assert decision.promoted
    assert decision.champion == str(champion_version)
    assert tags[DECISION_TAG] == "promoted"
    assert SINCE_TAG in tags


def test_two_runs_that_register_at_once_decide_one_after_the_other(project: Project) -> None:
    """Whoever is second is compared with the one that won, not with the champion that both saw at
    first."""
    _, version_number = champion_with(project, gain=0.5)
    versions = [evaluated(project, f"rival {number}", gain=6.0, seed=number) for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda version: make_decision(project, *version), versions))
    client = tracker_of(project).client
    name = project.config.tracking.registered_model
    compared = sorted(
        version_tags(client, name, number)["hapvr.gate.champion"] for _, number in versions
    )
    numbers = [number for _, number in versions]
    winner = min(
        numbers,
        key=lambda version_number: version_tags(client, name, version_number).get(SINCE_TAG, "~"),
    )
    assert compared == sorted([str(version_number), str(winner)])
