"""The bench of servers without a server of vLLM: arithmetic, pages, and what goes wrong.

The whole of it on the real engine: tests/engine/test_bench_server.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from measure import data as data_module
from measure import page as page_module
from measure.client import Client, Foreign, Latency, Run, find_client, measure
from measure.context import patch_set
from measure.data import OURS, DataSet, Prompt, read_data
from measure.plan import ROUNDS, plan
from measure.published import load_published, published_for
from measure.report import (
    ServerBenchReport,
    VerdictReport,
    acceptances,
    baseline_of,
    complete,
    read_report,
    save,
    server_report,
    speed_ups,
)
from measure.server import Server, look, settle
from measure.web import address, fetch
from patchset.errors import EnvironmentFault, Refused, UsageFault
from patchset.report import CheckReport, schema

METRICS = Path(__file__).parent / "metrics"
PAGE = (METRICS / "0.32.0.txt").read_text("utf-8")
HOSTILE = "<script>alert('1')</script>\"&\x1b[2J\u202e$x_1$ moonshotai/Kimi"


# A server that answers with what it was given.


@dataclass
class Pages:
    """What is answered to which path; ``later`` takes its place when /later is asked for.

    ``raw`` are whole answers, head and all; an empty piece stands for a tenth of a second.
    """

    answers: dict[str, bytes]
    later: dict[str, bytes] = field(default_factory=dict)
    raw: dict[str, list[bytes]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def pages() -> Iterator[Pages]:
    card = {"id": "standin", "root": "/models/standin", "parent": None}
    told = Pages(
        {
            "/metrics": PAGE.encode(),
            "/v1/models": json.dumps({"data": [card]}).encode(),
            "/version": b'{"version": "0.32.0+kimi.eagle3.1"}',
        }
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/later":
                told.answers |= {**told.later, "/later": b""}
            told.seen.append(self.path)
            for piece in told.raw.get(self.path, []):
                self.wfile.write(piece) if piece else time.sleep(0.1)
            if self.path in told.raw:
                return
            content = told.answers.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"<html>no</html>")

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Not on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        told.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield told
        server.shutdown()
        thread.join()


def without_drafter(text: str) -> bytes:
    return "\n".join(line for line in text.splitlines() if "spec_decode" not in line).encode()


def test_look(pages: Pages) -> None:
    found = look(f"{pages.url}/v1/", drafting=True)
    assert found == Server(
        pages.url, "standin", "standin", "/models/standin", "0.32.0+kimi.eagle3.1", 3
    )


def test_another_name_of_the_model(pages: Pages) -> None:
    """It is asked for by that name and counts under the first one; so does an adapter."""
    cards = [
        {"id": "standin", "root": "/models/standin"},
        {"id": "kimi", "root": "/models/standin"},
        {"id": "lora", "root": "/lora", "parent": "standin"},
    ]
    pages.answers["/v1/models"] = json.dumps({"data": cards}).encode()
    for name in ("kimi", "lora"):
        found = look(pages.url, name)
        assert (found.model, found.counted) == (name, "standin")
    with pytest.raises(Refused, match="serves standin, kimi, lora, not other"):
        look(pages.url, "other")


def test_a_server_that_tells_no_version(pages: Pages) -> None:
    del pages.answers["/version"]
    assert look(pages.url).version is None


@pytest.mark.parametrize("drafting", [True, False])
def test_drafter_or_none(pages: Pages, drafting: bool) -> None:
    if drafting:
        pages.answers["/metrics"] = without_drafter(PAGE)
    with pytest.raises(Refused, match="has no drafter" if drafting else "has a drafter"):
        look(pages.url, drafting=drafting)
    assert look(pages.url, drafting=not drafting).model == "standin"


@pytest.mark.parametrize(
    "models",
    [
        b"hello",
        b"[]",
        b'{"data": []}',
        b'{"data": [{"id": 1}]}',
        b'{"data": [{"id": "m", "root": "\\ud800"}]}',
        b'{"data": [{"id": "m", "root": "a\\u0000"}]}',
    ],
)
def test_not_vllm(pages: Pages, models: bytes) -> None:
    pages.answers["/v1/models"] = models
    with pytest.raises(Refused, match="not as vLLM does"):
        look(pages.url)


def test_errors_of_a_server(pages: Pages) -> None:
    with pytest.raises(Refused, match=r"/nowhere answers 404 Not Found$"):
        fetch(f"{pages.url}/nowhere")
    with pytest.raises(EnvironmentFault, match="nothing answers at http"):
        fetch("http://127.0.0.1:1/")
    with pytest.raises(UsageFault, match="is no address"):
        address("localhost:8000")


DEEP = b"[" * 200_000


def test_answers_that_are_none(pages: Pages) -> None:
    """Broken off, endless, or nested without end: each is a reason, and nothing else."""
    pages.raw["/broken"] = [
        b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"zz\r\n",
    ]
    with pytest.raises(EnvironmentFault, match="nothing answers at http"):
        fetch(f"{pages.url}/broken")
    pages.raw["/slow"] = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x", b""] * 20]
    with pytest.raises(EnvironmentFault, match="timed out in the middle"):
        fetch(f"{pages.url}/slow", timeout=0.5)
    pages.raw["/deep"] = [b"HTTP/1.1 500 Oh\r\n\r\n", DEEP]
    with pytest.raises(Refused, match=r"/deep answers 500 Oh$"):
        fetch(f"{pages.url}/deep")
    pages.answers["/version"] = DEEP
    assert look(pages.url).version is None
    pages.answers["/v1/models"] = DEEP
    with pytest.raises(Refused, match="lists no model"):
        look(pages.url)


def test_the_key_goes_nowhere_else(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    to = f"{pages.url}/version".encode()
    pages.raw["/moved"] = [b"HTTP/1.1 302 Found\r\nLocation: " + to + b"\r\n\r\n"]
    with pytest.raises(Refused, match=r"/moved answers 302 Found: it sends to http.*/version$"):
        fetch(f"{pages.url}/moved")
    assert pages.seen == ["/moved"]
    monkeypatch.setenv("OPENAI_API_KEY", "secret\n")
    with pytest.raises(UsageFault, match="OPENAI_API_KEY has a character") as raised:
        fetch(f"{pages.url}/version")
    assert "secret" not in str(raised.value)


def test_settled_in_spite_of_others(pages: Pages) -> None:
    """One who keeps the server busy is seen, and does not keep us waiting for ever."""
    busy = PAGE.replace(
        'num_requests_running{engine="0",model_name="standin"} 0',
        'num_requests_running{engine="0",model_name="standin"} 2',
    )
    assert busy != PAGE
    pages.answers["/metrics"] = busy.encode()
    assert settle(look(pages.url), patience=0.1).running == 2


# The client: what it says is taken apart here, with a script in its place.

CLIENT = """#!{python}
import json, sys, urllib.request
words = sys.argv
if "-c" in words:  # asked which vLLM it has
    print(json.dumps({{"place": "/x", "version": "0.32.0", "provenance": None, "pandas": False}}))
    sys.exit()
