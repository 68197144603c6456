"""The configuration: what is refused, and how it says so."""

from pathlib import Path

import dagster as dg
import pytest
import yaml

from hapvr.config_file import load_config, parse_config
from hapvr.errors import ConfigError
from hapvr.networks.settings import Weights
from tests.conftest import CHECKOUT

MINIMAL = {"name": "x", "sources": [{"kind": "folder", "name": "a", "path": "clips"}]}


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


def test_defaults_are_the_papers() -> None:
    """HAP-VR section 4: 30,000 steps of 64 videos, AdamW 4e-5 with 1e-2, warm-up 1,000, weights 6,
    4, 1, 3, 1."""
    train = parse_config(MINIMAL, origin="").train
    assert train.steps == 30_000
    assert train.batch_videos == 64
    optimizer = train.optimizer
    assert optimizer.learning_rate == 4e-5
    assert optimizer.weight_decay == 1e-2
    assert optimizer.warmup_steps == 1000
    objective = train.objective
    assert [objective.frame_ap_weight, objective.video_ap_weight, objective.infonce_weight] == [
        6,
        4,
        1,
    ]
    assert [
        objective.hard_negative_weight,
        objective.regularization_weight,
        objective.temperature,
    ] == [3, 1, 0.03]


def test_load_config_applies_overrides(tmp_path: Path) -> None:
    """Dotted keys reach into sections and lists."""
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    config = load_config(path, overrides={"sources.0.path": "other", "train.steps": 3})
    assert config.train.steps == 3
    assert str(config.sources[0].path) == "other"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        pytest.param("sources.7.path", "sources is a list of 1 entry, counted from 0", id="beyond"),
        pytest.param("sources.1", "sources is a list of 1 entry, counted from 0", id="one-beyond"),
        pytest.param("sources.-1.path", "sources is a list of 1 entry", id="from-the-end"),
        pytest.param("sources.-1", "sources is a list of 1 entry", id="last-from-the-end"),
        pytest.param("sources.00.path", "sources is a list of 1 entry", id="zeros"),
        pytest.param("sources.0_0.path", "sources is a list of 1 entry", id="underscore"),
        pytest.param("sources.\u0660.path", "sources is a list of 1 entry", id="other-digits"),
        pytest.param("sources. 0.path", "sources is a list of 1 entry", id="blank"),
        pytest.param("sources.path", "sources is a list of 1 entry", id="no-number"),
        pytest.param("sources.family", "sources is a list of 1 entry", id="family-of-a-list"),
        pytest.param(f"sources.{'9' * 5000}", "sources is a list of 1 entry", id="many-digits"),
        pytest.param("sources.0.path.name", "sources.0.path is a value", id="into-text"),
        pytest.param("train.steps.0", "train.steps is a value", id="into-a-number"),
        pytest.param("train.steps.family", "train.steps is a value", id="family-of-a-number"),
        pytest.param("train..steps", "one of its parts is empty", id="two-dots"),
        pytest.param("train.", "one of its parts is empty", id="dot-at-the-end"),
        pytest.param(".train", "one of its parts is empty", id="dot-at-the-beginning"),
        pytest.param(".", "one of its parts is empty", id="a-dot"),
        pytest.param("", "one of its parts is empty", id="nothing"),
        pytest.param("sources..path", "one of its parts is empty", id="two-dots-in-a-list"),
    ],
)
def test_an_override_of_a_place_that_is_not_there_is_refused_by_its_key(
    tmp_path: Path, key: str, problem: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"train": {"steps": 7}}))
    with pytest.raises(ConfigError, match=r"override .*: there is no such place") as caught:
        load_config(path, overrides={key: "x"})
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_override_goes_into_a_section_that_the_file_leaves_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", MINIMAL | {"train": None})
    assert load_config(path, overrides={"train.steps": 3}).train.steps == 3


