"""The guard before servers of this machine: what a foreign page can make a browser send is
refused."""

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from hapvr.serving.guard import Guard

PAGE = "http://127.0.0.1:3000"
EVIL = ("origin", "http://evil.example")
LINK = ("sec-fetch-mode", "navigate")


def client(*, any_host: bool = False) -> TestClient:
    """A server behind the guard that answers everything with `done`."""

    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("done")
        await websocket.close()

    routes = [
        WebSocketRoute("/graphql", socket),
        Route("/{path:path}", answer, methods=["GET", "POST", "DELETE"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, any_host=any_host)])
    return TestClient(app, base_url=PAGE)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/graphql", [EVIL], 403),
        ("POST", "/graphql", [("origin", "null")], 403),
        ("POST", "/graphql", [("origin", "http://127.0.0.1:8000")], 403),
        ("POST", "/graphql", [("origin", PAGE), EVIL], 403),
        ("POST", "/graphql", [("sec-fetch-site", "cross-site")], 403),
        ("POST", "/graphql", [("sec-fetch-site", "same-site"), LINK], 403),
        ("GET", "/graphql?query=mutation{x}", [], 403),
        ("GET", "/graphql?query=mutation{x}", [("sec-fetch-site", "cross-site"), LINK], 403),
        ("GET", "/logs/x", [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], 403),
        ("GET", "/", [("host", "evil.example")], 403),
        ("GET", "/", [("host", "127.0.0.1.evil.example")], 403),
        ("GET", "/", [("host", "evil@127.0.0.1")], 403),
        ("GET", "/", [("host", "0.0.0.0:3000")], 403),
        ("GET", "/", [("host", "[::1")], 403),
        ("GET", "/", [("host", "127.0.0.1"), ("host", "evil.example")], 403),
        ("POST", "/graphql", [], 200),  # a program
        ("POST", "/graphql", [("origin", PAGE), ("sec-fetch-site", "same-origin")], 200),
        ("GET", "/runs/1", [("sec-fetch-site", "none"), LINK], 200),  # an address that was typed
        ("GET", "/runs/1", [("sec-fetch-site", "same-site"), LINK], 200),  # a link on MLflow's page
        ("GET", "/", [("host", "localhost:3000")], 200),
        ("GET", "/", [("host", "[::1]:3000")], 200),
    ],
)
def test_foreign_pages_are_refused(
    method: str, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    """Foreign Host, any foreign Origin or site, and GraphQL by GET; the page itself, links and
    programs are let through."""
    assert client().request(method, path, headers=headers).status_code == status


def test_web_sockets_are_for_the_page_itself() -> None:
    """GraphQL's subscriptions; browsers send the Origin with each web socket."""
    address = "ws://127.0.0.1:3000/graphql"
    with client().websocket_connect(address, headers={"origin": PAGE}) as websocket:
        assert websocket.receive_text() == "done"
    with (
        pytest.raises(WebSocketDisconnect),
        client().websocket_connect(address, headers=dict([EVIL])),
    ):
        pass


def test_a_server_for_others_has_any_name_but_no_foreign_pages() -> None:
    """After --allow-remote."""
    assert client(any_host=True).get("/", headers={"host": "dagster.example"}).text == "done"
    assert (
        client(any_host=True)
        .post("/", headers={"host": "dagster.example", **dict([EVIL])})
        .status_code
        == 403
    )
