"""Matches of watch lists, posted to a webhook: kept in the outbox until it has said yes."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from hapvr.config import WebhookConfig
from hapvr.search.outbox import Message, Outbox
from hapvr.stages.project import Project


@dataclass(frozen=True)
class Delivery:
    """delivered: in this call. waiting: messages that are still to be delivered. problem: of the last one that failed."""

    delivered: int
    waiting: int
    problem: str = ""


MAX_DOUBLINGS = 60
"""Of the wait, so that it stays a number however long a server is away."""


def deliver_alerts(project: Project, *, limit_s: float = 60.0) -> Delivery:
    """Post what is due to `watch.webhook.url`, oldest first, and stop at the first that fails; it is tried again later.

    A message is done when the answer is 2xx, and this is on the disk before the next one goes out. A message that was under
    way when the process was killed goes out again with the same header `Idempotency-Key`, by which a receiver knows it.
    Two processes do not deliver at once. Nothing is sent without a webhook. limit_s: after so long no other message is begun.
    """
    webhook = project.config.watch.webhook
    if webhook is None:
        return Delivery(0, 0)
    outbox, number, problem, began = Outbox(project.root), 0, "", time.monotonic()
    with project.root.lock("watch-outbox"):
        for message in outbox.due(time.time(), max_wait_s=webhook.max_wait_s):
            if time.monotonic() - began > limit_s:
                break
            problem = _post(webhook, message)
            if problem:
                wait_s = min(webhook.retry_wait_s * 2.0 ** min(message.attempts, MAX_DOUBLINGS), webhook.max_wait_s)
                outbox.failed(message.id, problem, next_s=time.time() + wait_s)
                break
            outbox.delivered(message.id, time.time())
            number += 1
    return Delivery(number, outbox.counts()[1], problem)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other that is not 2xx: nothing is sent where the configuration does not say so."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


def _post(webhook: WebhookConfig, message: Message) -> str:
    """Why the message was not taken; empty if it was."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": message.id}
    request = urllib.request.Request(webhook.url, data=message.body.encode(), headers=headers, method="POST")
    try:
        with _OPENER.open(request, timeout=webhook.timeout_s) as answer:
            answer.read(1)
        return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"{webhook.url} answered {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return f"{webhook.url} cannot be reached ({error})"
