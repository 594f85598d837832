"""Asking the server; nothing here knows what it answers."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from patchset.errors import EnvironmentFault, Refused, UsageFault

LIMIT = 64 << 20  # bytes of an answer; a server with a thousand engines has a page of 10 MB


def address(url: str) -> str:
    """``url`` without what people append to it: a slash, ``/v1``, ``/metrics``."""
    if not url.startswith(("http://", "https://")):
        raise UsageFault(f"{url} is no address", next_step="Write http://HOST:PORT.")
    url = url.rstrip("/")
    for end in ("/v1", "/metrics", "/health"):
        url = url.removesuffix(end).rstrip("/")
    return url


def fetch(url: str, body: Mapping[str, Any] | None = None, *, timeout: float = 30) -> bytes:
    """The answer to a GET, or to a POST of ``body`` as JSON.

    Sends OPENAI_API_KEY, if there is one, as vLLM's own client does. Raises EnvironmentFault if
    nothing answers within ``timeout`` seconds, Refused if the answer is an error.
    """
    headers = {"Accept": "*/*", "Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            content: bytes = answer.read(LIMIT + 1)
    except urllib.error.HTTPError as fault:
        step = "Set OPENAI_API_KEY to the server's key." if fault.code in (401, 403) else None
        said = _reason(fault.read(LIMIT))
        raise Refused(
            f"{url} answers {fault.code} {fault.reason}" + (f": {said}" if said else ""),
            next_step=step or "Is this the address of a vLLM server, and the right model name?",
        ) from fault
    except (OSError, http.client.HTTPException, ValueError) as fault:
        reason = getattr(fault, "reason", None) or fault
        raise EnvironmentFault(
            f"nothing answers at {url}: {reason}",
            next_step="Is the server up, is the port right, and can this machine reach it?",
        ) from fault
    if len(content) > LIMIT:
        raise Refused(f"{url} answers with more than {LIMIT >> 20} MiB")
    return content


def _reason(content: bytes) -> str:
    """What vLLM says in an error: the first line of its message."""
    try:
        found = json.loads(content)
        said = str(found.get("error", found).get("message", ""))
    except (ValueError, AttributeError):
        return ""
    return said.strip().partition("\n")[0][:300]