at = lambda name: words[words.index(name) + 1]
urllib.request.urlopen(at("--base-url") + "/later").read()
sent = json.load(open(at("--dataset-path")))
assert len(sent) == int(at("--num-prompts"))
print("answering", flush=True)
{act}
open(at("--result-dir") + "/" + at("--result-filename"), "w").write(json.dumps({result}))
"""
LATENCIES = {
    f"{kind}_{name}_ms": 1.5
    for kind in ("mean", "median", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
}
RESULT = {
    "duration": 2.0,
    "completed": 4,
    "failed": 0,
    "total_output_tokens": 100,
    "output_throughput": 50.0,
    **LATENCIES,
}
DATA = DataSet("own", (Prompt("one"), Prompt("two")))


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., Client]:
    def make(act: str = "", **result: Any) -> Client:
        script = tmp_path / "python"
        told = CLIENT.format(python=sys.executable, act=act, result={**RESULT, **result})
        script.write_text(told)
        script.chmod(0o755)
        return Client(script, "0.32.0", pandas=False)

    return make


def later(requests: int, tokens: int) -> dict[str, bytes]:
    """The page after so many more requests, generated tokens, and 50 drafts: 30 accepted."""
    moved = PAGE
    for old, new in (
        ('finished_reason="length",model_name="standin"} 1.0', f"{1 + requests}.0"),
        ('generation_tokens_total{engine="0",model_name="standin"} 16.0', f"{16 + tokens}.0"),
        ('num_drafts_total{engine="0",model_name="standin"} 5.0', "55.0"),
        ('num_accepted_tokens_total{engine="0",model_name="standin"} 12.0', "42.0"),
    ):
        assert old in moved
        moved = moved.replace(old, f"{old.rpartition(' ')[0]} {new}")
    return {"/metrics": moved.encode()}


def run_of(pages: Pages, client: Client, folder: Path) -> Run:
    server = look(pages.url)
    return measure(
        client, server, "drafter", DATA, 2, 4, output_tokens=32, log=folder / "client.log"
    )


@pytest.mark.parametrize(
    ("requests", "tokens", "failed", "foreign"),
    [
        (4, 100, 0, None),
        (6, 148, 0, Foreign(2, 48, 0)),
        (4, 101, 0, Foreign(0, 1, 0)),  # one of somebody that began before, or ends later
        (4, 60, 0, Foreign(0, -40, 0)),  # the counters of one server of several
        (4, 80, 1, None),  # ours that failed
        (6, 80, 1, Foreign(2, 0, 0)),
    ],
)
def test_foreign_traffic(
    pages: Pages,
    client: Callable[..., Client],
    tmp_path: Path,
    requests: int,
    tokens: int,
    failed: int,
    foreign: Foreign | None,
) -> None:
    pages.later = later(requests, tokens)
    found = run_of(pages, client(completed=4 - failed, failed=failed), tmp_path)
    assert found.foreign == foreign
    assert found.acceptance_length == 1.6
    assert found.output_throughput == 50


@pytest.mark.parametrize(
    ("act", "result", "reason"),
    [
        ("raise ModuleNotFoundError('no aiohttp')", {}, "code 1: ModuleNotFoundError: no aiohttp"),
        ("sys.exit('nothing useful')", {}, "code 1: nothing useful"),
        ("sys.exit(0)", {}, "ended without a result: answering"),
        ("", {"completed": 0, "failed": 4, "errors": ["a\nBad Request"]}, "none of 4 .*: Bad Req"),
        ("", {"completed": 3}, "sent 3 of 4 prompts of own: without the package pandas"),
        ("", {"duration": None}, "reports in a way that is not known"),
        ("", {"duration": "long"}, "reports in a way that is not known"),
        ("inf = float('inf')", {"mean_ttft_ms": 1e999}, "not known here: mean_ttft_ms is inf"),
        (
            "open(at('--result-dir') + '/result.json', 'w').write('[' * 200000); sys.exit()",
            {},
            "ended without a result: answering",
        ),
    ],
)
def test_client_that_fails(
    pages: Pages,
    client: Callable[..., Client],
    tmp_path: Path,
    act: str,
    result: dict[str, Any],
    reason: str,
) -> None:
    with pytest.raises(EnvironmentFault, match=reason):
        run_of(pages, client(act, **result), tmp_path)


def test_server_that_was_started_again(
    pages: Pages, client: Callable[..., Client], tmp_path: Path
) -> None:
    pages.later = {"/metrics": PAGE.replace(" 16.0", " 3.0").encode()}
    with pytest.raises(EnvironmentFault, match="started again"):
        run_of(pages, client(), tmp_path)


def test_server_that_drafts_otherwise_now(
    pages: Pages, client: Callable[..., Client], tmp_path: Path
) -> None:
    """Started again between two runs: their figures by position cannot be added."""
    server = replace(look(pages.url), draft_tokens=2)
    with pytest.raises(EnvironmentFault, match="drafts 3 tokens now, 2 before"):
        measure(client(), server, "drafter", DATA, 2, 4, output_tokens=32, log=tmp_path / "log")


def test_no_client(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="has no vLLM"):
        find_client(Path(sys.executable))
    with pytest.raises(UsageFault, match="does not start"):
        find_client(tmp_path / "missing")
    with pytest.raises(UsageFault, match="is no Python"):
        find_client(Path("/bin/true"))
    for said in ("1", "[]", "{}", "[" * 100_000):
        script = tmp_path / "says"
        script.write_text(f"#!/bin/sh\necho '{said}'\n")
        script.chmod(0o755)
        with pytest.raises(UsageFault, match="is no Python"):
            find_client(script)


# Data sets.


def test_our_prompts() -> None:
    ours = read_data("prompts", OURS)
    assert [len(part.prompts) for part in ours.parts] == [10] * 6
    assert len({item.prompt for item in ours.prompts}) == 60
    # The client without pandas takes no prompt of more than 1024 tokens.
    assert max(len(item.prompt.encode()) for item in ours.prompts) < 1500


def test_parts_and_order(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    lines = [("a", "x"), ("b", "y"), ("c", "x"), ("d", None), ("e", "x")]
    path.write_text(
        "\n\n".join(json.dumps({"prompt": p, "category": c, "other": 1}) for p, c in lines)
    )
    data = read_data("some", path, limit=2)
    assert [item.prompt for item in data.prompts] == ["a", "b", "c", "d"]
    parts = {part.name: [item.prompt for item in part.prompts] for part in data.parts}
    assert parts == {"some/x": ["a", "c"], "some/y": ["b"], "some/other": ["d"]}
    assert data.take(6) == ["a", "b", "c", "d", "a", "b"]
    assert data.parts[0].parts == ()
    assert data.report() != read_data("some", path).report()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"prompt": "a"}\n{"text": "b"}', "some.jsonl:2: .*prompt"),
        (b"{", "some.jsonl:1: "),
        (b'{"prompt": 3}', "some.jsonl:1: "),
        (b'{"prompt": "  "}', "some.jsonl:1: an empty prompt"),
        (b"\n", "is empty"),
        (b"\xff", "cannot be read"),
        (b'{"other": ' + DEEP, "some.jsonl:1: .*recursion"),
    ],
)
def test_data_that_is_none(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageFault, match=reason):
        read_data("some", path)
    with pytest.raises(UsageFault, match="No such file"):
        read_data("some", tmp_path / "missing")


def test_data_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "LIMIT", 1 << 20)
    with pytest.raises(UsageFault, match="is larger than 1 MiB: /dev/zero"):
        read_data("some", Path("/dev/zero"))


def test_plan() -> None:
    data = DataSet("d", (Prompt("a", "x"), Prompt("b", "y"), Prompt("c", "x")))
    one, two = (Server(url, "m", "m", "r", None, k) for url, k in (("u", 3), ("v", 0)))
    steps = plan({"baseline": two, "drafter": one}, [data], [8, 1])
    assert [(s.role, s.data.name, s.concurrency, s.requests) for s in steps] == [
        ("drafter", "d/x", 4, 2),
        ("drafter", "d/y", 4, 1),
        ("drafter", "d", 1, ROUNDS),
        ("drafter", "d", 8, 8 * ROUNDS),
        ("baseline", "d", 1, ROUNDS),
        ("baseline", "d", 8, 8 * ROUNDS),
    ]


# Published values.


def test_published_table() -> None:
    for item in load_published():
        assert item.source.startswith(("https://huggingface.co/", "https://github.com/"))
        assert all(1 < length < 1 + item.draft_tokens for length in item.lengths.values())


@pytest.mark.parametrize(
    "name",
    [
        "lightseekorg/kimi-k2.5-eagle3",
        "/models/Kimi-K2.5-Eagle3/",
        "/c/hub/models--lightseekorg--kimi-k2.5-eagle3/snapshots/0a1b",
    ],
)
def test_published_for(name: str) -> None:
    (found,) = published_for(name)
    assert found.drafter == "lightseekorg/kimi-k2.5-eagle3"
    assert found.length("mt_bench") == found.lengths["MT-Bench"]
    assert found.length("prompts") is None


def test_nothing_published() -> None:
    assert published_for("somebody/kimi-k2.5-eagle3-small") == ()


# The report.


def a_run(role: Any = "drafter", data: str = "d", concurrency: int = 1, **changes: Any) -> Run:
    same = Latency(1.0, 1.0, 1.0)
    usual = Run(
        role=role,
        data=data,
        concurrency=concurrency,
        requests=4,
        completed=4,
        failed=0,
        seconds=2.0,
        prompt_tokens=9,
        output_tokens=100,
        output_throughput=50.0,
        ttft_ms=same,
        tpot_ms=same,
        itl_ms=same,
        e2el_ms=same,
        drafts=10,
        draft_tokens=30,
        accepted=12,
        accepted_at=[8, 3, 1],
        acceptance_length=2.2,
        client_acceptance_length=2.2,
        foreign=None,
    )
    return msgspec.structs.replace(usual, **changes)


def a_report(runs: list[Run], name: str = "kimi", **changes: Any) -> ServerBenchReport:
    server = Server("http://h", name, name, name, "0.32.0", 3)
    base = replace(server, draft_tokens=0)
    checks = [CheckReport(id="x", level="warn", what=name, reason=name, cure=name, fault=None)]
    start = ServerBenchReport(
        schema=schema("bench-server"),
        result="done",
        exit_code=0,
        message="",
        taken="2026-11-29T22:00:00+00:00",
        stopped=None,
        servers=[
            server_report("drafter", server, None, "unknown"),
            server_report("baseline", base, "ab" * 32, "--patch-set"),
        ],
        client="0.32.0",
        output_tokens=32,
        data=[DATA.report()],
        runs=[],
        acceptance=[],
        speed_ups=[],
        published=list(published_for("lightseekorg/kimi-k2.5-eagle3")),
        verdict=VerdictReport(verdict="warn", message=name, checks=checks),
        verdict_missing=None,
        notes=[],
        written=[],
    )
    start = msgspec.structs.replace(start, **changes)
    return complete(start, runs, start.stopped) if runs else start


def test_acceptance_is_that_of_all_runs() -> None:
    runs = [
        a_run(data="GSM8K"),
        a_run(data="GSM8K", concurrency=4, drafts=30, accepted=12, accepted_at=[6, 5, 1]),
        a_run("baseline", data="GSM8K", drafts=0, accepted=0, accepted_at=[]),
        a_run(data="d", drafts=0, accepted=0, accepted_at=[0, 0, 0], foreign=Foreign(1, 2, 0)),
    ]
    known = published_for("lightseekorg/kimi-k2.5-eagle3")
    first, second = acceptances(runs, known)
    assert (first.drafts, first.length, first.rates) == (40, 1.6, [0.35, 0.2, 0.05])
    assert (first.published, first.alone) == (3.201, True)
    assert (second.length, second.rates, second.alone) == (None, [], False)
    four = [msgspec.structs.replace(item, draft_tokens=4) for item in known]
    assert acceptances(runs, four)[0].published is None  # with another number of draft tokens


def test_speed_ups() -> None:
    runs = [
        a_run(output_throughput=90.0),
        a_run(concurrency=4),
        a_run("baseline", output_throughput=60.0, foreign=Foreign(1, 0, 0)),
        a_run("baseline", concurrency=8),
    ]
    (found,) = speed_ups(runs)
    assert (found.concurrency, found.ratio, found.alone) == (1, 1.5, False)


def test_notes_name_the_figure() -> None:
    runs = [
        a_run(foreign=Foreign(2, 48, 1)),
        a_run(concurrency=4, foreign=Foreign(0, -40, 0)),
        a_run(concurrency=8, failed=1),
    ]
    one, two, three = a_report(runs).notes
    assert "2 requests, 48 generated tokens, 1 requests in flight" in one
    assert "40 generated tokens fewer" in two
    assert "1 of 4 requests failed" in three
    assert "2 of 3 runs with foreign traffic" in a_report(runs).message


def test_stopped() -> None:
    found = complete(a_report([]), [a_run()], "interrupted by the user after 1 of 9 runs", 130)
    assert (found.result, found.exit_code) == ("partial", 130)
    assert "interrupted by the user after 1 of 9 runs" in found.message
    assert found.acceptance[0].length == 2.2


class Elements(HTMLParser):
    """All elements with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_names_on_the_page(tmp_path: Path) -> None:
    picture = tmp_path / "acceptance.png"
    picture.write_bytes(b"\x89PNG")
    report = a_report([a_run(data=HOSTILE), a_run("baseline", data=HOSTILE)], HOSTILE)
    report = msgspec.structs.replace(report, notes=[HOSTILE], stopped=HOSTILE)
    text = page_module.page(report, [picture])
    page = Elements(text)
    tags = {tag for tag, _ in page.found}
    assert "script" not in tags
    assert not tags & {"link", "iframe", "object", "base", "form"}
    sources = [value for _, attrs in page.found for name, value in attrs.items() if name == "src"]
    assert len(sources) == 1
    assert all((source or "").startswith("data:image/png;base64,") for source in sources)
    links = {attrs.get("href") for tag, attrs in page.found if tag == "a"}
    assert links == {item.source for item in report.published}
    assert not any(name.startswith("on") for _, attrs in page.found for name in attrs)
    assert page.text.count("<script>alert('1')</script>") >= 8
    assert not any(c in text for c in "\x1b\u202e")