def write(path: Path, settings: dict[str, object]) -> Path:
    """Settings as a YAML file, in a folder made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return path


def test_load_config_merges_a_file_over_the_one_it_extends(tmp_path: Path) -> None:
    """Sections are merged key by key through several files; lists and sections of another source
    are replaced."""
    first = MINIMAL | {
        "train": {"steps": 7, "objective": {"temperature": 0.5}},
        "backbone": {"weights": {"source": "file", "path": "network.safetensors"}},
    }
    write(tmp_path / "first.yaml", first)
    write(
        tmp_path / "rows" / "second.yaml",
        {"extends": "../first.yaml", "train": {"batch_videos": 6}},
    )
    last = {
        "extends": "second.yaml",
        "sources": [{"kind": "folder", "name": "b", "path": "other"}],
        "backbone": {"weights": {"source": "random", "seed": 3}},
        "train": {"objective": {"frame_ap_weight": 0}},
    }
    config = load_config(write(tmp_path / "rows" / "last.yaml", last), overrides={"train.steps": 8})
    assert config.train.steps == 8
    assert config.train.batch_videos == 6
    assert config.train.objective.temperature == 0.5
    assert config.train.objective.frame_ap_weight == 0
    assert config.backbone.weights == Weights(source="random", seed=3)
    assert [source.name for source in config.sources] == ["b"]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("missing.yaml", r"missing\.yaml' is not readable YAML"),
        (["c.yaml"] * 32, r"a\.yaml extends more than 32 files"),
        ("b.yaml", r"a\.yaml extends more than 32 files, or itself"),
        (
            {"b": "b.yaml"},
            r"a\.yaml must hold a mapping of sections, and extends in it a path relative to "
            r"this file",
        ),
    ],
)
def test_load_config_names_what_is_wrong_with_extends(
    tmp_path: Path, base: object, message: str
) -> None:
    """A file that is missing, files that extend each other, and anything but paths are refused."""
    write(tmp_path / "b.yaml", {"extends": "a.yaml"})
    write(tmp_path / "c.yaml", {"name": "c"})
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path / "a.yaml", {"extends": base}))


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        pytest.param({"shard_videos": 0}, {}, r"first\.yaml is", id="only-in-the-first"),
        pytest.param({}, {"shard_videos": 0}, r"last\.yaml is", id="only-in-the-last"),
        pytest.param(
            {"shard_videos": 5}, {"shard_videos": 0}, r"last\.yaml is", id="replaced-by-the-last"
        ),
        pytest.param({"sources": [{"kind": "x"}]}, {}, r"first\.yaml is", id="in-a-list"),
        pytest.param(
            {"train": {"steps": -1}},
            {"train": {"batch_videos": 6}},
            r"first\.yaml is",
            id="in-a-section-of-both",
        ),
        pytest.param({"trian": {}}, {}, r"first\.yaml is", id="unknown-section"),
        pytest.param(
            {"train": {"stepz": 1}},
            {"train": {"steps": 6}},
            r"first\.yaml is",
            id="unknown-key-of-a-section-of-both",
        ),
        pytest.param({"shard_videos": True}, {}, r"first\.yaml is", id="truth-for-a-number"),
        pytest.param({"data_root": "${NOT_SET}"}, {}, r"first\.yaml is", id="variable"),
        pytest.param(
            {"watch": {"webhook": {"url": "https://a/b", "secret": "a plain text of 24 letters"}}},
            {},
            r"first\.yaml: watch\.webhook\.secret",
            id="plain-secret",
        ),
        pytest.param(
            {"shard_videos": 0},
            {"train": {"steps": -1}},
            r"first\.yaml, or \S*last\.yaml is",
            id="in-both",
        ),
    ],
)
def test_the_file_that_holds_a_wrong_entry_is_named(
    tmp_path: Path, first: dict[str, object], last: dict[str, object], message: str
) -> None:
    write(tmp_path / "first.yaml", MINIMAL | first)
    path = write(tmp_path / "last.yaml", {"extends": "first.yaml"} | last)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(caught.value).count(".yaml") == message.count("yaml")


@pytest.mark.parametrize(
    "override",
    [
        pytest.param({"train.steps": -1}, id="value"),
        pytest.param({"train": {"steps": -1}}, id="section"),
        pytest.param({"sources.0": 5}, id="part-of-a-list"),
    ],
)
def test_no_extended_file_is_named_for_what_an_override_replaced(
    tmp_path: Path, override: dict[str, object]
) -> None:
    write(tmp_path / "first.yaml", MINIMAL | {"train": {"steps": 7}})
    path = write(tmp_path / "last.yaml", {"extends": "first.yaml"})
    with pytest.raises(ConfigError, match=r"last\.yaml is not valid") as caught:
        load_config(path, overrides=override)
    assert "first.yaml" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nname: a\nseed: 2\n", "seed is given 2 times; keep one"),
        ("a: &a [x]\nb: [" + "*a, " * 17 + "]\n", "more than 16 aliases"),
        ("shard_videos: 0x" + "f" * 6000, "not a number of at most 18 digits"),
        ("#" * (1 << 18) + "\n", "at most 262144 are read"),
        ("name: !!timestamp x\n", "is not readable YAML"),
        ("name: " + "[" * 60_000, "more than 32 levels"),
        ("name: " + "[{a: " * 12_000, "more than 32 levels"),
        ("- " * 30_000, "more than 32 levels"),
        ("".join(" " * depth + "a:\n" for depth in range(340)), "more than 32 levels"),
        ("name: [" + "1," * 131_000 + "]", "more than 30,000 keys and values"),
    ],
)
def test_yaml_that_says_two_things_or_too_much_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "a.yaml")


def test_load_config_reads_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`${NAME}` is replaced anywhere in a value; one that is empty is named."""
    monkeypatch.setenv("TEST_WEIGHTS", "")
    settings = MINIMAL | {
        "backbone": {"weights": {"source": "file", "path": "${TEST_WEIGHTS}/network.safetensors"}}
    }
    path = write(tmp_path / "a.yaml", settings)
    with pytest.raises(
        ConfigError, match=r"a\.yaml is not valid: .* variable TEST_WEIGHTS is not set"
    ):
        load_config(path)

    monkeypatch.setenv("TEST_WEIGHTS", "/models\n")
    weights = load_config(path).backbone.weights
    assert weights.path == Path("/models/network.safetensors")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("shard_videos", "${S}"),
        ("watch.webhook.url", "https://x:99999/${S}"),
        ("data_root", ["${S}"]),
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(
    tmp_path: Path, monkeypatch, place: str, text: str
) -> None:
    monkeypatch.setenv("S", "hunter2\\hunter2")
    path = write(tmp_path / "a.yaml", MINIMAL)
    with pytest.raises(
        ConfigError, match=f"{place}: the value from the environment is not valid"
    ) as caught:
        load_config(path, overrides={place: text})

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("place", ["shard_videos", "sampling.mode", "retention.answer_days"])
def test_what_is_wrong_with_an_address_is_said_without_its_login(
    tmp_path: Path, place: str
) -> None:
    """One that was pasted below the wrong key."""
    path = write(tmp_path / "a.yaml", MINIMAL)
    with pytest.raises(ConfigError, match=f"{place}: .*registry.example") as caught:
        load_config(path, overrides={place: "https://ann:hunter2@registry.example"})
    assert "hunter2" not in str(caught.value)


