"""The configuration: what is refused, and how it says so; what ships."""

from operator import attrgetter
from pathlib import Path

import dagster as dg
import pytest
import yaml

from hapvr.config_file import load_config, parse_config
from hapvr.errors import ConfigError
from tests.configurations import MINIMAL
from tests.conftest import CHECKOUT, write_settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train": {"stpes": 10}},
            "train: unknown key 'stpes'; allowed here: accumulated_batches, batch_videos, contrast",
        ),
        ({"device": "tpu"}, "device: Input should be 'auto', 'cpu' or 'cuda' (got 'tpu')"),
        (
            {"backbone": {"weights": {"source": "file", "pth": "x"}}},
            "backbone.weights: unknown key 'pth'; allowed here: path, seed, source",
        ),
        ({"teacher": {"weights": {"source": "file"}}}, "source file needs a `path`"),
        ({"sampling": {"fps": 0}}, "sampling.fps: Input should be greater than 0"),
        ({"pseudo_labels": {"top_rate": 0.7, "bottom_rate": 0.5}}, "must be at most 1, got 1.2"),
        (
            {"train": {"network": {"spatial_rate": 1.5}}},
            "train.network.similarity.spatial_rate: Input should be less than or equal to 1",
        ),
        (
            {"features": {"pooled": True}, "backbone": {"descriptor": "imac"}},
            "features.pooled is made from the nine regions of a frame, and "
            "backbone.descriptor is imac",
        ),
        ({"sources": []}, "sources: Tuple should have at least 1 item"),
        ({"sources": [{"kind": "folder", "name": "../x", "path": "p"}]}, "sources.0.folder.name"),
        (
            {"evaluation": {"validation": "t", "benchmarks": ["t"]}},
            "must not also be a test benchmark",
        ),
        ({"train": {"batch_videos": 5, "num_processes": 2}}, "multiple of num_processes"),
        (
            {"train": {"network": {"family": "tca"}, "num_processes": 2}},
            "family tca trains in one process",
        ),
        ({"train": {"batch_videos": 1}}, "train.batch_videos: 1 video has no negatives"),
        (
            {"train": {"source": "labelled_pairs"}},
            "train.pairs.path: name the file or folder that has the labelled pairs",
        ),
        (
            {"train": {"source": "labelled_pairs", "pairs": {"path": "p"}}},
            "train.objective.frame_ap_weight: labelled pairs have no labels of frames",
        ),
        (
            {"train": {"source": "labelled_pairs", "pairs": {"path": "p"}, "num_processes": 2}},
            "source labelled_pairs trains in one process",
        ),
        (
            {"teacher": {"options": {"depth": 10**6}}},
            "teacher.options: depth: 1000000 is not between -128 and 128",
        ),
        (
            {"teacher": {"options": {"mlp_ratio": float("nan")}}},
            "teacher.options.mlp_ratio.float: Input should be a finite number",
        ),
        (
            {"automation": {"retrain_cron": "99 * * * *"}},
            "automation.retrain_cron: expected numbers or * for minute",
        ),
        (
            {"automation": {"retrain_cron": "*/0 * * * *"}},
            "automation.retrain_cron: expected numbers",
        ),
        ({"automation": {"retrain_cron": "0 3 * *"}}, "automation.retrain_cron: expected numbers"),
        ({"automation": {"retrain_cron": "0 0 31 2 *"}}, "day up to 28"),
        (
            {"sampling": {"timeout_s": float("inf")}},
            "sampling.timeout_s: Input should be a finite number",
        ),
        (
            {"retention": {"run_days": 10**6}},
            "retention.run_days: Input should be less than or equal to 36500",
        ),
        (
            {"train": {"steps": 99999999999999999}},
            "steps: 99999999999999999 is beyond 9007199254740992",
        ),
        (
            {"train": {"steps": 10**9}},
            "train.steps: Input should be less than or equal to 100000000",
        ),
        ({"train": {"seed": 10**17}}, "seed: 100000000000000000 is beyond"),
        ({"shard_videos": True}, "shard_videos: expected a number or text, got true"),
        ({"train": {"optimizer": {"warmup_steps": False}}}, "warmup_steps: expected a number"),
        ({"sampling": {"timeout_s": True}}, "timeout_s: expected a number or text, got true"),
        (
            {"automation": {"timezone": "../etc"}},
            "automation.timezone: not a time zone of this machine",
        ),
    ],
)
def test_parse_config_names_key_value_and_what_is_allowed(
    change: dict[str, object], message: str
) -> None:
    """A wrong key or value is refused at once, with the place and the limits."""
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL | change, origin="test.yaml")
    assert message in str(caught.value)
    assert "test.yaml" in str(caught.value)


@pytest.mark.parametrize("cron", ["0 3 * * 0", "*/5 1-4,7 */2 1,12 0-6", "30 1 28 2 *"])
def test_dagster_takes_every_time_that_passes(cron: str) -> None:
    """What Dagster refuses would stop all of its definitions."""
    config = parse_config(
        MINIMAL | {"automation": {"retrain_cron": cron, "timezone": "Europe/Berlin"}}, origin=""
    )
    at = config.automation.retrain_cron
    zone = config.automation.timezone
    assert (
        dg.ScheduleDefinition(
            name="x", target="*", cron_schedule=at, execution_timezone=zone
        ).cron_schedule
        == cron
    )


CONFIGURATIONS = [
    path for path in sorted((CHECKOUT / "configs").glob("*.yaml")) if path.name != "ablations.yaml"
]
BACKBONES = sorted((CHECKOUT / "configs" / "backbones").glob("*.yaml"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 30_000),
        ("batch_videos", 64),
        ("optimizer.learning_rate", 4e-5),
        ("optimizer.weight_decay", 1e-2),
        ("optimizer.warmup_steps", 1000),
        ("objective.frame_ap_weight", 6),
        ("objective.video_ap_weight", 4),
        ("objective.infonce_weight", 1),
        ("objective.hard_negative_weight", 3),
        ("objective.regularization_weight", 1),
        ("objective.temperature", 0.03),
    ],
)
def test_defaults_are_the_papers(key: str, value: float) -> None:
    """HAP-VR section 4."""
    train = parse_config(MINIMAL, origin="").train
    assert attrgetter(key)(train) == value


@pytest.mark.parametrize("path", BACKBONES, ids=lambda path: path.name)
def test_shipped_backbones_extend_any_config(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each preset names the networks alone, in words that the configuration takes."""
    monkeypatch.setenv("HAPVR_SSCD", "/models/sscd.torchvision.pt")
    own = MINIMAL | {"extends": str(path)}
    assert load_config(write_settings(tmp_path / "own.yaml", own)).sources[0].name == "a"
    assert yaml.safe_load(path.read_text(encoding="utf-8")).keys() <= {
        "backbone",
        "teacher",
        "whitening",
    }


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_shipped_configurations_are_valid_and_have_real_weights(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every configuration under configs/ loads, and no weights are random."""
    monkeypatch.setenv("HAPVR_MEASURE", "/measure")
    monkeypatch.setenv("HAPVR_DATA_ROOT", "/data")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    config = load_config(path)
    assert "random" not in (config.backbone.weights.source, config.teacher.weights.source)
