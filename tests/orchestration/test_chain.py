"""`make demo` over real files, good and bad, in a temporary Dagster instance with a real MLflow
store."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import mlflow
import psutil
import pytest
import yaml
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME

from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.registry.versions import LINEAGE_FILE
from hapvr.scorer.bundle import load_bundle
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of, trained_run
from tests.conftest import BAD_FILES, CHECKOUT, run_python, small_settings, write_settings
from tests.orchestration.conftest import ASSETS, Storage, execute, materialize
from tests.orchestration.servers import environment_in, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # all want the whole chain

PARTITIONED = (
    "videos",
    "frames",
    "features",
    "training_views",
    "pseudo_labels",
    "frame_descriptors",
)
MLFLOW_PAGE = "http://127.0.0.1:5001"


@dataclass(frozen=True)
class Chain:
    """All jobs have run. retrained: the run that trained; said: what the demo printed."""

    project: Project
    instance: dg.DagsterInstance
    retrained: dg.DagsterRun
    said: str


@pytest.fixture(scope="module")
def interrupted(
    clips_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, list[psutil.Process]]:
    """The folder of a project whose `make demo` was interrupted at its first job, what it said, and
    processes that are left."""
    folder = tmp_path_factory.mktemp("chain")
    settings = small_settings(clips_folder, folder / "data") | {"shard_videos": 50}
    environment = environment_in(folder, settings)
    venv = Path(sys.executable).parent.parent
    command = ["make", "--assume-old", f"{venv}/.installed", f"VENV={venv}"]
    command += [f"DAGSTER_HOME={environment['DAGSTER_HOME']}", "demo"]
    says = folder / "says.txt"
    with says.open("wb") as output:
        there = {"cwd": CHECKOUT, "env": environment, "start_new_session": True}
        make = subprocess.Popen(command, stdout=output, stderr=output, **there)

    wait_until(lambda: "find_videos" in says.read_text(encoding="utf-8"), "the first job")
    family = psutil.Process(make.pid).children(recursive=True)
    os.killpg(make.pid, signal.SIGINT)
    make.wait(timeout=60)
    left = psutil.wait_procs(family, timeout=60)[1]
    running = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    return folder, says.read_text(encoding="utf-8"), running


def test_ctrl_c_ends_make_demo_and_all_that_it_started(
    interrupted: tuple[Path, str, list[psutil.Process]],
) -> None:
    """While runs are under way: make ends, says nothing of an error, and leaves no process."""
    _, output, running = interrupted
    assert "***" not in output
    assert running == []


@pytest.fixture(scope="module")
def chain(interrupted: tuple[Path, str, list[psutil.Process]]) -> Iterator[Chain]:
    """What `make demo` runs to its end, once for this module; test_week.py runs the jobs over
    PostgreSQL."""
    folder = interrupted[0]
    config = folder / "config.yaml"
    with Storage().instance(folder, config) as instance:
        output = run_python(
            "-m", "pipelines.demo", env=os.environ | {"HAPVR_MLFLOW_PAGE": MLFLOW_PAGE}
        )
        (retrained,) = instance.get_runs(dg.RunsFilter(job_name="retrain"))
        yield Chain(Project.open(config), instance, retrained, output)


def test_the_demo_says_what_it_made(chain: Chain) -> None:
    """A line for each job in order, lines of the training between them, and the answer of a search
    at the end."""
    lines = chain.said.splitlines()
    progress = re.compile(r"\[(\d)/7\] \w+ +(.*?)(?:, (\d) shards)?: ")
    counted = [found for found in map(progress.match, lines) if found]
    assert [int(found[1]) for found in counted] == list(range(1, 8))
    assert [asset for found in counted for asset in found[2].split(", ")] == list(ASSETS)
    assert {asset for found in counted if found[3] for asset in found[2].split(", ")} == set(
        PARTITIONED
    )
    assert any("step 8/8" in line for line in lines)
    assert re.search(
        r"an edited part of own-train/.*\n\$ .venv/bin/hapvr search .*\nquery ", chain.said
    )
    assert "http://" not in chain.said  # nothing answers there before `make ui`


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


def test_the_jobs_materialise_every_asset_and_partition(chain: Chain) -> None:
    """All assets of the jobs are there, partitioned ones for each shard, or each of the
    collection."""
    keys = chain.instance.get_asset_keys()
    assert {key.to_user_string() for key in keys} == set(ASSETS)
    shards = set(chain.instance.get_dynamic_partitions("shards"))
    assert shards >= {"own-train-00000", "own-validation-00000", "own-test-00000"}
    for asset in PARTITIONED:
        searched = CHAIN[asset].shards == "collection"
        wanted = set(shards_of(chain.project, CHAIN[asset])) if searched else shards
        assert set(chain.instance.get_materialized_partitions(dg.AssetKey(asset))) == wanted, asset


SHOWN = {
    **{asset: {"dagster/column_schema"} for asset in PARTITIONED},
    "frames": {"dagster/column_schema", "contact_sheet"},
    "video_manifest": {"rows", "videos_by_source"},
    "similarity_model": {"loss_curves", "validation_curve", "mlflow_run"},
    "benchmark_scores": {
        "metrics",
        "own-test: mAP DSVR",
        "own-test: precision-recall-DSVR",
        "mlflow_run",
    },
    "registered_model": {"version", "decision", "mlflow_run", "model_card"},
}


def test_each_asset_shows_what_it_is(chain: Chain) -> None:
    """Path, digest, pictures, tables and the link to MLflow; the digest of its content as data
    version."""
    materializations = {asset: latest(chain, asset) for asset in ASSETS}
    versions = {
        asset: (materialization.tags or {})["dagster/data_version"]
        for asset, materialization in materializations.items()
    }
    for asset, materialization in materializations.items():
        assert SHOWN.get(asset, set()) | {"path", "digest"} <= set(materialization.metadata), asset
        assert len(versions[asset]) == 64, asset
        assert materialization.tags["dagster/data_version_is_user_provided"] == "true", asset

    assert str(materializations["similarity_model"].metadata["mlflow_run"].value).startswith(
        MLFLOW_PAGE
    )


@pytest.mark.parametrize(
    ("asset", "source"), [("features", "whitening"), ("benchmark_scores", "similarity_model")]
)
def test_an_asset_has_the_data_versions_of_what_it_was_made_from(
    chain: Chain, asset: str, source: str
) -> None:
    version = (latest(chain, source).tags or {})["dagster/data_version"]
    assert (latest(chain, asset).tags or {})[f"dagster/input_data_version/{source}"] == version


def latest(chain: Chain, asset: str, shard: str = "own-train-00000") -> dg.AssetMaterialization:
    """The last materialisation of an asset; of a partitioned one, that of this shard."""
    partitions = [shard] if asset in PARTITIONED else None
    records = chain.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=partitions), limit=1
    ).records
    assert records, asset
    return records[0].asset_materialization


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


def test_training_is_tracked(chain: Chain) -> None:
    """One MLflow run holds parameters, config, lineage, losses and rate per step, validation, every
    task's metrics, plots; the trainer's lines, sent through Pipes, are in the log of the asset's
    run."""
    run = trained_run(chain.project)
    tracker = tracker_of(chain.project)
    mlflow_run = tracker.client.get_run(run.mlflow_run_id)
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.params["train.steps"] == "8"
    assert {"git.revision", "backbone.weights", "teacher.weights", "dagster.run_id"} <= set(
        mlflow_run.data.tags
    )
    assert mlflow_run.data.tags["backbone.weights"] == "random"
    losses = tracker.client.get_metric_history(run.mlflow_run_id, "loss/total")
    assert [metric.step for metric in losses] == list(range(8))
    assert len(tracker.client.get_metric_history(run.mlflow_run_id, "learning_rate")) == 8
    assert len(tracker.client.get_metric_history(run.mlflow_run_id, "validation/mean")) == 2
    rows = ("untrained", "trained")
    measured = {f"own-test/{row}/{task}" for row in rows for task in ("DSVR", "DSVD")}
    assert measured <= set(mlflow_run.data.metrics)
    folders = {item.path for item in tracker.client.list_artifacts(run.mlflow_run_id)}
    assert {"config", "data", "training", "figures", "benchmarks"} <= folders
    messages = [entry.user_message for entry in chain.instance.all_logs(chain.retrained.run_id)]
    assert any("step 8/8" in message for message in messages)
    assert any("validation/mean" in message for message in messages)


def test_lineage_leads_from_the_version_to_its_data_and_back(chain: Chain) -> None:
    """Newest version -> MLflow run -> Dagster run -> digests of the shards; from the Dagster run to
    the MLflow run; from the digest to the version."""
    tracker = tracker_of(chain.project)
    version = tracker.client.get_model_version_by_alias("hapvr", "challenger")
    tracked = tracker.client.get_run(version.run_id)
    dagster_run = tracked.data.tags["dagster.run_id"]
    assert dagster_run == version.tags["dagster.run_id"] == chain.retrained.run_id
    assert f"/runs/{dagster_run}" in tracked.data.tags["mlflow.note.content"]
    assert tracked.data.tags[MLFLOW_SOURCE_NAME] == "dagster"
    lineage = Path(tracker.client.download_artifacts(version.run_id, LINEAGE_FILE)).read_text(
        encoding="utf-8"
    )
    data = json.loads(lineage)["data_digests"]
    assert (
        hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        == version.tags["data.digest"]
    )
    shown = {}
    for asset in ("training_views", "pseudo_labels"):
        for record in chain.instance.fetch_materializations(dg.AssetKey(asset), limit=100).records:
            if (
                "data_digest" in record.asset_materialization.metadata
            ):  # else the shard is not of the training split
                shown[f"{asset}/{record.partition_key}"] = record.asset_materialization.metadata[
                    "data_digest"
                ].value

    assert {part: digest for part, digest in data.items() if part != "whitening"} == shown
    assert tracked.data.tags["data.digest"] == version.tags["data.digest"]
    assert chain.instance.get_run_by_id(dagster_run).tags["mlflow/run_id"] == version.run_id
    versions = tracker.client.search_model_versions(
        f"tags.`data.digest` = '{version.tags['data.digest']}'"
    )
    assert [row.version for row in versions] == [version.version]


@pytest.mark.parametrize(
    ("asset", "check"),
    [("videos", "failed_videos"), ("frames", "frame_rate"), ("features", "feature_norms")],
)
def test_data_checks_ran_for_every_shard(chain: Chain, asset: str, check: str) -> None:
    """Each shard's findings are on the assets; those of features are good."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), check)
    history = chain.instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    assert len(history) >= len(chain.instance.get_dynamic_partitions("shards"))
    if asset == "features":
        assert {record.status.value for record in history} == {"SUCCEEDED"}


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


def test_failed_stage_stops_the_job_with_the_librarys_message(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is not there ends the job at its first stage, and the reason names the
    folder."""
    from pipelines.monitoring import failure_reason
    from pipelines.resources import project_resource

    settings = small_settings(tmp_path / "missing folder", tmp_path / "data")
    monkeypatch.setenv("HAPVR_CONFIG", str(write_settings(tmp_path / "c.yaml", settings)))
    result = execute(chain.instance, "find_videos", resources={"project": project_resource()})
    assert not result.success
    assert "missing folder cannot be listed (No such" in failure_reason(
        chain.instance, result.run_id
    )
