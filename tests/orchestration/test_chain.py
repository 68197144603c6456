"""The whole chain in a temporary Dagster instance with a real MLflow store, on real files good and bad."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import mlflow
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hapvr.scorer.bundle import load_bundle
from hapvr.stages.project import Project
from hapvr.stages.summary import summarize
from hapvr.stages.training import current_run, tracker_of
from hapvr.tracking.lineage import lineage_of, versions_from
from tests.conftest import BAD_FILES, CHECKOUT, small_settings, write_settings
from tests.orchestration.conftest import Storage


@dataclass(frozen=True)
class Chain:
    """A finished demo job."""

    project: Project
    instance: dg.DagsterInstance
    result: dg.ExecuteInProcessResult
    job: dg.JobDefinition


@pytest.fixture(scope="module")
def chain(
    storage: Storage, tracking: dict[str, str], clips_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    """The demo job, run once for this module with each storage of Dagster's and MLflow's databases."""
    folder = tmp_path_factory.mktemp("chain")
    settings = small_settings(clips_folder, folder / "data") | {"tracking": tracking}
    config = write_settings(folder / "config.yaml", settings)
    with storage.instance(folder, config) as instance:
        from pipelines.chain import QUIET
        from pipelines.jobs import demo

        result = demo.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
        yield Chain(Project.open(config), instance, result, demo)


def test_demo_job_materialises_every_asset_and_partition(chain: Chain) -> None:
    """All ten assets are there, partitioned ones for each shard or benchmark, with count, path and digest."""
    assert chain.result.success
    keys = chain.instance.get_asset_keys()
    assert {key.to_user_string() for key in keys} == set(stage_names())
    shards = set(chain.instance.get_dynamic_partitions("shards"))
    assert shards >= {"own-train-00000", "own-validation-00000", "own-test-00000"}
    assert set(chain.instance.get_materialized_partitions(dg.AssetKey("features"))) == shards
    assert set(chain.instance.get_dynamic_partitions("training_shards")) == {
        shard for shard in shards if shard.startswith("own-train")
    }
    for key in keys:
        event = chain.instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        assert {"path", "digest"} <= set(metadata), key


def stage_names() -> list[str]:
    """The assets in order."""
    from pipelines.chain import STAGES

    return [stage.asset for stage in STAGES]


def test_pictures_tables_and_links_are_shown(chain: Chain) -> None:
    """Contact sheet, loss curves, precision-recall curve, heat map, failures and the link to MLflow are in the metadata."""
    wanted = {
        "frames": {"contact_sheet"},
        "video_manifest": {"rows", "videos_by_source"},
        "training_views": {"operations"},
        "pseudo_labels": {"label_rates"},
        "similarity_model": {"loss_curves", "validation_curve", "mlflow_run"},
        "benchmark_scores": {"metrics", "precision-recall-DSVR", "frame-similarity-most-similar", "mlflow_run"},
        "registered_model": {"version", "decision", "mlflow_run", "model_card"},
    }
    for asset, names in wanted.items():
        event = chain.instance.get_latest_materialization_event(dg.AssetKey(asset))
        assert event is not None
        assert event.asset_materialization is not None
        assert names <= set(event.asset_materialization.metadata), asset


def test_training_is_tracked(chain: Chain) -> None:
    """One MLflow run holds parameters, config, lineage, losses and rate per step, validation, every task's metrics, plots."""
    run = current_run(chain.project)
    tracker = tracker_of(chain.project)
    found = tracker.client.get_run(run.mlflow_run_id)
    assert found.info.status == "FINISHED"
    assert found.data.params["train.steps"] == "8"
    assert {"git.revision", "backbone.weights", "teacher.weights", "dagster.run_id"} <= set(found.data.tags)
    assert found.data.tags["backbone.weights"] == "random"
    losses = tracker.client.get_metric_history(run.mlflow_run_id, "loss/total")
    assert [metric.step for metric in losses] == [1, 3, 5, 7]
    assert len(tracker.client.get_metric_history(run.mlflow_run_id, "learning_rate")) == 4
    assert len(tracker.client.get_metric_history(run.mlflow_run_id, "validation/mean")) == 2
    for task in ("DSVR", "DSVD"):
        assert {f"own-test/untrained/{task}", f"own-test/trained/{task}"} <= set(found.data.metrics)
    folders = {item.path for item in tracker.client.list_artifacts(run.mlflow_run_id)}
    assert {"config", "data", "training", "figures", "benchmarks"} <= folders


