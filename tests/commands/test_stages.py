"""`hapvr run | status | download | sample | extract | train`, and what every verb does with a wrong
configuration."""

import shutil
from pathlib import Path

import pytest

from hapvr.chain import CHAIN
from hapvr.data.manifest import shard_keys
from hapvr.model.checkpoint import load_network
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of
from tests.commands.conftest import Call
from tests.conftest import BAD_FILES, small_settings, write_settings
from tests.registry.empty_store import new_store
from tests.steps.search_projects import copied


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"nonsense": 1}, (), "unknown key 'nonsense'; allowed here: automation, backbone, "),
        (
            {},
            ("--set", "train.steps"),
            "--set 'train.steps': expected KEY=VALUE, e.g. train.steps=50",
        ),
        ({}, ("--set", "views.frames=2"), "views: unknown key 'frames'; allowed here: "),
    ],
)
def test_wrong_configurations_are_wrong_calls(
    call: Call, tmp_path: Path, settings: dict[str, object], options: tuple[str, ...], message: str
) -> None:
    """Exit 2 before anything is read or written; the text names the key, the value and what is
    allowed."""
    config = write_settings(
        tmp_path / "c.yaml", small_settings(tmp_path, tmp_path / "data") | settings
    )
    done = call("sample", "--config", config, *options)
    assert done.code == 2
    assert message in done.error
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_finished_stages_are_left_alone_and_say_so(call: Call, small_project: Project) -> None:
    """Every stage of a finished project answers at once, with its counts, in JSON and as text."""
    config = small_project.folder / "config.yaml"
    keys = shard_keys(small_project.root)
    for verb in ("download", "sample", "extract"):
        done = call(verb, "--config", config, "--json")
        assert done.code == 0, done.error
        rows = done.json["shards"]
        assert all(row["was_finished"] for row in rows)
        assert {row["shard"] for row in rows if row["shard"]} == set(keys)
        assert sum(row["failed"] for row in rows if row["step"] in ("videos", "frames")) in (
            0,
            len(BAD_FILES),
        )

    outcome = call("run", "features", "--config", config, "--shard", keys[0], "--json")
    assert [row["was_finished"] for row in outcome.json["shards"]] == [True]
    steps = {row["step"]: row for row in call("status", "--config", config, "--json").json["steps"]}
    assert list(steps) == list(CHAIN)
    assert steps["features"]["done"] == len(keys)
    assert steps["features"]["missing"] == 0
    assert steps["features"]["failed_videos"] == len(BAD_FILES)
    assert steps["registered_model"]["missing"] == 1
    text = call("sample", "--config", config, "--shard", keys[0])
    assert text.out.startswith(f"frames {keys[0]}: ")
    assert text.out.endswith("(was finished)\n")


def test_what_no_training_reads_is_not_extracted(call: Call, small_project: Project) -> None:
    """Views and labels of new ones in every step; they are named, with the way to make them, and
    count neither as done nor as missing."""
    online = ("--config", small_project.folder / "config.yaml", "--set", "train.source=online")
    done = call("extract", *online, "--json")
    assert {row["step"] for row in done.json["shards"]} == {"whitening", "features"}
    for step in ("training_views", "pseudo_labels"):
        assert f"{step}: left out, as train.source online does not read it" in done.error
        assert f"`hapvr run {step}` makes it" in done.error

    steps = {row["step"]: row for row in call("status", *online, "--json").json["steps"]}
    assert steps["training_views"]["done"] == 0
    assert steps["training_views"]["missing"] == 0


def test_unknown_shards_and_steps_are_refused_with_those_there_are(
    call: Call, small_project: Project
) -> None:
    """Exit 2 with the shard that is not there and the ones that are."""
    done = call("run", "nothing", "--config", small_project.folder / "config.yaml")
    assert done.code == 2
    assert "is not a step that runs here; the steps are video_manifest, videos" in done.error
    done = call(
        "sample", "--config", small_project.folder / "config.yaml", "--shard", "own-train-99999"
    )
    assert done.code == 2
    assert "--shard own-train-99999: there is no such shard; the manifest has own-" in done.error


@pytest.mark.slow
def test_from_clips_to_metrics_without_dagster(
    call: Call, small_project: Project, tmp_path: Path
) -> None:
    """sample and extract make what is missing; train, evaluate, register: the trained network has
    scores, and its version is compared with the untrained one."""
    project = copied(small_project.folder, tmp_path)
    shutil.rmtree(tmp_path / "data" / "models", ignore_errors=True)  # those of other tests
    new_store(tmp_path / "data" / "mlflow")
    config = tmp_path / "config.yaml"
    key = shard_keys(project.root)[0]
    for verb, stage in (("sample", "frames"), ("extract", "features")):
        digest = project.shard(stage, key).digest()
        project.root.delete(project.shard(stage, key).index_name)
        rows = call(verb, "--config", config, "--json").json["shards"]
        assert [(row["step"], row["shard"]) for row in rows if not row["was_finished"]] == [
            (stage, key)
        ]
        assert project.shard(stage, key).digest() == digest

    trained = call(
        "train", "--config", config, "--set", "train.steps=4", "--run", "first", "--json"
    )
    assert trained.code == 0, trained.error
    network = Path(trained.json["folder"]) / "network"
    assert load_network(network)[0].dims == 32
    benchmark = tmp_path / "data" / "corpus" / "own-test"
    arguments = (
        "--benchmark",
        benchmark,
        "--features",
        tmp_path / "data",
        "--model",
        network,
        "--json",
    )
    result = call("evaluate", *arguments).json
    assert result["availability"]["num_queries_scored"] > 0
    assert all(0 <= value <= 1 for value in result["metrics"].values())
    register = (
        "models",
        "register",
        "--config",
        config,
        "--set",
        "evaluation.gate.enabled=true",
        "--json",
    )
    refused = call(*register, "another")
    assert refused.code == 2
    assert "no training of this name has ended" in refused.error
    registered = call(*register, "first").json
    assert registered["version"] == 2
    assert "against champion version 1" in registered["decision"]
    (row,) = call("run", "benchmark_scores", "--config", config, "--json").json["shards"]
    scores = row["scores"]["own-test"]
    assert scores["trained model"] == pytest.approx(result["metrics"])
    client = tracker_of(project).client
    baseline_run = client.get_run(client.get_model_version("hapvr", "1").run_id)
    of_baseline = {
        f"own-test/untrained/{task}": value for task, value in scores["untrained baseline"].items()
    }
    assert of_baseline.items() <= baseline_run.data.metrics.items()
    assert "backbone.architecture" in baseline_run.data.params
    address = f"sqlite:///{tmp_path}/data/mlflow/mlflow.db"
    trained_version, untrained = call("models", "list", "--tracking-uri", address, "--json").json[
        "versions"
    ]
    assert (
        ("champion" in trained_version["aliases"])
        == registered["champion"]
        != ("champion" in untrained["aliases"])
    )
    assert untrained["warning"].startswith("this model is untrained")
