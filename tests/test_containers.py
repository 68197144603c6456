"""compose.yaml, as far as that goes without containers: `mlflow_server` runs the command of the
service."""

from typing import Any

import pytest
import yaml

from tests.conftest import CHECKOUT


def services() -> dict[str, Any]:
    """The services of compose.yaml."""
    loaded: dict[str, Any] = yaml.safe_load(
        (CHECKOUT / "compose.yaml").read_text(encoding="utf-8")
    )["services"]
    return loaded


def test_only_this_machine_reaches_the_published_ports() -> None:
    """No server asks who is there, so no port is published to other machines."""
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_containers_have_no_rights_that_they_do_not_need() -> None:
    """An escaped decoder finds a root it cannot write, no capabilities, and no way to gain any."""
    for name, service in services().items():
        assert service.get("read_only") or service["user"] == "postgres", name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_an_image_has_the_networks_for_copies_only_where_it_is_asked_for() -> None:
    """Their licence lets nobody pass them on, so an image that somebody publishes by default has
    none."""
    steps = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "ARG COPIES=" in steps
    built = [service["build"] for service in services().values() if "build" in service]
    assert built
    assert all(build["args"] == {"COPIES": "${HAPVR_COPIES:-}"} for build in built)


@pytest.mark.parametrize("file", [".gitignore", ".dockerignore"])
def test_the_file_with_the_password_stays_on_the_machine(file: str) -> None:
    """Compose reads it; it is neither in the repository nor in the image."""
    lines = (CHECKOUT / file).read_text(encoding="utf-8").splitlines()
    assert {".env", "/.env"}.intersection(lines)


def test_an_upgraded_container_has_the_settings_of_its_version() -> None:
    """A volume over a folder of the image keeps what the folder had when the volume was made."""
    home = services()["dagster"]["environment"]["DAGSTER_HOME"]
    settings = CHECKOUT / "dagster_home" / "team" / "dagster.yaml"
    mount = f"./{settings.relative_to(CHECKOUT)}:{home}/{settings.name}:ro"
    assert settings.is_file()
    assert mount in services()["dagster"]["volumes"]
