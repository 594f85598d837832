"""The checks. Each takes a running server and what is known of it, and gives an outcome.

The same functions look at Kimi-K2.5 on GPUs (tests/gpu) and at the stand-in on a CPU
(tests/engine). A server without a drafter is looked at first; what a check keeps of it is the
``reference`` of the same check with a drafter.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

from standin.engine import Server

from advice.memory import DOUBT
from measure.metrics import Snapshot, read
from measure.server import look, settle
from suite.outcome import Outcome, failed, passed, skipped
from suite.talk import (
    ask,
    body,
    continue_ids,
    difference,
    message_of,
    message_of_stream,
    reason,
    say,
    streaming,
)

IDLE_SECONDS = 60  # in which a server has to let go of requests whose clients have left
DROPPED = 8  # clients that leave at once
LOAD = 16  # clients of the mixed load


@dataclass(frozen=True)
class Material:
    """What is asked. ``tokens``: of one answer, at most; ``call_tokens``: of one that calls tools.

    ``pictures``: a question and two pictures, as URLs, that must not be answered alike.
    ``filler``: words to make long prompts of. ``data``: prompts by data set.
    """

    prompts: Sequence[str]
    pictures: Sequence[tuple[str, str, str]]
    tools: Sequence[Mapping[str, Any]]
    calling: Sequence[str]
    filler: str
    data: Mapping[str, Sequence[str]]
    tokens: int
    call_tokens: int


@dataclass(frozen=True)
class Context:
    """What is known of a server.

    ``drafts``: its draft tokens, 0 without a drafter. ``margin``: how far below the likeliest token
    another may be, in nats, and pass for a near tie; 0 for float32. ``draft_lengths``: the
    longest sequence, in tokens, of every drafter that will be looked at.
    ``cache_tokens``: what its KV cache should hold. ``published``: acceptance lengths by data set,
    which may be missed by the share ``slack``. ``least_speed_up``: at one request at a time.
    ``reference``: what each check kept without a drafter; ``kept``: what the earlier checks of this
    server kept.
    """

    material: Material
    margin: float
    drafts: int = 0
    draft_lengths: Sequence[int] = ()
    cache_tokens: int | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    slack: float = 0.1
    least_speed_up: float = 1.0
    levels: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)
    minutes: float = 60.0
    reference: Mapping[str, Any] | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    told: Callable[[str], None] = lambda text: None


Check = Callable[[Server, Context], Outcome]


def lossless(server: Server, context: Context) -> Outcome:
    """Greedy text on the fixed prompts, one at a time."""
    material, answers = context.material, []
    for prompt in material.prompts:
        answers.append(ask(server, say(prompt), material.tokens, near=context.reference is None))
        context.told(f"{len(answers)} of {len(material.prompts)} prompts")
    return _compared(context, "lossless", answers)


def images(server: Server, context: Context) -> Outcome:
    """Answers about pictures, and that the picture counts."""
    material, answers, alike = context.material, [], []
    for question, *urls in material.pictures:
        pair = []
        for url in urls:
            near = context.reference is None
            pair.append(ask(server, _shown(url, question), material.tokens, near=near))
        alike += [question] * (pair[0]["tokens"] == pair[1]["tokens"])
        answers += pair
    if alike:
        return failed(f"another picture changes nothing: {alike[0]!r} is answered alike")
    return _compared(context, "images", answers)


def tool_calls(server: Server, context: Context) -> Outcome:
    """Tool calls are the same streamed as whole."""
    material, whole, wrong = context.material, [], []
    for prompt in material.calling:
        asked = body(server, say(prompt), material.call_tokens, tools=material.tools)
        want = message_of(server.post("/v1/chat/completions", asked))
        with streaming(server, asked) as chunks:
            got = message_of_stream(chunks)
        whole.append(want)
        wrong += [f"{prompt!r} gives {want}, streamed {got}"] * (got != want)
    calls = sum(len(each["calls"]) for each in whole)
    figures = {"prompts": len(whole), "calls": calls, "streamed_otherwise": len(wrong)}
    if not calls:
        return failed("no tool was called: there is nothing to compare", **figures)
    if wrong:
        return failed(f"{len(wrong)} of {len(whole)} streams differ: {wrong[0]}", **figures)
    return passed(f"{calls} calls, each the same streamed", **figures)


def long_context(server: Server, context: Context) -> Outcome:
    """Prompts that end before, reach and pass each drafter's limit, and the server's own."""
    answers, lengths, new = [], _lengths(server, context), _new_long(context)
    if not lengths:
        return skipped(f"needs a server that takes more than {2 * new} tokens")
    answer = server.post("/tokenize", {"model": server.model, "prompt": context.material.filler})
    words = answer["tokens"]
    before = _settled(server)
    for number, length in enumerate(lengths):
        # Another start each time, so that the prefix cache does not hold what was asked before.
        ids = list(islice(cycle(words), number, number + length))
        near = context.reference is None
        answers.append(continue_ids(server, ids, new, near=near, ignore_eos=True))
        context.told(f"prompt of {length} tokens answered")
        if len(answers[-1]["tokens"]) != new:
            return failed(f"a prompt of {length} tokens: {len(answers[-1]['tokens'])} of {new} new")
    found = _compared(context, "long_context", answers)
    if context.drafts:
        found.figures["acceptance_length"] = (_settled(server) - before).acceptance_length
    found.figures["prompts"] = list(lengths)
    return found


def _new_long(context: Context) -> int:
    return min(64, context.material.tokens)


def _lengths(server: Server, context: Context) -> list[int]:
    """Of the prompts of :func:`long_context`, in tokens."""
    new, longest = _new_long(context), _longest(server)
    limits = sorted({min(limit, longest) for limit in (*context.draft_lengths, 1 << 62)})
    wanted = {limit + off for limit in limits for off in (-2 * new, -new, -new // 2, new)}
    return sorted(n for n in wanted if 0 < n <= longest - new)


def concurrency(server: Server, context: Context) -> Outcome:
    """The fixed prompts at every number of requests at once, answered in full; and how fast."""
    right, material, wrong = _right(context), context.material, []
    if right is None:
        return skipped("needs the check lossless to pass without a drafter")
    speeds, ties = {}, {}
    for level in context.levels:
        count = max(level, len(material.prompts))
        one = partial(_ask, server, material.tokens)
        started = time.monotonic()
        with ThreadPoolExecutor(level) as pool:
            answers = list(pool.map(one, islice(cycle(material.prompts), count)))
        seconds = time.monotonic() - started
        speeds[str(level)] = round(sum(len(a["tokens"]) for a in answers) / seconds, 2)
        context.told(f"{level} at once: {speeds[str(level)]} tokens/s")
        # A batch may change what is nearly a tie, with a drafter or without.
        found, told = _differences(islice(cycle(right), count), answers, context.margin)
        ties[str(level)] = found["near_ties"]
        wrong += [f"{level} at once: {told}"] if told else []
    figures = {"tokens_per_second": speeds, "near_ties": ties, "margin": context.margin}
    if wrong:
        return failed(wrong[0], **figures)
    sentence = f"{context.levels[-1]} at once are answered in full, {max(speeds.values())} tokens/s"
    return passed(sentence, {"speeds": speeds}, **figures)


def speed_up(server: Server, context: Context) -> Outcome:
    """Tokens per second of the check before, against those without a drafter."""
    if context.reference is None:
        return passed("this is what the others are compared with")
    if "concurrency" not in context.kept or "concurrency" not in context.reference:
        return skipped("needs the check concurrency to pass, here and without a drafter")
    before, after = (c["concurrency"]["speeds"] for c in (context.reference, context.kept))
    ratios = {level: round(after[level] / before[level], 3) for level in after if level in before}
    first = next(iter(ratios.values()))
    told = ", ".join(f"{ratio:.2f} at {level}" for level, ratio in ratios.items())
    if first < context.least_speed_up:
        return failed(f"{first:.2f} at one request, below {context.least_speed_up}", ratios=ratios)
    return passed(told, ratios=ratios)


def acceptance(server: Server, context: Context) -> Outcome:
    """Acceptance length of each data set, against the published one for this drafter."""
    if not context.drafts:
        return passed("nothing is drafted here")
    material, lengths, missed = context.material, {}, []
    for name, prompts in material.data.items():
        before = _settled(server)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_ask, server, material.tokens), prompts))
        delta = _settled(server) - before
        if delta.requests != len(prompts):
            other = delta.requests - len(prompts)
            return failed(f"somebody else uses the server: {other} requests more ended in {name}")
        length = delta.acceptance_length
        if length is None:
            return failed(f"nothing was drafted on {name}")
        lengths[name] = length
        context.told(f"{name}: acceptance length {length:.2f}")
        want = context.published.get(name, 0.0)
        if length < want * (1 - context.slack):
            missed.append(f"{length:.2f} on {name}, published {want:.2f}")
    figures = {"lengths": lengths, "published": dict(context.published), "slack": context.slack}
    if missed:
        return failed("acceptance length " + "; ".join(missed), **figures)
    told = ", ".join(f"{length:.2f} on {name}" for name, length in lengths.items())
    known = sorted(set(lengths) & set(context.published))
    unknown = (
        "" if known else "; nothing is published for this drafter, these data and draft tokens"
    )
    return passed(f"acceptance length {told}{unknown}", **figures)


def memory(server: Server, context: Context) -> Outcome:
    """The KV cache that the server's log names, against the doctor's estimate."""
    if context.cache_tokens is None:
        return skipped("needs the cards' kind, which the estimate is made for")
    log = server.log.read_text(encoding="utf-8", errors="replace")
    said = re.findall(r"KV cache size: ([\d,]+) tokens", log)
    if not said:
        return failed("the server's log names no KV cache size")
    tokens = min(int(text.replace(",", "")) for text in said)
    off = tokens / context.cache_tokens - 1
    figures = {"tokens": tokens, "estimate": context.cache_tokens, "off": round(off, 3)}
    told = f"{tokens:,} tokens of KV cache, {1 + off:.0%} of the estimate {context.cache_tokens:,}"
    return failed(told, **figures) if abs(off) > DOUBT else passed(told, **figures)


def disconnect(server: Server, context: Context) -> Outcome:
    """Clients that leave in the middle: the server stops their requests and serves on."""
    for prompt in islice(cycle(context.material.prompts), DROPPED):
        _leave(server, prompt, context)
    if left := _busy_after(server, IDLE_SECONDS):
        return failed(f"{left} requests still run {IDLE_SECONDS} s after their clients left")
    return _afterwards(server, context, f"{DROPPED} clients left in the middle")


def mixed_load(server: Server, context: Context) -> Outcome:
    """Text, pictures, tools, long prompts and clients that leave, mixed, for a while."""
    end = time.monotonic() + 60 * context.minutes
    done: Counter[str] = Counter()
    wrong: list[str] = []
    lock = threading.Lock()
    kinds = _kinds(server, context)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end and not wrong:
            kind = chance.choice(sorted(kinds))
            try:
                kinds[kind](chance)
            except Exception as fault:  # whatever it is, it is what the check is about
                with lock:
                    wrong.append(f"{kind}: {reason(fault)}")
            with lock:
                done[kind] += 1

    with ThreadPoolExecutor(LOAD) as pool:
        workers = [pool.submit(work, seed) for seed in range(LOAD)]
        told = time.monotonic()
        while not all(worker.done() for worker in workers):
            time.sleep(0.2)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                context.told(f"{done.total()} requests, {(end - told) / 60:.0f} minutes to go")
    figures = {"minutes": context.minutes, "requests": dict(done), "clients": LOAD}
    if wrong:
        return failed(f"after {done.total()} requests {wrong[0]}", **figures)
    if missing := sorted(set(kinds) - set(done)):
        return failed(f"too short: nothing was asked of {', '.join(missing)}", **figures)
    if left := _busy_after(server, IDLE_SECONDS):
        return failed(f"{left} requests still run {IDLE_SECONDS} s after the end", **figures)
    found = _afterwards(server, context, f"{done.total()} requests in {context.minutes:g} minutes")
    found.figures.update(figures)
    return found


# In the order in which they are made.
CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        lossless,
        images,
        tool_calls,
        acceptance,
        concurrency,
        speed_up,
        memory,
        long_context,
        disconnect,
        mixed_load,
    )
}


def _kinds(server: Server, context: Context) -> dict[str, Callable[[random.Random], object]]:
    material, longest = context.material, _longest(server)

    def text(chance: random.Random) -> object:
        return ask(server, say(chance.choice(material.prompts)), chance.randint(1, material.tokens))

    def leaving(chance: random.Random) -> None:
        _leave(server, chance.choice(material.prompts), context)

    def picture(chance: random.Random) -> object:
        question, *urls = chance.choice(material.pictures)
        return ask(server, _shown(chance.choice(urls), question), material.tokens)

    def tools(chance: random.Random) -> object:
        asked = say(chance.choice(material.calling))
        with streaming(
            server, body(server, asked, material.tokens, tools=material.tools)
        ) as chunks:
            return message_of_stream(chunks)

    def long(chance: random.Random) -> object:
        words = material.filler.split()
        count = min(len(words), longest // 16)
        start = chance.randrange(len(words) - count + 1)
        return ask(server, say(" ".join(words[start : start + count])), material.tokens)

    return {kind.__name__: kind for kind in (text, leaving, picture, tools, long)}


def _shown(url: str, question: str) -> list[dict[str, Any]]:
    picture = {"type": "image_url", "image_url": {"url": url}}
    return say([picture, {"type": "text", "text": question}])


def _ask(server: Server, tokens: int, prompt: str) -> dict[str, Any]:
    return ask(server, say(prompt), tokens)


def _longest(server: Server) -> int:
    """The longest sequence that the server takes, in tokens."""
    length: int = server.get("/v1/models")["data"][0]["max_model_len"]
    return length


def _leave(server: Server, prompt: str, context: Context) -> None:
    """Ask for as much as there is room for, and close the connection after some chunks."""
    tokens = max(context.material.tokens, _longest(server) // 2)
    with streaming(server, body(server, say(prompt), tokens, ignore_eos=True)) as chunks:
        for _ in islice(chunks, 3):
            pass


def _settled(server: Server) -> Snapshot:
    """The counters once they stand still."""
    return settle(look(server.url))


def _busy_after(server: Server, seconds: float) -> int:
    """How many requests run or wait; returns 0 as soon as there are none."""
    end = time.monotonic() + seconds
    while True:
        found = read(server.url)
        busy = found.running + found.waiting
        if not busy or time.monotonic() > end:
            return busy
        time.sleep(0.5)


def _right(context: Context) -> list[dict[str, Any]] | None:
    """The answers without a drafter to the fixed prompts, if they were kept."""
    known = context.kept if context.reference is None else context.reference
    answers: list[dict[str, Any]] | None = known.get("lossless", {}).get("answers")
    return answers


def _afterwards(server: Server, context: Context, what: str) -> Outcome:
    """The first prompts are answered as ever."""
    right = _right(context)
    if right is None:
        return skipped("needs the check lossless to pass without a drafter")
    asked = context.material.prompts[:4]
    answers = [ask(server, say(p), context.material.tokens) for p in asked]
    figures, told = _differences(right[: len(asked)], answers, context.margin)
    if told:
        return failed(f"{what}; then {told}", **figures)
    return passed(f"{what}; the next answers are the right ones", **figures)


def _compared(context: Context, name: str, answers: Sequence[Mapping[str, Any]]) -> Outcome:
    """``answers`` against the reference, or kept as the reference."""
    if context.reference is None:
        if len({tuple(answer["tokens"]) for answer in answers}) < 2:
            return failed("all answers are alike: to compare them would show nothing")
        return passed(f"{len(answers)} answers kept", {"answers": answers})
    if name not in context.reference:
        return skipped(f"needs the check {name} to pass without a drafter")
    figures, told = _differences(context.reference[name]["answers"], answers, context.margin)
    if told:
        return failed(told, **figures)
    ties = f", {figures['near_ties']} up to a near tie" if figures["near_ties"] else ""
    return passed(f"{figures['equal']} of {len(answers)} answers are the same{ties}", **figures)


def _differences(
    want: Iterable[Mapping[str, Any]], got: Iterable[Mapping[str, Any]], margin: float
) -> tuple[dict[str, Any], str | None]:
    """Figures, and a sentence about the answers that differ by more than ``margin``."""
    found = [difference(w, g) for w, g in zip(want, got, strict=True)]
    gaps = [d.gap for d in found if d is not None and d.gap <= margin]
    wrong = [(n, d) for n, d in enumerate(found) if d is not None and d.gap > margin]
    figures = {
        "equal": found.count(None),
        "near_ties": len(gaps),
        "largest_gap": round(max(gaps, default=0.0), 4),
        "different": len(wrong),
        "margin": margin,
    }
    if not wrong:
        return figures, None
    number, first = wrong[0]
    gap = "another token" if first.gap == float("inf") else f"a token {first.gap:.2f} nats below"
    return figures, (
        f"{len(wrong)} of {len(found)} answers differ; answer {number} has {gap} at {first.at}"
    )
