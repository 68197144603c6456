"""What needs a person: found by `hapvr status`, told to a real webhook once, signed."""

import hashlib
import hmac
import json
import os
import time
from pathlib import Path

import pytest

import hapvr.care.health
from hapvr.care.health import health
from hapvr.data.manifest import shard_keys
from hapvr.errors import ConfigError
from hapvr.registry.champions import rollback
from hapvr.steps import alerts
from hapvr.steps.alerts import (
    AlertOutbox,
    Concern,
    deliver_alerts,
    run_failed,
    tell,
    training_failed,
)
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.training import tracker_of
from hapvr.steps.videos import make_videos
from tests.commands.conftest import Call
from tests.conftest import small_settings, write_settings
from tests.steps.search_projects import bundle_of, copied, register_bundle
from tests.steps.test_alerts import Receiver, receiver  # noqa: F401

SECRET = "a key of sixteen letters or more"


def told(hook: Receiver) -> list[str]:
    return [json.loads(body)["event"] for _, body in hook.got]


@pytest.mark.slow
def test_what_needs_a_person_is_found_and_told_once(
    call: Call,
    receiver: Receiver,  # noqa: F811
    searchable: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopped automation, a champion that does not answer, a full disk and a drive that is away:
    one signed message each, however often somebody looks; and another one when a condition comes
    back."""
    monkeypatch.setenv("WEBHOOK_KEY", SECRET)
    project = copied(searchable, tmp_path, videos=True)
    for key in shard_keys(project.root):
        make_videos(project, key)
    config = tmp_path / "config.yaml"
    root = project.root
    webhook = {"url": f"http://127.0.0.1:{receiver.port}/hook", "secret": "${WEBHOOK_KEY}"}
    settings = project.config.stored() | {"watch": {"webhook": webhook}}
    settings["automation"]["enabled"] = True
    write_settings(config, settings)
    monkeypatch.setattr(hapvr.care.health, "MIN_FREE_BYTES", 0)
    first = register_bundle(project, tmp_path / "bundle-0")
    update_index(project, search_model(project))
    fine = call("status", "--config", config, "--tell", "--json")
    assert fine.code == 0
    assert fine.json["concerns"] == []
    assert told(receiver) == []
    assert fine.json["champion"]["name"] == fine.json["index"]["model"] == f"models:/hapvr/{first}"
    assert 5 < len(call("status", "--config", config).out.splitlines()) < 12

    register_bundle(project, bundle_of(project, tmp_path, seed=1))
    root.write_json("watch/tick.json", {"time_s": time.time() - 86_400})
    videos = project.path(project.config.sources[0].path)
    os.rename(videos, tmp_path / "away")
    monkeypatch.setattr(hapvr.care.health, "MIN_FREE_BYTES", 2**62)
    monkeypatch.setattr(hapvr.care.health, "MAX_INDEX_HOURS", 1e-9)
    for _ in range(3):
        assert call("status", "--config", config, "--tell").code == 1
    wanted = ["automation_stopped", "disk_low", "index_old", "source_lost"]
    assert sorted(told(receiver)) == wanted
    name, body = receiver.got[0]
    assert (
        receiver.signatures[0]
        == "sha256=" + hmac.new(SECRET.encode(), body.encode(), hashlib.sha256).hexdigest()
    )
    assert json.loads(body)["id"] == name
    assert SECRET not in config.read_text() + json.dumps(Project.open(config).config.stored())

    os.rename(tmp_path / "away", videos)
    root.write_json("watch/tick.json", {"time_s": time.time()})
    monkeypatch.setattr(hapvr.care.health, "MIN_FREE_BYTES", 0)
    rollback(tracker_of(project).client, "hapvr", reason="it is worse")
    opened = Project.open(config)
    assert health(opened).concerns == []
    monkeypatch.setattr(alerts, "QUIET_S", 0)
    tell(opened, Concern("disk_low", "disk", "again", lasting=True))
    monkeypatch.setattr(alerts, "QUIET_S", 100)
    for failure in (
        training_failed("a", "x"),
        run_failed("retrain", "a", "the same"),
        run_failed("ingest", "b", "y"),
    ):
        tell(opened, failure)
        tell(opened, run_failed("ingest", "c", "for the same reason"))

    deliver_alerts(opened)
    assert sorted(told(receiver)) == sorted([*wanted, "disk_low", "training_failed", "run_failed"])
    assert AlertOutbox(root).counts() == (7, 0)


def test_a_secret_is_never_written_down(tmp_path: Path) -> None:
    """Trainings keep a copy of the configuration, so only the name of a variable may stand in
    it."""
    settings = small_settings(tmp_path, tmp_path) | {
        "watch": {"webhook": {"url": "http://a/b", "secret": SECRET}}
    }
    with pytest.raises(ConfigError, match=r"watch\.webhook\.secret: expected \$\{NAME\}"):
        Project.open(write_settings(tmp_path / "config.yaml", settings))
