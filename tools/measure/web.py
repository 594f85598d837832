"""Asking the server; nothing here knows what it answers."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from patchset.errors import EnvironmentFault, Refused, UsageFault

LIMIT = 64 << 20  # bytes of an answer; a server with a thousand engines has a page of 10 MB


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """vLLM redirects nobody, and whoever is named there must not get the key."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Take it for the error that it is."""


_OPENER = urllib.request.build_opener(_NoRedirect)


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
    the answer is not there within ``timeout`` seconds, Refused if it is an error or leads
    elsewhere, UsageFault for a key that cannot be sent.
    """
    headers = {"Accept": "*/*", "Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        if not (key.isascii() and key.isprintable()):
            raise UsageFault(
                "OPENAI_API_KEY has a character that cannot be sent",
                next_step="Set it again, without the end of a line.",
            )
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    deadline = time.monotonic() + timeout
    try:
        request = urllib.request.Request(url, data, headers)
        try:
            answer = _OPENER.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error  # it has a body too, which may break off as any other
        with answer:
            content = _read(answer, url, deadline)
    except (OSError, http.client.HTTPException, ValueError) as fault:
        reason = getattr(fault, "reason", None) or fault
        raise EnvironmentFault(
            f"nothing answers at {url}: {reason}",
            next_step="Is the server up, is the port right, and can this machine reach it?",
        ) from fault
    if not 200 <= answer.status < 300:
        said = _reason(content)
        step = "Is this the address of a vLLM server, and the right model name?"
        if answer.status in (401, 403):
            step = "Set OPENAI_API_KEY to the server's key."
        elif place := answer.headers.get("Location"):
            said, step = f"it sends to {place}", "Give the address of the server itself."
        raise Refused(
            f"{url} answers {answer.status} {answer.reason}" + (f": {said}" if said else ""),
            next_step=step,
        )
    return content


def _read(answer: Any, url: str, deadline: float) -> bytes:
    """The whole body. The timeout of a socket is that of each piece: many may come slowly."""
    content = bytearray()
    while piece := answer.read1(1 << 16):
        content += piece
        if len(content) > LIMIT:
            raise Refused(f"{url} answers with more than {LIMIT >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out in the middle of an answer")
    return bytes(content)


def parsed(content: bytes | str) -> Any:
    """What JSON says. Raises ValueError if it is none, or nested too deep to be read."""
    try:
        return json.loads(content)
    except RecursionError as fault:
        raise ValueError("nested too deep") from fault


def _reason(content: bytes) -> str:
    """What vLLM says in an error: the first line of its message."""
    try:
        found = parsed(content)
        said = str(found.get("error", found).get("message", ""))
    except (ValueError, AttributeError):
        return ""
    return said.strip().partition("\n")[0][:300]
