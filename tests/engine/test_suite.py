"""The checks of the Blackwell suite on the stand-in: each passes where it should, and fails.

The campaign, its servers and its report are those of tests/gpu/test_kimi.py.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin.engine import Server

from engine.suite_standin import calling, configuration
from engine.support import FIRST, Engine, Setting, tree
from engine.test_ladder import upto
from suite import checks
from suite.campaign import Campaign
from suite.checks import CHECKS, Check
from suite.outcome import Outcome

LATER = Setting("0.32.0", 2, True)
# The constructed pair pays no attention to anything but the last word.
BLIND = "another picture changes nothing"
SAME_TEXT = ("lossless", "concurrency", "long_context", "disconnect", "mixed_load")


@pytest.fixture(
    scope="module", params=[FIRST, pytest.param(LATER, marks=pytest.mark.slow)], ids=str
)
def engine(request: pytest.FixtureRequest, engine_of: Callable[[Setting], Engine]) -> Engine:
    return engine_of(request.param)


@pytest.fixture(scope="module")
def constructed(
    engine: Engine, checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The constructed target, which can call a tool, and drafters."""
    taps = {
        "taps": [2, 4, 7],
        "style": engine.setting.styles[0],
        "settings": {"max_position_embeddings": 256},
    }
    drafters = {"right": {**taps, "ids": [2, 4, 7]}, "wrong": {**taps, "ids": [2, 4, 6]}}
    made = checkpoint("standin.constructed:make_constructed_set", drafters=drafters)
    folder = tmp_path_factory.mktemp("constructed")
    calling(made / "target", folder / "target")
    for name in drafters:
        (folder / name).symlink_to(made / name)
    return folder


@pytest.fixture(scope="module")
def campaign(
    engine: Engine, constructed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    """On servers of the constructed target: alone, with the right drafter and with bad luck."""
    target = constructed / "target"
    configurations = [
        configuration("alone", engine, target),
        configuration("drafting", engine, target, constructed / "right"),
        configuration("wrong-ids", engine, target, constructed / "wrong"),
    ]
    if engine.setting == FIRST:
        before = replace(engine, tree=tree(FIRST.release, _before("F22")))
        configurations.append(configuration("stock-parser", before, target, constructed / "right"))
    folder = tmp_path_factory.mktemp("campaign")
    with Campaign(folder, {"release": engine.setting.release}, configurations, print) as found:
        yield found


def _before(fault: str) -> int:
    """How many patches of the first release's series come before the cure of `fault`."""
    return upto(FIRST.release, (fault,)) - 1


LONG = ("concurrency", "speed_up", "long_context", "mixed_load")


@pytest.mark.parametrize(
    "check", [pytest.param(c, marks=pytest.mark.slow) if c in LONG else c for c in CHECKS]
)
@pytest.mark.parametrize("name", ["alone", "drafting"])
def test_passes(name: str, check: str, campaign: Campaign) -> None:
    outcome = campaign.outcome(name, check)
    if check == "images":
        assert outcome.status == "failed"
        assert BLIND in outcome.sentence
    elif check == "memory" and name == "drafting":
        assert outcome.status == "skipped"
    else:
        assert outcome.status == "passed", outcome.sentence


@pytest.mark.slow
def test_wrong_ids_are_seen(campaign: Campaign) -> None:
    campaign.outcome("alone", "lossless")
    assert campaign.outcome("wrong-ids", "lossless").status == "passed"
    outcome = campaign.outcome("wrong-ids", "acceptance")
    assert outcome.status == "failed"
    assert outcome.sentence == "acceptance length 1.00 on words, published 4.00"


@pytest.mark.slow
def test_lost_tool_calls_are_seen(campaign: Campaign) -> None:
    if "stock-parser" not in campaign.configurations:
        pytest.skip("the parser of this release has no such fault")
    outcome = campaign.outcome("stock-parser", "tool_calls")
    assert outcome.status == "failed"
    assert "streams differ" in outcome.sentence


@pytest.fixture(scope="module")
def other(
    engine: Engine,
    target: Path,
    constructed: Path,
    campaign: Campaign,
    checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Campaign]:
    """On the random target, whose text is another one, and whose pictures count."""
    drafter = checkpoint(
        "standin.drafter:make_drafter",
        style=engine.setting.styles[0],
        trained=True,
        target=str(target),
    )
    compared = ("lossless", "long_context")
    reference = {name: campaign.outcome("alone", name).kept for name in compared}
    campaign.stop()
    given = {"published": {"words": 1.05}}
    folder = tmp_path_factory.mktemp("other")
    seeing = calling(target, folder / "target")
    configurations = [
        configuration("alone", engine, seeing),
        configuration("drafting", engine, seeing, drafter, **given),
    ]
    more: dict[str, Check] = {
        **{f"{name} of another target": _with(name, reference=reference) for name in SAME_TEXT},
        "slow": _with("speed_up", least_speed_up=1e6),
        "less memory": _with("memory", cache_tokens=40_000),
        "killed": _killed,
        "held": _held,
    }
    with Campaign(folder, {}, configurations, print, {**CHECKS, **more}) as found:
        yield found


def _with(name: str, **changed: Any) -> Check:
    """A check, with other fields of the context."""
    return lambda server, context: CHECKS[name](server, replace(context, **changed))


def _killed(server: Server, context: checks.Context) -> Outcome:
    timer = threading.Timer(5, server.process.kill)
    timer.start()
    try:
        return checks.mixed_load(server, context)
    finally:
        timer.cancel()


def _held(server: Server, context: checks.Context) -> Outcome:
    """Clients that leave, through a proxy that does not tell the server."""
    with _proxy(server.url) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "IDLE_SECONDS", 1)
        return checks.disconnect(replace(server, url=url), context)


