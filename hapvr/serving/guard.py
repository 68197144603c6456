"""A guard for web servers of this machine that have no authentication.

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
            body = {"error": f"refused: {reason}", "code": "foreign_page", "plain": ""}
            await JSONResponse(body, 403)(scope, receive, send)
        else:
            policy_violation = WebSocketClose(1008, reason)
            await policy_violation(scope, receive, send)

    def refusal(self, scope: Scope) -> str:
        """Why a request is refused; "" if it is not."""
        headers = Headers(scope=scope)
        host = ", ".join(headers.getlist("host"))
        if not self.any_host and not is_loopback(name_of_host(host)):
            return f"host {host!r:.200} is not a name of this machine"
        for origin in headers.getlist("origin"):
            if origin not in (f"http://{host}", f"https://{host}"):
                return f"a page of {origin!r:.200} sent this"

        method = scope.get("method", "GET")
        is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        sites = set(headers.getlist("sec-fetch-site"))
        if not is_link and sites - {"same-origin", "none"}:
            return "a page of another site sent this"
        is_graphql = scope["type"] == "http" and scope["path"].rstrip("/").endswith("/graphql")
        if is_graphql and method != "POST":
            return "GraphQL is answered by POST only"
        return ""


def name_of_host(host: str) -> str:
    """The name in a Host header, without its port; "" where it is none."""
    if "@" in host:
        return ""
    try:
        return urlsplit(f"http://{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only: localhost or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
