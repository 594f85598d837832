"""The campaign on its own: what it keeps, takes up, refuses and says of servers that fail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standin.engine import EngineFailed, Server

from patchset.errors import Refused
from suite.campaign import Campaign, Configuration
from suite.checks import Context, Material
from suite.outcome import Outcome, failed, passed

CONTEXT = Context(Material((), (), (), (), "", {}, 1, 1), margin=0.0)
ASKED = {"target": "it"}


@contextmanager
def sleeper(log: Path) -> Iterator[Server]:
    """A process that stays, in a server's place."""
    log.write_text("started\n")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield Server("http://127.0.0.1:9", log, process)
        finally:
            process.kill()


class Bench:
    """A campaign over two servers, one of them with a drafter; counts what runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[str] = []
        self.ran: list[str] = []
        self.told: list[str] = []
        self.results: dict[str, Callable[[Server, Context], Outcome]] = {
            "one": lambda server, context: passed("fine", kept=[1, 2]),
            "two": lambda server, context: failed("not fine", number=3),
        }

    def start(self, name: str) -> Any:
        def begin(log: Path) -> Any:
            self.started.append(name)
            return sleeper(log)

        return begin

    def open(self, **other: Any) -> Campaign:
        def counted(name: str) -> Callable[[Server, Context], Outcome]:
            def check(server: Server, context: Context) -> Outcome:
                self.ran.append(name)
                return self.results[name](server, context)

            return check

        configurations = [
            Configuration("alone", self.start("alone"), CONTEXT),
            Configuration("drafter", self.start("drafter"), CONTEXT, "alone"),
        ]
        checks = {name: counted(name) for name in self.results}
        return Campaign(self.folder, ASKED | other, configurations, self.told.append, checks)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "results")


def test_what_passed_is_taken_up(bench: Bench) -> None:
    with bench.open() as campaign:
        for name in ("alone", "drafter"):
            for check in ("one", "two"):
                campaign.outcome(name, check)
    assert bench.started == ["alone", "drafter"]
    with bench.open() as campaign:
        assert campaign.outcome("alone", "one").kept == [1, 2]
        assert bench.started == ["alone", "drafter"]
        assert campaign.outcome("alone", "two").figures == {"number": 3}
    assert bench.started == ["alone", "drafter", "alone"]
    assert bench.ran == ["one", "two", "one", "two", "two"]


def test_the_reference_is_what_the_other_kept(bench: Bench) -> None:
    seen = []

    def look(server: Server, context: Context) -> Outcome:
        seen.append((context.reference, context.kept))
        return passed("seen")

    with bench.open() as campaign:
        campaign.outcome("alone", "one")
    bench.results["two"] = look
    with bench.open() as campaign:
        campaign.outcome("drafter", "two")
        campaign.outcome("alone", "two")
    assert seen == [({"one": [1, 2]}, {}), (None, {"one": [1, 2]})]


def test_interrupted_keeps_the_rest(bench: Bench) -> None:
    def stop(server: Server, context: Context) -> Outcome:
        raise KeyboardInterrupt

    bench.results["two"] = stop
    with bench.open() as campaign:
        campaign.outcome("alone", "one")
        with pytest.raises(KeyboardInterrupt):
            campaign.outcome("alone", "two")
    report = json.loads((bench.folder / "report.json").read_bytes())
    assert list(report["configurations"]["alone"]) == ["one"]
    assert report["asked"] == ASKED
    told = (bench.folder / "report.txt").read_text()
    assert "passed   one" in told
    assert "1 passed, 0 failed, 0 skipped, 3 of 4 to come" in told


def test_a_folder_of_something_else_is_refused(bench: Bench) -> None:
    with bench.open() as campaign:
        campaign.outcome("alone", "one")
    with pytest.raises(Refused, match="is about something else"):
        bench.open(target="another")
    (bench.folder / "report.json").write_text("{}")
    with pytest.raises(Refused, match="is no report of this suite"):
        bench.open()


def test_a_server_that_does_not_start_is_named_once(bench: Bench) -> None:
    """With the first cause in its log, and no second start for the next check."""

    def begin(name: str) -> Any:
        @contextmanager
        def start(log: Path) -> Iterator[Server]:
            bench.started.append(name)
            log.write_text(
                "INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.16.0\n"
                "ERROR 11-29 10:00:01 [core.py:9] AttributeError: 'KimiK25Config' object has no "
                "attribute 'image_token_index'\n"
            )
            raise EngineFailed("server exited with 1")
            yield

        return start

    bench.start = begin  # type: ignore[method-assign]
    with bench.open() as campaign:
        first, second = campaign.outcome("alone", "one"), campaign.outcome("alone", "two")
    assert first.status == "failed"
    assert "did not start: F01, " in first.sentence
    assert second.status == "skipped"
    assert "F01" in second.sentence
    assert bench.started == ["alone"]


def test_a_server_that_dies_is_named_and_started_again(bench: Bench) -> None:
    def die(server: Server, context: Context) -> Outcome:
        server.process.kill()
        raise ConnectionResetError("gone")

    bench.results["one"] = die
    with bench.open() as campaign:
        first, second = campaign.outcome("alone", "one"), campaign.outcome("alone", "two")
    assert first.status == "failed"
    assert first.sentence.startswith("the server ended with status -9")
    assert second.sentence == "not fine"
    assert bench.started == ["alone", "alone"]


def test_a_check_that_falls_over_is_no_death(bench: Bench) -> None:
    def fall(server: Server, context: Context) -> Outcome:
        raise LookupError("no such answer")

    bench.results["one"] = fall
    with bench.open() as campaign:
        assert campaign.outcome("alone", "one").sentence.endswith("LookupError: no such answer")
        campaign.outcome("alone", "two")
    assert bench.started == ["alone"]