def test_page_tells_what_it_must() -> None:
    runs = [a_run(data="prompts", foreign=Foreign(2, 48, 1)), a_run("baseline", data="prompts")]
    text = Elements(page_module.page(a_report(runs, stopped="why"), [])).text
    for told in ("2.20 *", "1.00 *", "ab" * 32, "unknown", "48 generated tokens", "3.20", "GSM8K"):
        assert told in text
    alone = a_report([a_run("baseline")], servers=[a_report([]).servers[1]])
    assert "without a drafter" in Elements(page_module.page(alone, [])).text


def test_saved_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("measure.plots.can_draw", lambda: False)
    kept = save(a_report([a_run()]), tmp_path, pictures=True)
    assert read_report(tmp_path / "report.json") == kept
    assert kept.written == [str(tmp_path / "report.html")]
    assert any("no pictures" in note for note in kept.notes)

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save(a_report([]), tmp_path, pictures=False)
    monkeypatch.undo()
    assert read_report(tmp_path / "report.json") == kept


def test_baseline_of_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(a_report([a_run("baseline"), a_run()]).as_json(indent=1))
    earlier = read_report(path)
    servers, runs = baseline_of(earlier, path, [DATA.report()], 32)
    assert [server.role for server in servers] == ["baseline"]
    assert [run.role for run in runs] == ["baseline"]
    other = DataSet("own", (Prompt("one"),)).report()
    with pytest.raises(UsageFault, match="with other prompts in own"):
        baseline_of(earlier, path, [other], 32)
    with pytest.raises(UsageFault, match="with --output-tokens 32"):
        baseline_of(earlier, path, [DATA.report()], 64)
    with pytest.raises(UsageFault, match="has no baseline"):
        baseline_of(a_report([a_run()]), path, [], 32)
    path.write_text('{"schema": "other"}')
    with pytest.raises(UsageFault, match="is no report of this bench"):
        read_report(path)


