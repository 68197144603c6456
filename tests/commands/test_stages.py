"""`hapvr run | status | download | sample | extract | train`, and what every verb does with a wrong
configuration."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from hapvr.chain import CHAIN
from hapvr.data.manifest import shard_keys
from hapvr.model.checkpoint import load_network
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of
from tests.commands.conftest import Call, Outcome, called
from tests.conftest import BAD_FILES, short_edits, small_settings, write_settings
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
@pytest.mark.parametrize("verb", ["download", "sample", "extract"])
def test_finished_stages_are_left_alone_and_say_so(
    call: Call, small_project: Project, verb: str
) -> None:
    """Of every shard, with their counts."""
    done = call(verb, "--config", small_project.folder / "config.yaml", "--json")
    assert done.code == 0, done.error
    rows = done.json["shards"]
    assert all(row["was_finished"] for row in rows)
    assert {row["shard"] for row in rows if row["shard"]} == set(shard_keys(small_project.root))
    failed = sum(row["failed"] for row in rows if row["step"] in ("videos", "frames"))
    assert failed in (0, len(BAD_FILES))


@pytest.mark.slow
def test_a_finished_step_of_one_shard_is_left_alone(call: Call, small_project: Project) -> None:
    (key, *_) = shard_keys(small_project.root)
    config = small_project.folder / "config.yaml"
    outcome = call("run", "features", "--config", config, "--shard", key, "--json")
    assert [row["was_finished"] for row in outcome.json["shards"]] == [True]


@pytest.mark.slow
def test_the_text_of_a_verb_says_what_was_finished(call: Call, small_project: Project) -> None:
    (key, *_) = shard_keys(small_project.root)
    text = call("sample", "--config", small_project.folder / "config.yaml", "--shard", key)
    assert text.out.startswith(f"frames {key}: ")
    assert text.out.endswith("(was finished)\n")


@pytest.mark.slow
def test_status_counts_every_step(call: Call, small_project: Project) -> None:
    config = small_project.folder / "config.yaml"
    steps = {row["step"]: row for row in call("status", "--config", config, "--json").json["steps"]}
    assert list(steps) == list(CHAIN)
    assert steps["features"]["done"] == len(shard_keys(small_project.root))
    assert steps["features"]["missing"] == 0
    assert steps["features"]["failed_videos"] == len(BAD_FILES)
    assert steps["registered_model"]["missing"] == 1


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nothing"), "is not a step that runs here; the steps are video_manifest, videos"),
        (
            ("sample", "--shard", "own-train-99999"),
            "--shard own-train-99999: there is no such shard; the manifest has own-",
        ),
    ],
    ids=["step", "shard"],
)
def test_unknown_shards_and_steps_are_refused_with_those_there_are(
    call: Call, small_project: Project, words: tuple[str, ...], message: str
) -> None:
    done = call(*words, "--config", small_project.folder / "config.yaml")
    assert done.code == 2
    assert message in done.error


@dataclass(frozen=True)
class WholeChain:
    """What verbs without Dagster made of a project, one after the other."""

    first_shard: str
    remade: Mapping[str, list[tuple[str, str]]]
    """by verb: the steps and shards that it made, after the first shard of a stage was deleted"""
    digests: Mapping[str, tuple[str, str]]
    """by verb: that of the shard before and after"""
    trained: Outcome
    metrics: Outcome
    refused: Outcome
    """a registration of a training that is not there"""
    registered: Any
    scores: Any
    """by model, of the benchmark"""
    baseline_run: Run
    """of the untrained version"""
    versions: tuple[Any, Any]
    """the trained one, and the untrained one"""


REMADE = {"sample": "frames", "extract": "features"}
"""The stage of which a verb makes a shard again."""


@pytest.fixture(scope="module")
def whole_chain(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> WholeChain:
    """sample and extract make what is missing; train, evaluate and register follow."""
    folder = tmp_path_factory.mktemp("made")
    project = copied(small_project.folder, folder)
    shutil.rmtree(folder / "data" / "models", ignore_errors=True)  # those of other tests
    new_store(folder / "data" / "mlflow")
    config = ("--config", folder / "config.yaml")
    first_shard = shard_keys(project.root)[0]
    remade = {}
    digests = {}
    for verb, stage in REMADE.items():
        shard = project.shard(stage, first_shard)
        before = shard.digest()
        project.root.delete(shard.index_name)
        rows = called(verb, *config, "--json").json["shards"]
        remade[verb] = [(row["step"], row["shard"]) for row in rows if not row["was_finished"]]
        digests[verb] = (before, shard.digest())

    trained = called("train", *config, "--set", "train.steps=4", "--run", "first", "--json")
    assert trained.code == 0, trained.error
    network = Path(trained.json["folder"]) / "network"
    benchmark = ("--benchmark", folder / "data" / "corpus" / "own-test")
    features = ("--features", folder / "data")
    metrics = called("evaluate", *benchmark, *features, "--model", network, "--json")
    register = ("models", "register", *config, "--set", "evaluation.gate.enabled=true", "--json")
    refused = called(*register, "another")
    with short_edits():
        registered = called(*register, "first").json
    (row,) = called("run", "benchmark_scores", *config, "--json").json["shards"]
    client = tracker_of(project).client
    baseline_run = client.get_run(client.get_model_version("hapvr", "1").run_id)
    address = f"sqlite:///{folder}/data/mlflow/mlflow.db"
    newest, oldest = called("models", "list", "--tracking-uri", address, "--json").json["versions"]
    return WholeChain(
        first_shard,
        remade,
        digests,
        trained,
        metrics,
        refused,
        registered,
        scores=row["scores"]["own-test"],
        baseline_run=baseline_run,
        versions=(newest, oldest),
    )


@pytest.mark.slow
@pytest.mark.parametrize("verb", REMADE)
def test_a_verb_makes_only_what_is_missing(whole_chain: WholeChain, verb: str) -> None:
    """With the digest of before."""
    assert whole_chain.remade[verb] == [(REMADE[verb], whole_chain.first_shard)]
    before, after = whole_chain.digests[verb]
    assert after == before


@pytest.mark.slow
def test_train_writes_a_network(whole_chain: WholeChain) -> None:
    assert load_network(Path(whole_chain.trained.json["folder"]) / "network")[0].dims == 32


@pytest.mark.slow
def test_evaluate_measures_what_was_trained(whole_chain: WholeChain) -> None:
    result = whole_chain.metrics.json
    assert result["availability"]["num_queries_scored"] > 0
    assert all(0 <= value <= 1 for value in result["metrics"].values())


@pytest.mark.slow
def test_a_training_that_is_not_there_is_not_registered(whole_chain: WholeChain) -> None:
    assert whole_chain.refused.code == 2
    assert "no training of this name has ended" in whole_chain.refused.error


@pytest.mark.slow
def test_a_trained_version_is_compared_with_the_untrained_one(whole_chain: WholeChain) -> None:
    """One of the two is champion, as the verb says."""
    assert whole_chain.registered["version"] == 2
    assert "against champion version 1" in whole_chain.registered["decision"]
    trained, untrained = whole_chain.versions
    is_champion = "champion" in trained["aliases"]
    assert is_champion == whole_chain.registered["champion"]
    assert is_champion != ("champion" in untrained["aliases"])


@pytest.mark.slow
def test_the_step_of_scores_shows_those_of_the_trained_model(whole_chain: WholeChain) -> None:
    measured = whole_chain.metrics.json["metrics"]
    assert whole_chain.scores["trained model"] == pytest.approx(measured)


@pytest.mark.slow
def test_the_run_of_the_baseline_has_its_scores_and_parameters(whole_chain: WholeChain) -> None:
    data = whole_chain.baseline_run.data
    scores = whole_chain.scores["untrained baseline"]
    logged = {f"own-test/untrained/{task}": value for task, value in scores.items()}
    assert logged.items() <= data.metrics.items()
    assert "backbone.architecture" in data.params


@pytest.mark.slow
def test_the_list_of_models_warns_of_an_untrained_one(whole_chain: WholeChain) -> None:
    _, untrained = whole_chain.versions
    assert untrained["warning"].startswith("this model is untrained")
