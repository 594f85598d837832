"""Asking an OpenAI server, whole and streamed, and comparing two answers token by token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from standin.engine import Server

# How many of the likeliest tokens are asked for at each position, to tell a near tie from an error.
NEAR = 5

Messages = Sequence[Mapping[str, Any]]


def say(content: Any) -> list[dict[str, Any]]:
    """The messages of a chat that the user begins with ``content``."""
    return [{"role": "user", "content": content}]


def body(server: Server, messages: Messages, tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy chat request for at most ``tokens`` tokens."""
    given = {"model": server.model, "messages": list(messages), "max_tokens": tokens}
    return {**given, "temperature": 0, "return_token_ids": True, **more}


def ask(server: Server, messages: Messages, tokens: int, **more: Any) -> dict[str, Any]:
    """The greedy answer to a chat, as :func:`answer_of` makes it."""
    near = {"logprobs": True, "top_logprobs": NEAR, "return_tokens_as_token_ids": True}
    more = {**(near if more.pop("near", False) else {}), **more}
    return answer_of(server.post("/v1/chat/completions", body(server, messages, tokens, **more)))


def continue_ids(server: Server, ids: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
    """The greedy continuation of a prompt given in token ids, as :func:`answer_of` makes it."""
    near = {"logprobs": NEAR, "return_tokens_as_token_ids": True} if more.pop("near", False) else {}
    given = {"model": server.model, "prompt": list(ids), "max_tokens": tokens, "temperature": 0}
    asked = {**given, "return_token_ids": True, **near, **more}
    return answer_of(server.post("/v1/completions", asked))


def answer_of(decoded: Mapping[str, Any]) -> dict[str, Any]:
    """``{"tokens": [...], "finish": ..., "near": [[[id, logprob], ...], ...]}``.

    ``near`` is there if it was asked for: the likeliest tokens of each position.
    """
    choice = decoded["choices"][0]
    answer = {"tokens": choice["token_ids"], "finish": choice["finish_reason"]}
    said = choice.get("logprobs")
    if not said:
        return answer
    if "content" in said:  # a chat
        tops = [{t["token"]: t["logprob"] for t in e["top_logprobs"]} for e in said["content"]]
    else:
        tops = said["top_logprobs"]
    near = [[[int(k.rpartition(":")[2]), value] for k, value in top.items()] for top in tops]
    return {**answer, "near": near}


@dataclass(frozen=True)
class Difference:
    """Where an answer leaves the other one: at position ``at``, by ``gap`` nats.

    ``gap`` is how much less likely the token is than the likeliest, infinite for a token that is
    none of the likeliest, and for an answer that ends early or goes on.
    """

    at: int
    gap: float


def difference(want: Mapping[str, Any], got: Mapping[str, Any]) -> Difference | None:
    """The first difference of two answers, of which ``want`` has ``near``."""
    ours, theirs = want["tokens"], got["tokens"]
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        if len(ours) == len(theirs):
            return None
        return Difference(min(len(ours), len(theirs)), float("inf"))
    near = dict(map(tuple, want["near"][at])) if at < len(want.get("near", ())) else {}
    if theirs[at] not in near:
        return Difference(at, float("inf"))
    return Difference(at, max(near.values()) - near[theirs[at]])


@contextmanager
def streaming(server: Server, asked: Mapping[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """The chunks of a streamed chat; leaving the block closes the connection."""
    request = urllib.request.Request(
        server.url + "/v1/chat/completions",
        data=json.dumps({**asked, "stream": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=server.patience) as answer:
        yield _chunks(answer)


def _chunks(answer: Any) -> Iterator[dict[str, Any]]:
    for line in answer:
        data = line.decode().removeprefix("data: ").strip()
        if data and data != "[DONE]":
            chunk = json.loads(data)
            if "choices" not in chunk:
                raise ValueError(f"the stream says {data[:200]}")
            yield chunk


def reason(fault: Exception) -> str:
    """What went wrong, with what the server says about it."""
    told = f"{type(fault).__name__}: {fault}"
    if isinstance(fault, urllib.error.HTTPError):
        told += ": " + fault.read(300).decode("utf-8", "replace")
    return told


def message_of(decoded: Mapping[str, Any]) -> dict[str, Any]:
    """Content, tool calls ``[id, name, arguments]`` and finish reason of an unstreamed chat.

    Without spaces around the content, which streaming passes on and the whole answer has lost.
    """
    choice = decoded["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    return {
        "content": (message.get("content") or "").strip(),
        "calls": [[c["id"], c["function"]["name"], c["function"]["arguments"]] for c in calls],
        "finish": choice["finish_reason"],
    }


def message_of_stream(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together from a stream, in the form of :func:`message_of`."""
    content, calls, finish = "", list[list[str]](), None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            for each in delta.get("tool_calls") or []:
                while len(calls) <= each["index"]:
                    calls.append(["", "", ""])
                call, function = calls[each["index"]], each.get("function") or {}
                call[0] += each.get("id") or ""
                call[1] += function.get("name") or ""
                call[2] += function.get("arguments") or ""
            finish = choice.get("finish_reason") or finish
    return {"content": content.strip(), "calls": calls, "finish": finish}