# The patch set.

PROVENANCE: dict[str, Any] = {
    "schema": "vllm-kimi-eagle3/provenance/2",
    "release": "0.32.0",
    "version": "0.32.0+kimi.eagle3.1",
    "digest": "cd" * 32,
    "upto": None,
    "source": {"file": "vllm.whl", "sha256": "ab" * 32},
    "patches": [],
    "overlay": [],
    "files": [],
}


def test_patch_set(tmp_path: Path) -> None:
    image = tmp_path / "image.json"
    server = Server("u", "m", "m", "r", "0.32.0+kimi.eagle3.1", 3)
    client = Client(Path("python"), "0.32.0+kimi.eagle3.1", pandas=False)
    patched = replace(client, provenance=json.dumps(PROVENANCE))
    other = replace(server, version="0.32.0+kimi.eagle3.2")

    def found(server: Server, client: Client, given: str | None = None) -> tuple[str | None, str]:
        return patch_set(server, client, given, image)

    assert found(server, patched) == (
        "cd" * 32,
        "kimi_eagle3.json beside the client's vLLM 0.32.0+kimi.eagle3.1",
    )
    assert found(server, patched, "ef")[0] == "ef"
    assert found(other, patched)[0] is None
    assert found(server, client)[0] is None
    assert "no patched wheel" in found(replace(server, version="0.32.0"), patched)[1]
    assert found(replace(server, version=None), patched)[0] is None
    assert "damaged" in found(server, replace(client, provenance="{"))[1]
    image.write_text('{"version": "0.32.0-kimi.eagle3.1", "patch_set": "01", "more": 1}')
    assert found(server, client) == ("01", "image.json of the image, vLLM 0.32.0-kimi.eagle3.1")
    assert found(other, client)[0] is None


