"""The bench of servers, whole: the real server, vLLM's own client, a trained drafter."""

import json
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin.engine import Server, engine_environ, serve

import bootstrap
from engine.support import Engine, Setting
from measure.client import Foreign, Run, find_client, measure
from measure.data import DataSet, Prompt
from measure.report import ServerBenchReport, notes_about, read_report
from measure.server import look

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench.py"
PROMPTS = [
    ("x", "baba dabe gabi kabo"),
    ("x", "safa tobe vaba zida foba"),
    ("y", "kabo lubu maba nefe"),
    ("y", "bada kala nima poro sutu viza"),
]
TOKENS = 24

pytestmark = pytest.mark.slow


class Bench(NamedTuple):
    """Two servers, and a command that starts the engine's Python as they were started."""

    drafter: Server
    baseline: Server
    python: Path
    folder: Path
    wanted: str  # folder of the drafter
    engine: Engine

    def command(self, *words: str, out: Path) -> list[str]:
        data = self.folder / "own.jsonl"
        lines = [json.dumps({"category": c, "prompt": p}) for c, p in PROMPTS]
        data.write_text("\n".join(lines))
        python = bootstrap.environment(bootstrap.ROOT / "requirements" / "bench.txt")
        return [
            *(str(python), str(TOOL), "--url", self.drafter.url, "--python", str(self.python)),
            *("--data", f"own={data}", "--output-tokens", str(TOKENS), "--concurrency", "2"),
            *("--out", str(out), "--drafter", self.wanted, *words),
        ]

    def measure(self, progress: Callable[[int, int], None] = lambda done, of: None) -> Run:
        data = DataSet("own", tuple(Prompt(prompt) for _, prompt in PROMPTS))
        return measure(
            find_client(self.python),
            look(self.drafter.url),
            "drafter",
            data,
            concurrency=1,
            requests=6,
            output_tokens=TOKENS,
            log=self.folder / "client.log",
            progress=progress,
        )


def like(engine: Engine, folder: Path, *more: Path) -> Path:
    """An executable that runs the engine's Python in its environment, ``more`` behind its path."""
    folder.mkdir()
    lines = [f"import sys; sys.path += {list(map(str, more))!r}"]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    settings = engine_environ(engine.tree, engine.setting.environ)
    settings["PYTHONPATH"] += f":{folder}"
    wanted = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec env {wanted} {engine.python} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module", params=[Setting("0.32.0")], ids=str)
