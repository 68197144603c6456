"""Variables of the environment in a configuration, and secrets, which nothing shows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hapvr.config import Config
from hapvr.config_file import load_config
from hapvr.errors import ConfigError
from tests.configurations import MINIMAL
from tests.conftest import write_settings


@pytest.fixture
def with_variable(tmp_path: Path) -> Path:
    """A configuration that names a variable in the middle of a value."""
    weights = {"source": "file", "path": "${TEST_WEIGHTS}/network.safetensors"}
    settings = MINIMAL | {"backbone": {"weights": weights}}
    return write_settings(tmp_path / "a.yaml", settings)


def test_a_variable_of_the_environment_is_replaced_anywhere_in_a_value(
    with_variable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_WEIGHTS", "/models\n")
    weights = load_config(with_variable).backbone.weights
    assert weights.path == Path("/models/network.safetensors")


def test_a_variable_that_is_empty_is_named(
    with_variable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_WEIGHTS", "")
    with pytest.raises(
        ConfigError, match=r"a\.yaml is not valid: .* variable TEST_WEIGHTS is not set"
    ):
        load_config(with_variable)


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
    path = write_settings(tmp_path / "a.yaml", MINIMAL)
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
    path = write_settings(tmp_path / "a.yaml", MINIMAL)
    with pytest.raises(ConfigError, match=f"{place}: .*registry.example") as caught:
        load_config(path, overrides={place: "https://ann:hunter2@registry.example"})
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def secretive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A configuration with a secret and with a token in an address, from a file that begins with a
    byte order mark."""
    monkeypatch.setenv("HOOK_SECRET", "a secret of many letters")
    monkeypatch.setenv("HOOK_TOKEN", "token-in-an-address")
    webhook = {"url": "https://example.org/${HOOK_TOKEN}", "secret": "${HOOK_SECRET}"}
    path = tmp_path / "config.yaml"
    text = yaml.safe_dump(MINIMAL | {"watch": {"webhook": webhook}})
    path.write_text(text, encoding="utf-8-sig")
    return load_config(path)


def test_a_secret_comes_from_its_variable(secretive: Config) -> None:
    assert secretive.watch.webhook.secret == "a secret of many letters"


@pytest.mark.parametrize("show", [repr, str, "{}".format], ids=["repr", "str", "format"])
def test_what_is_shown_of_a_configuration_has_no_secrets(
    secretive: Config, show: Callable[[object], str]
) -> None:
    """It names the variable. Nor has what is shown of a section."""
    shown = show(secretive)
    assert "a secret" not in shown
    assert "token-in-an-address" not in shown
    assert "${HOOK_SECRET}" in shown
    assert "a secret" not in show(secretive.watch) + show(secretive.watch.webhook)


def test_repr_names_a_variable_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, for example, that each machine has elsewhere."""
    monkeypatch.setenv("MASTERS", "private/")
    settings = MINIMAL | {"duplicates": {"protect": ["${MASTERS}"]}}
    config = load_config(write_settings(tmp_path / "a.yaml", settings))
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
    config = load_config(write_settings(tmp_path / "a.yaml", MINIMAL), overrides={place: address})
    for text in (repr(config), str(config), repr(config.tracking), repr(config.watch)):
        assert "hunter2" not in text
        assert "ter2" not in text

    assert repr(shown) in repr(config)
    assert load_config(write_settings(tmp_path / "b.yaml", config.stored())) == config
