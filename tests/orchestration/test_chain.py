"""`make demo` over real files, good and bad, in a temporary Dagster instance with a real MLflow
store."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import dagster as dg
import mlflow
import pytest
import yaml
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME

from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.scorer.bundle import load_bundle
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of, trained_run
from tests.conftest import BAD_FILES, CHECKOUT, run_python
from tests.orchestration.conftest import ASSETS, Storage, materialize
from tests.orchestration.demo_chain import (
    MLFLOW_PAGE,
    PARTITIONED,
    SHOWN,
    Chain,
    Interrupted,
    checks_of,
    data_digests,
    interrupted_demo,
    latest,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # all want the whole chain


@pytest.fixture(scope="module")
def interrupted(clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return interrupted_demo(tmp_path_factory.mktemp("chain"), clips_folder)


def test_ctrl_c_ends_make_demo_without_an_error(interrupted: Interrupted) -> None:
    """While runs are under way."""
    assert "***" not in interrupted.said


def test_ctrl_c_ends_all_that_make_demo_started(interrupted: Interrupted) -> None:
    assert interrupted.running == []


@pytest.fixture(scope="module")
def chain(interrupted: Interrupted) -> Iterator[Chain]:
    """What `make demo` runs to its end, once for this module; test_week.py runs the jobs over
    PostgreSQL."""
    folder = interrupted.folder
    config = folder / "config.yaml"
    with Storage().instance(folder, config) as instance:
        output = run_python(
            "-m", "pipelines.demo", env=os.environ | {"HAPVR_MLFLOW_PAGE": MLFLOW_PAGE}
        )
        (retrained,) = instance.get_runs(dg.RunsFilter(job_name="retrain"))
        yield Chain(Project.open(config), instance, retrained, output)


@pytest.fixture(scope="module")
def job_lines(chain: Chain) -> list[re.Match[str]]:
    """The lines that the demo prints at the end of each job: its number, what it made, and of how
    many shards."""
    line = re.compile(r"\[(\d)/7\] \w+ +(.*?)(?:, (\d) shards)?: ")
    return [match for match in map(line.match, chain.said.splitlines()) if match]


def test_the_demo_says_a_line_for_each_job_in_order(job_lines: list[re.Match[str]]) -> None:
    assert [int(line[1]) for line in job_lines] == list(range(1, 8))


def test_the_demo_says_what_it_made(job_lines: list[re.Match[str]]) -> None:
    assert [asset for line in job_lines for asset in line[2].split(", ")] == list(ASSETS)


def test_the_demo_says_of_what_is_made_by_shards_how_many_there_are(
    job_lines: list[re.Match[str]],
) -> None:
    counted = {asset for line in job_lines if line[3] for asset in line[2].split(", ")}
    assert counted == set(PARTITIONED)


def test_the_demo_says_how_the_training_gets_on(chain: Chain) -> None:
    assert any("step 8/8" in line for line in chain.said.splitlines())


def test_the_demo_ends_with_the_answer_of_a_search(chain: Chain) -> None:
    wanted = r"an edited part of own-train/.*\n\$ .venv/bin/hapvr search .*\nquery "
    assert re.search(wanted, chain.said)


def test_the_demo_names_no_page_that_does_not_answer(chain: Chain) -> None:
    """None does before `make ui`."""
    assert "http://" not in chain.said


@pytest.mark.parametrize(
    "text",
    [
        "own-test (policy",
        "untrained baseline",
        "trained model",
        f"{len(BAD_FILES)} cannot be used",
        "champion    models:/hapvr/1 since",
    ],
)
def test_the_demo_sums_up(chain: Chain, text: str) -> None:
    """The table of scores, failed videos, and the champion."""
    assert text in chain.said


def test_the_jobs_materialise_every_asset(chain: Chain) -> None:
    keys = chain.instance.get_asset_keys()
    assert {key.to_user_string() for key in keys} == set(ASSETS)


def test_each_split_has_a_shard(chain: Chain) -> None:
    shards = set(chain.instance.get_dynamic_partitions("shards"))
    assert shards >= {"own-train-00000", "own-validation-00000", "own-test-00000"}


@pytest.mark.parametrize("asset", PARTITIONED)
def test_the_jobs_materialise_every_shard(chain: Chain, asset: str) -> None:
    """What is searched is that of the collection alone."""
    is_searched = CHAIN[asset].shards == "collection"
    of_collection = set(shards_of(chain.project, CHAIN[asset]))
    every = set(chain.instance.get_dynamic_partitions("shards"))
    materialized = chain.instance.get_materialized_partitions(dg.AssetKey(asset))
    assert materialized == (of_collection if is_searched else every)


@pytest.mark.parametrize("asset", ASSETS)
def test_each_asset_shows_what_it_is(chain: Chain, asset: str) -> None:
    """Path, digest, pictures, tables and the link to MLflow."""
    shown = latest(chain, asset).metadata
    assert shown.keys() >= SHOWN.get(asset, set()) | {"path", "digest"}


@pytest.mark.parametrize("asset", ASSETS)
def test_the_data_version_of_an_asset_is_the_digest_of_its_content(
    chain: Chain, asset: str
) -> None:
    tags = latest(chain, asset).tags or {}
    assert len(tags["dagster/data_version"]) == 64
    assert tags["dagster/data_version_is_user_provided"] == "true"


def test_a_model_links_to_its_mlflow_run(chain: Chain) -> None:
    link = latest(chain, "similarity_model").metadata["mlflow_run"].value
    assert str(link).startswith(MLFLOW_PAGE)


@pytest.mark.parametrize(
    ("asset", "source"), [("features", "whitening"), ("benchmark_scores", "similarity_model")]
)
def test_an_asset_has_the_data_versions_of_what_it_was_made_from(
    chain: Chain, asset: str, source: str
) -> None:
    version = (latest(chain, source).tags or {})["dagster/data_version"]
    assert (latest(chain, asset).tags or {})[f"dagster/input_data_version/{source}"] == version


@pytest.mark.parametrize("asset", ["training_views", "pseudo_labels"])
def test_a_shard_of_another_split_gets_an_empty_record_in_training(
    chain: Chain, asset: str
) -> None:
    """It is materialised with a reason, and no folder is made for it."""
    metadata = latest(chain, asset, "own-test-00000").metadata
    assert metadata["dagster/row_count"].value == 0
    assert "not of the training split" in str(metadata["reason"].value)
    assert chain.project.shard(asset, "own-test-00000").provenance() is None
    assert chain.project.shard(asset, "own-train-00000").provenance() is not None


def test_an_asset_can_be_made_alone(chain: Chain) -> None:
    """Also one of the two that one function makes; what is there is left alone."""
    result = materialize(chain.instance, "pseudo_labels", shard="own-train-00000")
    assert result.success
    assets = [
        event.asset_key.to_user_string()
        for event in result.get_asset_materialization_events()
        if event.asset_key
    ]
    assert assets == ["pseudo_labels"]
    assert latest(chain, "pseudo_labels").metadata["was_finished"].value is True


@pytest.fixture(scope="module")
def tracked(chain: Chain) -> Run:
    """The MLflow run of the training."""
    run = trained_run(chain.project)
    return tracker_of(chain.project).client.get_run(run.mlflow_run_id)


def test_a_training_is_a_finished_mlflow_run_with_its_settings(tracked: Run) -> None:
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["train.steps"] == "8"


def test_tags_say_what_a_training_began_with(tracked: Run) -> None:
    wanted = {"git.revision", "backbone.weights", "teacher.weights", "dagster.run_id"}
    assert tracked.data.tags.keys() >= wanted
    assert tracked.data.tags["backbone.weights"] == "packaged"


@pytest.mark.parametrize(
    ("metric", "steps"),
    [("loss/total", range(8)), ("learning_rate", range(8)), ("validation/mean", (3, 7))],
    ids=["loss", "rate", "validation"],
)
def test_metrics_are_kept_of_each_step(
    chain: Chain, tracked: Run, metric: str, steps: Iterable[int]
) -> None:
    history = tracker_of(chain.project).client.get_metric_history(tracked.info.run_id, metric)
    assert [value.step for value in history] == list(steps)


@pytest.mark.parametrize("row", ["untrained", "trained"])
@pytest.mark.parametrize("task", ["DSVR", "DSVD"])
def test_each_task_of_the_benchmark_is_measured(tracked: Run, row: str, task: str) -> None:
    assert f"own-test/{row}/{task}" in tracked.data.metrics


@pytest.mark.parametrize("folder", ["config", "data", "training", "figures", "benchmarks"])
def test_artifacts_of_a_training_are_kept(chain: Chain, tracked: Run, folder: str) -> None:
    artifacts = tracker_of(chain.project).client.list_artifacts(tracked.info.run_id)
    assert folder in {item.path for item in artifacts}


@pytest.mark.parametrize("text", ["step 8/8", "validation/mean"])
def test_lines_of_the_trainer_are_in_the_log_of_its_run(chain: Chain, text: str) -> None:
    """They come through Pipes."""
    messages = [entry.user_message for entry in chain.instance.all_logs(chain.retrained.run_id)]
    assert any(text in message for message in messages)


@pytest.fixture(scope="module")
def newest(chain: Chain) -> ModelVersion:
    """The version that the training registered."""
    return tracker_of(chain.project).client.get_model_version_by_alias("hapvr", "challenger")


def test_a_version_names_the_runs_that_made_it(
    chain: Chain, tracked: Run, newest: ModelVersion
) -> None:
    """MLflow's, and by it Dagster's, to which a link leads."""
    dagster_run = tracked.data.tags["dagster.run_id"]
    assert newest.run_id == tracked.info.run_id
    assert dagster_run == newest.tags["dagster.run_id"]
    assert dagster_run == chain.retrained.run_id
    assert f"/runs/{dagster_run}" in tracked.data.tags["mlflow.note.content"]
    assert tracked.data.tags[MLFLOW_SOURCE_NAME] == "dagster"


def test_a_run_of_dagster_names_its_mlflow_run(chain: Chain, newest: ModelVersion) -> None:
    dagster_run = chain.instance.get_run_by_id(newest.tags["dagster.run_id"])
    assert dagster_run is not None
    assert dagster_run.tags["mlflow/run_id"] == newest.run_id


def test_the_digest_of_a_version_is_that_of_its_data(
    chain: Chain, tracked: Run, newest: ModelVersion
) -> None:
    text = json.dumps(data_digests(chain, newest), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == newest.tags["data.digest"]
    assert tracked.data.tags["data.digest"] == newest.tags["data.digest"]


def test_a_version_names_the_digests_that_its_shards_show(
    chain: Chain, newest: ModelVersion
) -> None:
    """Those of the training split; others show none."""
    shown = {}
    for asset in ("training_views", "pseudo_labels"):
        for record in chain.instance.fetch_materializations(dg.AssetKey(asset), limit=100).records:
            metadata = record.asset_materialization.metadata
            if "data_digest" in metadata:
                shown[f"{asset}/{record.partition_key}"] = metadata["data_digest"].value

    digests = data_digests(chain, newest)
    assert {part: digest for part, digest in digests.items() if part != "whitening"} == shown


def test_a_digest_of_data_leads_to_the_version(chain: Chain, newest: ModelVersion) -> None:
    versions = tracker_of(chain.project).client.search_model_versions(
        f"tags.`data.digest` = '{newest.tags['data.digest']}'"
    )
    assert [row.version for row in versions] == [newest.version]


@pytest.mark.parametrize(
    ("asset", "check"),
    [("videos", "failed_videos"), ("frames", "frame_rate"), ("features", "feature_norms")],
)
def test_data_checks_ran_for_every_shard(chain: Chain, asset: str, check: str) -> None:
    shards = chain.instance.get_dynamic_partitions("shards")
    assert len(checks_of(chain, asset, check)) >= len(shards)


def test_features_pass_their_check(chain: Chain) -> None:
    assert set(checks_of(chain, "features", "feature_norms")) == {"SUCCEEDED"}


def test_the_verdict_of_the_gate_is_on_the_model(chain: Chain) -> None:
    key = dg.AssetCheckKey(dg.AssetKey("registered_model"), "better_on_the_target")
    (record,) = chain.instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert record.status.value == "FAILED"
    assert "evaluation.gate.enabled is false" in (
        record.event.asset_check_evaluation.description or ""
    )


def test_registered_model_stands_alone(chain: Chain, clips_folder: Path, tmp_path: Path) -> None:
    """The downloaded model scores in a process that sees neither the checkout, nor the data root,
    nor a weights cache."""
    tracker = tracker_of(chain.project)
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    copy = tmp_path / "elsewhere"
    mlflow.artifacts.download_artifacts(artifact_uri="models:/hapvr@challenger", dst_path=str(copy))
    code = (
        f"import sys, json; sys.path = [p for p in sys.path if p not in ('', {str(CHECKOUT)!r})]\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import mlflow, pandas as pd\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "import hapvr\n"
        "rows = model.predict(pd.DataFrame({'query': [sys.argv[2]], 'reference': [sys.argv[2]]}))\n"
        "print(json.dumps([hapvr.__file__, float(rows['similarity'][0])]))"
    )
    output = run_python("-c", code, copy, clips_folder / "clip 01.mp4", cwd=tmp_path)
    package, similarity = json.loads(output.strip().splitlines()[-1])
    assert Path(package).is_relative_to(copy)
    here = load_bundle(trained_run(chain.project).folder / "bundle")
    clip = clips_folder / "clip 01.mp4"
    assert similarity == pytest.approx(here.score(clip, clip), abs=1e-5)


def test_a_run_works_on_what_it_has_trained(chain: Chain) -> None:
    """Another training that ends meanwhile does not change which model a retry evaluates; a run of
    its own takes the last."""
    from assets.training import training_key
    from pipelines.definitions import defs

    own = trained_run(chain.project)
    models = own.folder.parent
    shutil.copytree(own.folder, models / "another", ignore=shutil.ignore_patterns("bundle"))
    record = json.loads((own.folder / "run.json").read_text(encoding="utf-8")) | {"key": "another"}
    (models / "another" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    chain.project.root.write_json("models/current.json", {"key": "another"})
    try:
        job = defs.resolve_job_def("retrain")
        retry = chain.instance.create_run_for_job(job, root_run_id=own.key, parent_run_id=own.key)
        alone = chain.instance.create_run_for_job(job)
        assert [trained_run(chain.project, training_key(run)).key for run in (retry, alone)] == [
            own.key,
            "another",
        ]
    finally:
        chain.project.root.write_json("models/current.json", {"key": own.key})
        shutil.rmtree(models / "another")


def test_an_unchanged_training_says_so_and_can_be_skipped(chain: Chain) -> None:
    """Nothing is new since the last training: with `keep_if_unchanged` its model is shown again,
    and none is trained."""
    from assets.training import KEEP_IF_UNCHANGED

    own = trained_run(chain.project)
    before = latest(chain, "similarity_model")
    result = materialize(
        chain.instance, "similarity_model", config=yaml.safe_load(KEEP_IF_UNCHANGED)
    )
    assert result.success
    again = latest(chain, "similarity_model")
    assert (again.tags or {})["dagster/data_version"] == (before.tags or {})["dagster/data_version"]
    assert [path.parent.name for path in own.folder.parent.glob("*/run.json")] == [own.key]
    messages = [entry.user_message for entry in chain.instance.all_logs(result.run_id)]
    assert any("Neither training data nor settings changed" in message for message in messages)