# The command line.

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench.py"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """What looks like a Python that has vLLM."""
    script = tmp_path / "vllm-python"
    found = {"place": "/x", "version": "0.32.0", "provenance": None, "pandas": False}
    script.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--url", "http://127.0.0.1:1"], 5, "nothing answers at http://127.0.0.1:1/v1/models"),
        (["--url", "127.0.0.1:1"], 2, "127.0.0.1:1 is no address. Write http://HOST:PORT"),
        (["--url=http://x", "--concurrency", "0"], 2, "'0' is no list of numbers such as"),
        (["--url=http://x", "--extra-body", "[]"], 2, "'[]' is no JSON object"),
        (["--url=http://x", "--data", "mine"], 2, "--data mine is not NAME=FILE"),
        (["--url=http://x", "--baseline", "r", "--baseline-url", "u"], 2, "--baseline goes with"),
        (["--baseline-url", "http://127.0.0.1:1", "--baseline", "r"], 2, "--baseline goes with"),
    ],
)
def test_command_that_cannot_begin(
    python: str, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, str(TOOL), *words, "--python", python, "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    report = json.loads(done.stdout)
    assert (report["schema"], report["exit_code"]) == ("vllm-kimi-eagle3/bench-server/1", code)
    assert said in f"{report['message']}. {report['error']['next_step']}"
    assert not out.exists()


def test_report_is_not_overwritten(pages: Pages, python: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("mine")
    command = [sys.executable, str(TOOL), "--url", pages.url, "--python", python]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not empty. Name a new folder with --out." in done.stderr
    assert (tmp_path / "report.json").read_text() == "mine"


def test_baseline_first_and_compared_later(
    pages: Pages, client: Callable[..., Client], tmp_path: Path
) -> None:
    data = tmp_path / "own.jsonl"
    data.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    pages.answers["/v1/chat/completions"] = b"{}"

    def bench(out: str, *words: str, python: Path) -> ServerBenchReport:
        command = [sys.executable, str(TOOL), *words, "--python", str(python)]
        command += ["--data", f"own={data}", "--concurrency", "1", "--out", str(tmp_path / out)]
        subprocess.run(command, check=True, capture_output=True)
        return read_report(tmp_path / out / "report.json")

    served = dict(pages.answers)
    pages.answers["/metrics"] = without_drafter(PAGE)
    pages.later = {"/metrics": without_drafter(later(4, 100)["/metrics"].decode())}
    base = bench("a", "--baseline-url", pages.url, python=client(output_throughput=40.0).python)
    assert [run.role for run in base.runs] == ["baseline"]
    assert base.message == "without a drafter 40.00 tokens a second"
    pages.answers, pages.later = served, later(4, 100)
    earlier = str(tmp_path / "a" / "report.json")
    words = ("--url", pages.url, "--baseline", earlier)
    found = bench("b", *words, python=client(output_throughput=60.0).python)
    assert [item.ratio for item in found.speed_ups] == [1.5]
    assert [server.role for server in found.servers] == ["drafter", "baseline"]
    assert found.message == "acceptance length 1.60; speed-up 1.50"
    assert (tmp_path / "b" / "report.html").read_text().count("<table>") >= 4
