"""A guard for web servers of this machine that ask nobody who they are.

Such a server trusts whoever reaches it, and every page in the user's browser can reach 127.0.0.1.
So a foreign page could start or delete runs. The guard, an ASGI middleware, answers 403 to what a
browser sends on behalf of another page:

- requests whose Host is not a name of this machine: a foreign name may be pointed at 127.0.0.1
  after its page was loaded (Starlette's TrustedHostMiddleware knows neither [::1] nor the other
  addresses of 127.0.0.0/8);
- requests and web sockets of which an Origin or Sec-Fetch-Site names another page, except for links
  that lead to a page;
- GraphQL by GET, which browsers send without an Origin and which Dagster executes even if it is a
  mutation.

Programs send neither Origin nor Sec-Fetch-Site, so they are let through.
"""

import ipaddress
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose


class Guard:
    """Passes on what does not come from a foreign page. any_host: for a server that is meant to be
    reached by other names."""

    def __init__(self, app: ASGIApp, *, any_host: bool = False) -> None:
        self.app = app
        self.any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self.refusal(scope) if scope["type"] in ("http", "websocket") else ""
        if not reason:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await JSONResponse({"error": f"refused: {reason}", "code": "foreign_page"}, 403)(
                scope, receive, send
            )
        else:
            await WebSocketClose(1008, reason)(scope, receive, send)  # policy violation

    def refusal(self, scope: Scope) -> str:
        """Why a request is refused; "" if it is not."""
        headers = Headers(scope=scope)
        host, named, method = ", ".join(headers.getlist("host")), "", scope.get("method", "GET")
        with suppress(ValueError):  # of what is no host
            named = "" if "@" in host else urlsplit(f"http://{host}").hostname or ""
        if not self.any_host and not is_loopback(named):
            return f"host {host!r:.200} is not a name of this machine"
        for origin in headers.getlist("origin"):
            if origin not in (f"http://{host}", f"https://{host}"):
                return f"a page of {origin!r:.200} sent this"
        by_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if not by_link and any(
            site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")
        ):
            return "a page of another site sent this"
        if (
            scope["type"] == "http"
            and scope["path"].rstrip("/").endswith("/graphql")
            and method != "POST"
        ):
            return "GraphQL is answered by POST only"
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only: localhost or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