def test_lineage_leads_from_the_version_to_its_data_and_back(chain: Chain) -> None:
    """Version -> MLflow run -> Dagster run -> digests of the shards; from the Dagster run to the MLflow run; from the digest to
    the version."""
    tracker = tracker_of(chain.project)
    version = tracker.client.get_model_version_by_alias("hapvr", "champion")
    tracked = tracker.client.get_run(version.run_id)
    dagster_run = tracked.data.tags["dagster.run_id"]
    assert dagster_run == version.tags["dagster.run_id"] == chain.result.run_id
    assert f"/runs/{dagster_run}" in tracked.data.tags["mlflow.note.content"]
    lineage = lineage_of("hapvr", "champion", tracker.uri)
    assert (lineage.mlflow_run, lineage.dagster_run) == (version.run_id, dagster_run)
    text = json.dumps(lineage.data, sort_keys=True).encode()
    assert hashlib.sha256(text).hexdigest() == version.tags["data.digest"]
    shown = {}
    for asset in ("training_views", "pseudo_labels"):
        for record in chain.instance.fetch_materializations(dg.AssetKey(asset), limit=100).records:
            assert record.asset_materialization is not None
            shown[f"{asset}/{record.partition_key}"] = record.asset_materialization.metadata["data_digest"].value
    assert {part: digest for part, digest in lineage.data.items() if part != "whitening"} == shown
    for digest in shown.values():
        assert [found.version for found in versions_from("hapvr", str(digest), tracker.uri)] == [lineage.version]
    used = {row.dataset.name: row for row in tracked.inputs.dataset_inputs}
    assert used["own-test"].tags[0].value == "evaluation"
    assert used["small training data"].dataset.digest == version.tags["data.digest"][:32]
    nested = chain.instance.get_runs(dg.RunsFilter(tags={"hapvr/parent_run_id": dagster_run}))
    assert {run.tags["mlflow/run_id"] for run in nested if "mlflow/run_id" in run.tags} == {version.run_id}
    found = tracker.client.search_model_versions(f"tags.`data.digest` = '{version.tags['data.digest']}'")
    assert [row.version for row in found] == [version.version]


def test_data_versions_say_what_was_made_from_what(chain: Chain) -> None:
    """Each materialisation has its content's digest as data version, and those of what it was made from as inputs."""
    made = {}
    for asset in stage_names():
        event = chain.instance.get_latest_materialization_event(dg.AssetKey(asset))
        assert event is not None
        assert event.asset_materialization is not None
        made[asset] = event.asset_materialization
        tags = event.asset_materialization.tags or {}
        assert len(tags["dagster/data_version"]) == 64, asset
        assert tags["dagster/data_version_is_user_provided"] == "true", asset
    whitening = (made["whitening"].tags or {})["dagster/data_version"]
    assert (made["features"].tags or {})["dagster/input_data_version/whitening"] == whitening
    model = (made["similarity_model"].tags or {})["dagster/data_version"]
    assert (made["benchmark_scores"].tags or {})["dagster/input_data_version/similarity_model"] == model


def type_name(found: pa.DataType) -> str:
    """As the asset's columns say it: sizes go by the settings."""
    if pa.types.is_list(found):
        return f"list<{found.value_type}>"
    return "fixed_size_binary" if pa.types.is_fixed_size_binary(found) else str(found)


def test_shown_columns_are_those_of_the_files(chain: Chain) -> None:
    """The column schemas on the assets name the stored columns, with their types, in their order."""
    from pipelines.chain import assets

    run = current_run(chain.project)
    files = {
        "video_manifest": "manifest/own-train-00000/rows.parquet",
        "videos": "videos/own-train-00000/index.parquet",
        "frames": "frames/own-train-00000/data.parquet",
        "features": "features/own-train-00000/data.parquet",
        "training_views": "training_views/own-train-00000/data.parquet",
        "pseudo_labels": "pseudo_labels/own-train-00000/data.parquet",
        "benchmark_scores": f"models/{run.key}/benchmarks/own-test/similarities-trained.parquet",
    }
    shown = {}
    for asset in assets:
        schema = asset.metadata_by_key[asset.key].get("dagster/column_schema")
        if schema is not None:
            shown[asset.key.to_user_string()] = [(column.name, column.type) for column in schema.value.columns]
    assert set(shown) == set(files)
    for name, columns in shown.items():
        stored = pq.read_schema(chain.project.root.local_path(files[name]))
        found = [(field.name, type_name(field.type)) for field in stored]
        assert columns == found, name


def test_data_checks_ran_for_every_shard(chain: Chain) -> None:
    """Each shard's findings are on the assets; files that are no videos fail their check with a remedy."""
    for asset, check in (("videos", "failed_videos"), ("frames", "frame_rate"), ("features", "feature_norms")):
        key = dg.AssetCheckKey(dg.AssetKey(asset), check)
        history = chain.instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
        assert len(history) >= len(chain.instance.get_dynamic_partitions("shards")), asset
    key = dg.AssetCheckKey(dg.AssetKey("features"), "feature_norms")
    history = chain.instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    assert {record.status.value for record in history} == {"SUCCEEDED"}


def test_progress_of_training_streams_into_the_runs_log(chain: Chain) -> None:
    """The trainer's lines, sent through Pipes, are in the log of the asset's run."""
    event = chain.instance.get_latest_materialization_event(dg.AssetKey("similarity_model"))
    assert event is not None
    messages = [entry.user_message for entry in chain.instance.all_logs(event.run_id)]
    assert any("step 8/8" in message for message in messages)
    assert any("validation/mean" in message for message in messages)