def test_what_is_shown_of_a_configuration_has_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has a section of it; a file that begins with a byte order mark is read."""
    monkeypatch.setenv("HOOK_SECRET", "a secret of many letters")
    monkeypatch.setenv("HOOK_TOKEN", "token-in-an-address")
    webhook = {"url": "https://example.org/${HOOK_TOKEN}", "secret": "${HOOK_SECRET}"}
    path = tmp_path / "config.yaml"
    text = yaml.safe_dump(MINIMAL | {"watch": {"webhook": webhook}})
    path.write_text(text, encoding="utf-8-sig")
    config = load_config(path)
    assert config.watch.webhook.secret == "a secret of many letters"
    shown = (repr(config), str(config), f"{config}")
    assert not any("a secret" in text for text in shown)
    assert not any("token-in-an-address" in text for text in shown)
    assert all("${HOOK_SECRET}" in text for text in shown)
    assert "a secret" not in repr(config.watch) + str(config.watch.webhook)


def test_repr_names_a_variable_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, for example, that each machine has elsewhere."""
    monkeypatch.setenv("MASTERS", "private/")
    settings = MINIMAL | {"duplicates": {"protect": ["${MASTERS}"]}}
    config = load_config(write(tmp_path / "a.yaml", settings))
    assert config.duplicates.protect == ("private/",)
    assert "['${MASTERS}']" in repr(config)


@pytest.mark.parametrize(
    ("place", "address", "shown"),
    [
        ("tracking.uri", "https://ann:hunter2@registry.example/a", "https://registry.example/..."),
        ("tracking.uri", "https://ann:hun/ter2@registry.example", "https://..."),
        ("tracking.uri", "https://registry.example?token=hunter2", "https://registry.example/..."),
        ("tracking.uri", "postgresql://ann:hunter2@db/mlflow", "postgresql://db/mlflow"),
        ("watch.webhook.url", "https://ann:hunter2@hooks.example/", "https://hooks.example/..."),
        ("watch.webhook.url", "https://hooks.example/hunter2", "https://hooks.example/..."),
        ("watch.webhook.url", "https://hooks.example/?to=a@b.example&key=hunter2", "https://..."),
        ("tracking.uri", "postgresql://db/x?password=hunter2", "postgresql://db/x?..."),
    ],
    ids=[
        "login",
        "slash",
        "query",
        "database",
        "webhook",
        "token",
        "at sign in a query",
        "query of a database",
    ],
)
def test_no_repr_shows_the_login_of_an_address(
    place: str, address: str, shown: str, tmp_path: Path
) -> None:
    """Nor of a section; what is stored has it, as the next process needs it."""
    config = load_config(write(tmp_path / "a.yaml", MINIMAL), overrides={place: address})
    for text in (repr(config), str(config), repr(config.tracking), repr(config.watch)):
        assert "hunter2" not in text
        assert "ter2" not in text

    assert repr(shown) in repr(config)
    assert load_config(write(tmp_path / "b.yaml", config.stored())) == config


@pytest.mark.parametrize("path", BACKBONES, ids=lambda path: path.name)
def test_shipped_backbones_extend_any_config(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each preset names the networks alone, in words that the configuration takes."""
    monkeypatch.setenv("HAPVR_SSCD", "/models/sscd.torchvision.pt")
    own = MINIMAL | {"extends": str(path)}
    assert load_config(write(tmp_path / "own.yaml", own)).sources[0].name == "a"
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
