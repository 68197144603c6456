"""Files of the configuration: those that extend others, overrides, and YAML that is refused."""

from pathlib import Path

import pytest

from hapvr.config_file import load_config
from hapvr.errors import ConfigError
from hapvr.networks.settings import Weights
from tests.configurations import MINIMAL
from tests.conftest import write_settings


def test_load_config_applies_overrides(tmp_path: Path) -> None:
    """Dotted keys reach into sections and lists."""
    path = write_settings(tmp_path / "c.yaml", MINIMAL)
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
    path = write_settings(tmp_path / "c.yaml", MINIMAL | {"train": {"steps": 7}})
    with pytest.raises(ConfigError, match=r"override .*: there is no such place") as caught:
        load_config(path, overrides={key: "x"})
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_override_goes_into_a_section_that_the_file_leaves_empty(tmp_path: Path) -> None:
    path = write_settings(tmp_path / "c.yaml", MINIMAL | {"train": None})
    assert load_config(path, overrides={"train.steps": 3}).train.steps == 3


def test_load_config_merges_a_file_over_the_one_it_extends(tmp_path: Path) -> None:
    """Sections are merged key by key through several files; lists and sections of another source
    are replaced."""
    first = MINIMAL | {
        "train": {"steps": 7, "objective": {"temperature": 0.5}},
        "backbone": {"weights": {"source": "file", "path": "network.safetensors"}},
    }
    write_settings(tmp_path / "first.yaml", first)
    (tmp_path / "rows").mkdir()
    write_settings(
        tmp_path / "rows" / "second.yaml",
        {"extends": "../first.yaml", "train": {"batch_videos": 6}},
    )
    last = {
        "extends": "second.yaml",
        "sources": [{"kind": "folder", "name": "b", "path": "other"}],
        "backbone": {"weights": {"source": "random", "seed": 3}},
        "train": {"objective": {"frame_ap_weight": 0}},
    }
    config = load_config(
        write_settings(tmp_path / "rows" / "last.yaml", last), overrides={"train.steps": 8}
    )
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
    write_settings(tmp_path / "b.yaml", {"extends": "a.yaml"})
    write_settings(tmp_path / "c.yaml", {"name": "c"})
    with pytest.raises(ConfigError, match=message):
        load_config(write_settings(tmp_path / "a.yaml", {"extends": base}))


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
    write_settings(tmp_path / "first.yaml", MINIMAL | first)
    path = write_settings(tmp_path / "last.yaml", {"extends": "first.yaml"} | last)
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
    write_settings(tmp_path / "first.yaml", MINIMAL | {"train": {"steps": 7}})
    path = write_settings(tmp_path / "last.yaml", {"extends": "first.yaml"})
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
        ('sources: [{kind: folder, name: a, path: "clips\\0x"}]\n', "has a NUL"),
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
