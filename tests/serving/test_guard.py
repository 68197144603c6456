"""The guard before servers of this machine: what a foreign page can make a browser send is refused."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from hapvr.serving.guard import Guard, is_local

PAGE = "http://127.0.0.1:3000"


def client(*, any_host: bool = False) -> TestClient:
    """A server behind the guard that answers everything with `done`."""

    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("done")
        await websocket.close()

    routes = [WebSocketRoute("/graphql", socket), Route("/{path:path}", answer, methods=["GET", "POST", "DELETE"])]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, any_host=any_host)])
    return TestClient(app, base_url=PAGE)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/graphql", {"origin": "http://evil.example"}),
        ("POST", "/graphql", {"origin": "null"}),
        ("POST", "/graphql", {"origin": "http://127.0.0.1:8000"}),
        ("POST", "/graphql", {"sec-fetch-site": "cross-site"}),
        ("POST", "/graphql", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}),
        ("POST", "/report_asset_materialization/features", {"origin": "http://evil.example"}),
        ("GET", "/graphql?query=mutation{x}", {}),
        ("GET", "/graphql/?query=mutation{x}", {}),
        ("GET", "/graphql?query=mutation{x}", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("GET", "/logs/x", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        ("GET", "/", {"host": "evil.example"}),
        ("GET", "/", {"host": "evil.example:3000"}),
        ("GET", "/", {"host": "127.0.0.1.evil.example"}),
        ("GET", "/", {"host": "0.0.0.0:3000"}),
        ("GET", "/", {"host": ""}),
        ("GET", "/", {"host": "[::1"}),
    ],
)
def test_what_a_foreign_page_sends_is_refused(method: str, path: str, headers: dict[str, str]) -> None:
    """Foreign Host, Origin or site, and GraphQL by GET."""
    answer = client().request(method, path, headers=headers)
    assert answer.status_code == 403
    assert answer.text.startswith("refused: ")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/graphql", {}),  # a program
        ("POST", "/graphql", {"origin": PAGE, "sec-fetch-site": "same-origin"}),
        ("GET", "/runs/1", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}),  # an address that was typed
        ("GET", "/runs/1", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}),  # a link on MLflow's page
        ("GET", "/", {"host": "localhost:3000"}),
        ("GET", "/", {"host": "[::1]:3000"}),
    ],
)
def test_the_page_itself_links_and_programs_are_let_through(method: str, path: str, headers: dict[str, str]) -> None:
    """As before."""
    assert client().request(method, path, headers=headers).text == "done"


def test_web_sockets_are_for_the_page_itself() -> None:
    """GraphQL's subscriptions; browsers send the Origin with each web socket."""
    with client().websocket_connect("ws://127.0.0.1:3000/graphql", headers={"origin": PAGE}) as websocket:
        assert websocket.receive_text() == "done"
    with (
        pytest.raises(WebSocketDisconnect),
        client().websocket_connect("ws://127.0.0.1:3000/graphql", headers={"origin": "http://evil.example"}),
    ):
        pass


def test_a_server_for_others_has_any_name_but_no_foreign_pages() -> None:
    """After --allow-remote."""
    assert client(any_host=True).get("/", headers={"host": "dagster.example"}).text == "done"
    headers = {"host": "dagster.example", "origin": "http://evil.example"}
    assert client(any_host=True).post("/graphql", headers=headers).status_code == 403


def test_names_of_this_machine() -> None:
    """With and without port."""
    assert all(is_local(host) for host in ("localhost", "127.0.0.1:3000", "127.1.2.3", "[::1]", "LOCALHOST:1"))
    assert not any(
        is_local(host) for host in ("", "localhost.evil.example", "10.0.0.1", "::", "127.0.0.1@evil.example")
    )