@contextmanager
def _proxy(url: str) -> Iterator[str]:
    host, port = url.removeprefix("http://").split(":")
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass  # the client has left, and what it asked for goes on

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            upstream = socket.create_connection((host, int(port)))
            held.extend((client, upstream))
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        for connection in held:
            connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("check", ["lossless", "images", "acceptance", "concurrency", "mixed_load"])
@pytest.mark.parametrize("name", ["alone", "drafting"])
def test_passes_with_text_worth_comparing(name: str, check: str, other: Campaign) -> None:
    outcome = other.outcome(name, check)
    assert outcome.status == "passed", outcome.sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_TEXT)
def test_other_text_is_seen(name: str, other: Campaign) -> None:
    outcome = other.outcome("drafting", f"{name} of another target")
    assert outcome.status == "failed"
    assert "answers differ; answer 0 has another token at 0" in outcome.sentence


@pytest.mark.slow
def test_nothing_to_compare_is_seen(other: Campaign) -> None:
    assert other.outcome("drafting", "tool_calls").sentence.startswith("no tool was called")


@pytest.mark.slow
def test_a_slow_drafter_is_seen(other: Campaign) -> None:
    for name in ("alone", "drafting"):
        other.outcome(name, "concurrency")
    assert other.outcome("drafting", "slow").status == "failed"


@pytest.mark.slow
def test_less_memory_is_seen(other: Campaign) -> None:
    outcome = other.outcome("drafting", "less memory")
    assert outcome.status == "failed"
    assert "of the estimate 40,000" in outcome.sentence


@pytest.mark.slow
def test_requests_that_go_on_are_seen(other: Campaign) -> None:
    outcome = other.outcome("drafting", "held")
    assert outcome.status == "failed"
    assert "requests still run 1 s after their clients left" in outcome.sentence


@pytest.mark.slow
def test_a_server_that_is_killed_is_named(other: Campaign) -> None:
    outcome = other.outcome("drafting", "killed")
    assert outcome.status == "failed"
    assert outcome.sentence.startswith("the server ended with status -9: ")
    assert other.outcome("drafting", "lossless").status == "passed"  # by a new one