def bench(
    request: pytest.FixtureRequest,
    engine_of: Callable[[Setting], Engine],
    target: Path,
    checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    engine = engine_of(request.param)
    drafter = checkpoint(
        "standin.drafter:make_drafter", style="llama", trained=True, target=str(target)
    )
    folder = tmp_path_factory.mktemp("bench")
    plain = {"model": str(target), "limit_mm_per_prompt": {"vision_chunk": 0}}
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
    settings = engine.setting.environ

    def started(name: str, options: dict[str, Any]) -> Any:
        log = folder / f"{name}.log"
        return serve(engine.python, engine.tree, options, log=log, environ=settings, timeout=900)

    with (
        started("drafter", {**plain, "speculative_config": speculation}) as one,
        started("baseline", plain) as two,
    ):
        yield Bench(one, two, like(engine, folder / "bin"), folder, str(drafter), engine)


def counted(server: Server) -> tuple[float, float, list[float]]:
    """Drafts, accepted tokens and those by position, as the stand-in's own reader sees them."""
    found = server.metrics()
    at = [found[f"vllm:spec_decode_num_accepted_tokens_per_pos_total[{i}]"] for i in range(3)]
    drafts = found["vllm:spec_decode_num_drafts_total"]
    return drafts, found["vllm:spec_decode_num_accepted_tokens_total"], at


class Counted(NamedTuple):
    """A run, and the server's counters before and after it, by another reader than the bench's."""

    run: Run
    before: tuple[float, float, list[float]]
    after: tuple[float, float, list[float]]


@pytest.fixture(scope="module")
def plain(bench: Bench) -> Counted:
    before = counted(bench.drafter)
    return Counted(bench.measure(), before, counted(bench.drafter))


def test_acceptance_is_the_engines(plain: Counted) -> None:
    run, before, after = plain
    drafts, accepted = after[0] - before[0], after[1] - before[1]
    assert drafts > 0
    assert (run.drafts, run.accepted) == (drafts, accepted)
    assert run.accepted_at == [new - old for new, old in zip(after[2], before[2], strict=True)]
    assert run.acceptance_length == 1 + accepted / drafts
    assert run.acceptance_length == pytest.approx(run.client_acceptance_length)
    assert (run.completed, run.failed, run.output_tokens) == (6, 0, 6 * TOKENS)
    assert run.foreign is None


def test_with_pandas_the_client_sends_the_same(bench: Bench, plain: Counted) -> None:
    """The client's data set "custom", which it has where the package pandas is."""
    python = bootstrap.environment(bootstrap.ROOT / "requirements" / "bench.txt")
    script = like(bench.engine, bench.folder / "with-pandas", bootstrap.site_packages(python))
    assert find_client(script).pandas
    assert not find_client(bench.python).pandas
    custom = bench._replace(python=script).measure()
    for name in ("drafts", "accepted_at", "prompt_tokens", "output_tokens"):
        assert getattr(custom, name) == getattr(plain.run, name)


def test_foreign_traffic_is_named(bench: Bench) -> None:
    asked: list[dict[str, Any]] = []

    def intrude(done: int, of: int) -> None:
        if not asked:
            body = {"model": "standin", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
            chat = {**body, "messages": [{"role": "user", "content": "geku"}]}
            asked.append(bench.drafter.post("/v1/chat/completions", chat))

    run = bench.measure(intrude)
    assert run.foreign == Foreign(requests=1, tokens=16, running=0)
    assert "somebody else used the server: 1 requests, 16 generated tokens" in notes_about([run])[0]


def test_the_command(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "report"
    command = bench.command("--baseline-url", bench.baseline.url, "--json", out=out)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = read_report(out / "report.json")
    assert json.loads(done.stdout)["runs"] == json.loads((out / "report.json").read_text())["runs"]
    assert [(run.role, run.data) for run in report.runs] == [
        ("drafter", "own/x"),
        ("drafter", "own/y"),
        ("drafter", "own"),
        ("baseline", "own"),
    ]
    for run in report.runs:
        assert run.foreign is None
        assert run.output_tokens == run.requests * TOKENS
        assert run.acceptance_length == (
            None if run.role == "baseline" else pytest.approx(run.client_acceptance_length)
        )
    assert all(item.length is not None and item.length > 1.2 for item in report.acceptance)
    (speed_up,) = report.speed_ups
    assert speed_up.ratio == pytest.approx(speed_up.drafter / speed_up.baseline)
    told = {server.role: server for server in report.servers}
    assert told["drafter"].draft_tokens == 3
    assert told["drafter"].patch_set == find_digest(bench)
    assert report.verdict is not None, report.verdict_missing
    for name in ("acceptance.png", "positions.png", "speed-up.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert str(told["drafter"].patch_set) in page


def find_digest(bench: Bench) -> str:
    provenance = find_client(bench.python).provenance
    assert provenance is not None
    digest: str = json.loads(provenance)["digest"]
    return digest


def test_interrupted(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "report"
    command = bench.command("--concurrency", "1,2,4,8", out=out)
    # As a terminal starts it, also where these tests run in the background and ignore the signal.
    awake = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=awake) as process:
        until = time.monotonic() + 600
        while not (out / "report.json").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        while not (out / "client-02.log").exists():  # the second run is under way
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    report: ServerBenchReport = read_report(out / "report.json")
    assert (report.result, report.exit_code) == ("partial", 130)
    assert [run.data for run in report.runs] == ["own/x"]
    assert report.stopped == "interrupted by the user after 1 of 6 runs"
    assert "interrupted by the user after 1 of 6 runs" in (out / "report.html").read_text()
    assert not list(out.glob(".part-*"))
    # Its client is gone, and so are the client's requests.
    clients = subprocess.run(["pgrep", "-f", f"bench serve.*{bench.drafter.url}"])
    assert clients.returncode == 1
    for _ in range(100):
        page = urllib.request.urlopen(bench.drafter.url + "/metrics").read().decode()
        if 'num_requests_running{engine="0",model_name="standin"} 0.0' in page:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server still works for a client that is gone")


def test_a_baseline_is_no_drafter(bench: Bench, tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--url", bench.baseline.url]
    command += ["--python", str(bench.python), "--out", str(tmp_path / "report")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert "has no drafter: it counts no drafts" in done.stderr
    assert "give it as --baseline-url" in done.stderr
