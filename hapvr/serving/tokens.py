"""Who may ask the service: bearer tokens, of which a file has the digests, and a ticket for what browsers load without headers."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from hapvr.errors import ConfigError
from hapvr.files import require_regular
from hapvr.search.marks import LOCAL_USER
from hapvr.serving.refusals import Refusal

_LINE = re.compile(r"([\w.@-]{1,64})\s+(read|mark)\s+([0-9a-f]{64})")
_BEARER = HTTPBearer(auto_error=False, description="Only where the service was started with --token-file.")


@dataclass(frozen=True)
class Caller:
    """Somebody who asks: by what name, and whether they may change marks and start work or only read."""

    name: str
    may_mark: bool


ANYBODY = Caller(LOCAL_USER, may_mark=True)
TICKET_HOLDER = Caller("ticket", may_mark=False)


def read_tokens(path: Path) -> dict[str, Caller]:
    """SHA-256 of each token -> its bearer, from a file of lines `NAME ROLE SHA256`; ROLE is `read` or `mark`, which may read too.

    Raises ConfigError for a file that others can read or change, and for a line that says something else.
    """
    try:
        require_regular(path)
        with path.open(encoding="utf-8") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: it cannot be read ({error}); see docs/search.md, Tokens") from error
    if mode & 0o077:
        raise ConfigError(f"--token-file {path}: other users can read or change it; run `chmod 600 {path}`")
    found: dict[str, Caller] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            parts = _LINE.fullmatch(line.strip())
            if parts is None:  # it may be a token itself, so it is not shown
                wanted = "wanted a name, `read` or `mark`, and the SHA-256 of the token in hexadecimal"
                raise ConfigError(f"--token-file {path}, line {number}: {wanted}")
            name, role, digest = parts.groups()
            found[digest] = Caller(name, may_mark=role == "mark")
    return found


async def caller_of(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Caller:
    """Who sent a request: by a token, or by the ticket for what a browser loads without headers. Raises Refusal `no_token`
    for nobody that is known."""
    service = request.app.state.service
    if service.bearers is None:
        return ANYBODY
    token = given.credentials if given else ""
    found: Caller | None = service.bearers.get(hashlib.sha256(token.encode()).hexdigest()) if token else None
    if found is None and request.url.path.startswith(("/media/", "/thumbnails/")):
        ticket = request.query_params.get("ticket", "")
        found = TICKET_HOLDER if hmac.compare_digest(ticket.encode(), service.ticket.encode()) else None
    if found is None:
        sentence = "token: this service answers to those with a token; send it as `Authorization: Bearer TOKEN`"
        raise Refusal(401, "no_token", sentence, {"www-authenticate": "Bearer"})
    return found


async def marker_of(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
    """Who sent a request that changes something. Raises Refusal `wrong_role` for somebody who may only read."""
    if not caller.may_mark:
        raise Refusal(403, "wrong_role", f"token: {caller.name} may only read; this needs a token with the role `mark`")
    return caller
