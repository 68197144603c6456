"""What those who run the service look at: metrics, the interface, and a reload under load."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hapvr.search.current import current_index
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from tests.serving.served import Answer, Client, serving
from tests.steps.search_projects import copied

SHORT = "in/short.mp4"
INTERFACE = Path(__file__).with_name("interface.json")


def values(client: Client) -> dict[tuple[str, ...], float]:
    """(name, label) -> value of all that Prometheus reads."""
    text = client.get("/metrics").body.decode()
    samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
    return {
        (one.name, *(text for name, text in one.labels.items() if name != "le")): one.value
        for one in samples
    }


def test_metrics_count_what_happened(client: Client, tmp_path: Path) -> None:
    """Searches by verdict and by what went wrong, seconds by part, refusals, and the index."""
    before = values(client)

    def more(*key: str) -> float:
        return values(client)[key] - before.get(key, 0)

    best = client.search(id=SHORT, top=1).json["answer"]["matches"][0]
    assert client.search(id="in/absent.mp4").status == 404
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(bytes(1000))
    failed = client.upload(damaged)
    assert client.get("/videos", limit=0).status == 400
    assert more("hapvr_searches_total", best["verdict"]) == 1
    assert more("hapvr_searches_total", "unknown_id") == 1
    assert more("hapvr_searches_total", failed.json["code"]) == 1
    assert more("hapvr_refusals_total", "wrong_request") == 1
    counts = {"read": 3, "embed": 1, "find": 1, "segments": 1, "total": 3}
    assert {part: more("hapvr_search_seconds_count", part) for part in counts} == counts
    metrics = values(client)
    assert metrics["hapvr_busy",] == 0
    assert metrics["hapvr_index_videos",] == 11
    assert metrics["hapvr_index_age_seconds",] > 0
    assert metrics["process_resident_memory_bytes",] > 0


def shape(schema: Mapping[str, Any]) -> str:
    """The name of what an endpoint takes or gives, or names of its fields; "" for a value."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "properties" in schema:
        shapes = {name: shape(one) for name, one in schema["properties"].items()}
        return " ".join(f"{name}:{kind}" if kind else name for name, kind in shapes.items())

    inner = [schema["items"]] if "items" in schema else schema.get("anyOf", [])
    return next(filter(None, map(shape, inner)), "")


def interface(document: Mapping[str, Any]) -> dict[str, str]:
    """An OpenAPI document in a line per endpoint (parameters, body, answers by status) and per
    object with its fields."""

    def content(value: Mapping[str, Any]) -> str:
        content = value.get("content", {}).items()
        return ", ".join(f"{kind} {shape(one.get('schema', {}))}".strip() for kind, one in content)

    endpoints = {
        f"{method.upper()} {path}": " | ".join(
            [
                " ".join(one["name"] for one in told.get("parameters", [])),
                content(told.get("requestBody", {})),
                *(
                    f"{code} {content(told['responses'][code])}"
                    for code in sorted(told["responses"])
                ),
            ]
        )
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    }
    return endpoints | {
        name: shape(schema) for name, schema in document["components"]["schemas"].items()
    }


def test_the_interface_is_the_one_that_was_reviewed(client: Client) -> None:
    """After a wanted change, put what this test prints into the file. Every endpoint says what it
    does."""
    document = client.get("/openapi.json").json
    served_interface = interface(document)
    sys.stdout.write(json.dumps(served_interface, indent=1))
    assert served_interface == json.loads(INTERFACE.read_text(encoding="utf-8"))
    for methods in document["paths"].values():
        assert all(told["summary"] and told["description"] for told in methods.values())


def test_a_search_whose_index_was_removed_asks_the_one_that_stands_now(
    collection: Path, tmp_path: Path
) -> None:
    """Also while the service takes its index for unchanged."""
    project = copied(collection, tmp_path)
    with serving(project) as client, pytest.MonkeyPatch.context() as patch:
        assert client.search(id=SHORT).status == 200
        patch.setattr("hapvr.serving.collection.REFRESH_S", 3600.0)
        before = current_index(project.root).place
        update_index(project, search_model(project, str(collection / "bundle-0")), rebuild=True)
        shutil.rmtree(project.root.local_path(before), ignore_errors=True)
        assert client.search(id=SHORT).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_while_the_index_changes(
    collection: Path, tmp_path: Path, workers: int
) -> None:
    """Four clients search without a pause while the index is built anew three times, and old ones
    are removed: each once no search has it open."""
    project = copied(collection, tmp_path)
    model = search_model(project, str(collection / "bundle-0"))
    ended = threading.Event()

    answers: list[list[Answer]] = [[] for _ in range(4)]

    def ask(client: Client, found: list[Answer]) -> None:
        while not ended.is_set():
            found.append(client.search(id=SHORT, segments=False))

    with serving(project, workers=workers) as client, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, client, found) for found in answers]
        opened = set()
        try:
            for _ in range(3):
                place = update_index(project, model, rebuild=True).serving.place
                while place not in client.service.collection.current().state:
                    time.sleep(0.1)
                opened.add(place)
                before = [len(found) for found in answers]
                while any(
                    len(found) <= count for found, count in zip(answers, before, strict=True)
                ):
                    time.sleep(0.1)
        finally:
            ended.set()

        for future in asking:
            future.result()

    assert len(opened) == 3
    assert [answer.body for found in answers for answer in found if answer.status != 200] == []
