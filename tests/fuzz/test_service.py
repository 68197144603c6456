"""Every endpoint of the search service, with what its own OpenAPI document allows and forbids."""

import re
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.fuzz.budget import fuzz
from tests.serving.conftest import client, collection, project  # noqa: F401
from tests.serving.served import Client

BUSY = {503, 504}
PATH = re.compile(rb'"path":"[^"]*"')
"""Where a file lies, which whoever works on the collection is told; nothing else says it, but
answers that are for that."""
WITH_PLACES = {"/duplicates/plan"}
UVICORN_REFUSAL = b"Invalid HTTP request received."
"""Said before the service sees the request."""


def check_body(case: schemathesis.Case, body: bytes, place: Path) -> None:
    """It tells nothing of the code, and no place of this machine where none belongs."""
    assert b"Traceback" not in body
    if case.operation.path not in WITH_PLACES:
        assert str(place).encode() not in PATH.sub(b"", body)


@pytest.mark.slow
def test_every_endpoint(client: Client, collection: Path) -> None:  # noqa: F811
    """No failure of the service, no place of this machine in an answer, a refusal is one sentence,
    and it goes on."""
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 12
    cases = st.one_of(
        [
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        ]
    )

    @fuzz(60, case=cases)
    def run(case: schemathesis.Case) -> None:
        try:
            answer = case.call(base_url=client.address, timeout=60)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            assert client.get("/health").status == 200  # it hangs up on heads that are too long
            return

        assert answer.status_code < 500 or answer.status_code in BUSY
        check_body(case, answer.content, collection)
        is_seen_by_service = answer.content != UVICORN_REFUSAL
        if answer.status_code >= 400 and case.method != "HEAD" and is_seen_by_service:
            refusal = answer.json()
            assert set(refusal) == {"error", "code", "plain"}
            assert refusal["error"].isprintable()

    run()
    assert client.search(id="in/short.mp4").status == 200
