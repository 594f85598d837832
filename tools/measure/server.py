"""A running server: what it serves, when it is idle, and waking it up before a measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Thread
from typing import Any

from measure.metrics import Snapshot, read
from measure.web import address, fetch, parsed
from patchset.errors import PatchsetError, Refused

SETTLING = 10.0  # seconds that requests in flight get to end
WARM_UP_TOKENS = 64


@dataclass(frozen=True)
class Server:
    """A vLLM server that answers.

    ``model`` is the name to ask for, ``counted`` the one under which it counts, ``root`` the
    checkpoint's folder or hub id as the server was told, ``version`` vLLM's own (``None`` if it
    does not tell), ``draft_tokens`` how many it drafts in a round (0: no drafter).
    """

    url: str
    model: str
    counted: str
    root: str
    version: str | None
    draft_tokens: int

    def snapshot(self) -> Snapshot:
        """Its counters now."""
        return read(self.url, self.counted)


def look(url: str, model: str | None = None, *, drafting: bool | None = None) -> Server:
    """The server at ``url``.

    ``model`` is one of its names, needed where it serves several models. ``drafting`` is what it
    has to be. Raises EnvironmentFault if nothing answers; Refused if it is no vLLM server, has no
    such model, or has a drafter or none where it should not.
    """
    url = address(url)
    page = read_models(url)
    names = [card["id"] for card in page]
    if model is not None and model not in names:
        raise Refused(
            f"{url} serves {', '.join(names)}, not {model}",
            next_step=f"Give --model {names[0]}, or leave it out.",
        )
    # Names of one model have one root; an adapter has its base for a parent.
    bases = [card for card in page if not card.get("parent")]
    card = next((c for c in page if c["id"] == model), bases[0] if bases else page[0])
    counted = read(url, None if len({c["root"] for c in bases}) <= 1 else card["id"])
    if drafting and not counted.drafting:
        raise Refused(
            f"{url} has no drafter: it counts no drafts",
            next_step="Start it with --speculative-config, or give it as --baseline-url.",
        )
    if drafting is False and counted.drafting:
        raise Refused(
            f"{url} has a drafter, so it is no baseline",
            next_step="Start it without --speculative-config, or give it as --url.",
        )
    return Server(
        url, card["id"], counted.model, card["root"], _version(url), len(counted.accepted_at)
    )


def read_models(url: str) -> list[dict[str, Any]]:
    """The cards at ``/v1/models``: at least one, each with the texts ``id`` and ``root``."""
    content = fetch(url + "/v1/models")
    try:
        cards = parsed(content)["data"]
        found = [{**card, "root": str(card.get("root") or card["id"])} for card in cards]
        # The client gets them as words of its command line, which takes no others.
        if found and all(b"\0" not in (card["id"] + card["root"]).encode() for card in found):
            return found
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Refused(
        f"{url} answers, but not as vLLM does: /v1/models lists no model",
        next_step="Give the address that `vllm serve` prints, such as http://localhost:8000.",
    )


def _version(url: str) -> str | None:
    try:
        told = parsed(fetch(url + "/version"))["version"]
    except (Refused, ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, str) else None


def settle(server: Server, patience: float = SETTLING) -> Snapshot:
    """The counters as soon as nothing runs and they stand still, or after ``patience`` seconds.

    The engine counts a moment after it has answered. ``running`` and ``waiting`` of the result
    tell whether somebody else keeps the server busy.
    """
    limit = time.monotonic() + patience
    before = server.snapshot()
    while True:
        time.sleep(0.3)
        now = server.snapshot()
        delta = now - before
        if now.running + now.waiting == 0 and delta.generation_tokens + delta.requests == 0:
            return now
        if now.taken > limit:
            return now
        before = now


def warm_up(server: Server, concurrency: int, timeout: float = 600) -> None:
    """Send ``concurrency`` short chats at once: kernels get compiled, and caches filled, by these.

    Their prompts are in no data set, so that no prompt that counts is in the prefix cache. Raises
    Refused or EnvironmentFault if one is not answered.
    """

    faults: list[PatchsetError] = []

    def chat(number: int) -> None:
        body = {
            "model": server.model,
            "messages": [{"role": "user", "content": f"Count from {number} upwards in words."}],
            "max_completion_tokens": WARM_UP_TOKENS,
            "temperature": 0,
        }
        try:
            fetch(server.url + "/v1/chat/completions", body, timeout=timeout)
        except PatchsetError as fault:
            faults.append(fault)

    # Not a pool: an interrupt would wait for its threads.
    threads = [Thread(target=chat, args=(n,), daemon=True) for n in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