def test_registered_model_scores_raw_files_by_its_alias(chain: Chain, clips_folder: Path) -> None:
    """models:/hapvr@champion scores pairs of files; a bad one is a row with an error; a clip is closest to itself."""
    tracker = tracker_of(chain.project)
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    model = mlflow.pyfunc.load_model("models:/hapvr@champion")
    clip, other = clips_folder / "clip 01.mp4", clips_folder / "clip 02.mp4"
    pairs = [(clip, clip), (clip, other), (clip, clips_folder / "text.mp4")]
    frame = pd.DataFrame({"query": [str(q) for q, _ in pairs], "reference": [str(r) for _, r in pairs]})
    rows = model.predict(frame)
    assert rows["similarity"][0] > rows["similarity"][1]
    assert pd.isna(rows["similarity"][2])
    assert "not_video" in rows["error"][2]


def test_registered_model_stands_alone(chain: Chain, clips_folder: Path, tmp_path: Path) -> None:
    """The downloaded model scores in a process that sees neither the checkout, nor the data root, nor a weights cache."""
    tracker = tracker_of(chain.project)
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    copy = tmp_path / "elsewhere"
    mlflow.artifacts.download_artifacts(artifact_uri="models:/hapvr@champion", dst_path=str(copy))
    code = (
        f"import sys, json; sys.path = [p for p in sys.path if p not in ('', {str(CHECKOUT)!r})]\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import mlflow, pandas as pd\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "import hapvr\n"
        "rows = model.predict(pd.DataFrame({'query': [sys.argv[2]], 'reference': [sys.argv[2]]}))\n"
        "print(json.dumps([hapvr.__file__, float(rows['similarity'][0])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy), str(clips_folder / "clip 01.mp4")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    package, similarity = json.loads(done.stdout.strip().splitlines()[-1])
    assert Path(package).is_relative_to(copy)
    here = load_bundle(current_run(chain.project).folder / "bundle")
    clip = clips_folder / "clip 01.mp4"
    assert similarity == pytest.approx(here.score(clip, clip), abs=1e-5)


def test_a_chain_works_on_what_it_has_trained(chain: Chain) -> None:
    """Another training that ends meanwhile does not change which model a chain evaluates; outside a chain it is the last one."""
    from pipelines.chain import QUIET, asset_job

    own = current_run(chain.project)
    models = own.folder.parent
    shutil.copytree(own.folder, models / "another", ignore=shutil.ignore_patterns("bundle"))
    record = json.loads((own.folder / "run.json").read_text(encoding="utf-8")) | {"key": "another"}
    (models / "another" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    chain.project.root.write_json("models/current.json", {"key": "another"})
    try:
        paths = []
        for tags in ({"hapvr/parent_run_id": own.key}, {"hapvr/parent_run_id": "has-not-trained"}, {}):
            result = asset_job.execute_in_process(
                instance=chain.instance,
                asset_selection=[dg.AssetKey("benchmark_scores")],
                partition_key="own-test",
                run_config=QUIET,
                tags=tags,
            )
            (made,) = result.asset_materializations_for_node("benchmark_scores")
            paths.append(Path(str(made.metadata["path"].value)))
        assert [path.parent.parent.name for path in paths] == [own.key, "another", "another"]
    finally:
        chain.project.root.write_json("models/current.json", {"key": own.key})


def test_summary_counts_failures_with_their_reasons(chain: Chain) -> None:
    """The closing lines count videos, name every bad file, the weights, the version and where things are."""
    text = "\n".join(summarize(chain.project).lines)
    assert f"failed {len(BAD_FILES)}" in text
    for name in BAD_FILES:
        assert name in text
    assert "backbone weights: random" in text
    assert "models:/hapvr@champion is version 1" in text


def test_one_asset_can_be_materialised_alone(chain: Chain) -> None:
    """`dagster asset materialize --select features --partition ...` works on what is there, and leaves it alone."""
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "asset", "materialize", "-f", "pipelines/definitions.py", "-d", ".",
         "--select", "features", "--partition", "own-test-00000"],
        capture_output=True, text=True, cwd=CHECKOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    event = chain.instance.get_latest_materialization_event(dg.AssetKey("features"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["left_alone"].value is True


def test_failed_stage_stops_the_job_with_the_librarys_message(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is not there ends the job at its first stage, and the reason names the folder."""
    from pipelines.chain import QUIET, assets, failure_reason
    from pipelines.resources import pipes_client, project_resource

    settings = small_settings(tmp_path / "missing folder", tmp_path / "data")
    monkeypatch.setenv("HAPVR_CONFIG", str(write_settings(tmp_path / "c.yaml", settings)))
    resources = {"project": project_resource(), "pipes_subprocess_client": pipes_client()}
    definitions = dg.Definitions(assets=assets, resources=resources, executor=dg.in_process_executor)
    job = definitions.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey("video_manifest")],
            run_config=QUIET,
            raise_on_error=False,
        )
    assert not result.success
    assert "missing folder" in failure_reason(result)
