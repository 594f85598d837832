"""vLLM's own benchmark client, ``vllm bench serve``, and what one of its runs did to the server.

The options used are the same in every release from 0.15.0 to 0.33.0 (`vllm/benchmarks/serve.py` and
`datasets`). The server's counters are read around each run by us, and not taken from the client,
which reads them in the middle of other traffic without a word.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from measure.data import DataSet
from measure.metrics import Delta
from measure.server import Server, settle
from measure.web import parsed
from patchset.errors import EnvironmentFault, Refused, UsageFault
from patchset.releases import Strict

Role = Literal["baseline", "drafter"]
Progress = Callable[[int, int], None]
"""Called now and then with the number of answers so far, and of all."""

_LOOK = """
import importlib.metadata, importlib.util, json, pathlib
spec = importlib.util.find_spec("vllm")
pandas = importlib.util.find_spec("pandas") is not None
found = {"place": None, "version": None, "provenance": None, "pandas": pandas}
if spec and spec.submodule_search_locations:
    place = pathlib.Path(spec.submodule_search_locations[0])
    found["place"] = str(place)
    for info in sorted(place.parent.glob("vllm*.dist-info")):
        found["version"] = info.name.removesuffix(".dist-info").partition("-")[2]
        noted = info / "kimi_eagle3.json"
        if noted.is_file():
            found["provenance"] = noted.read_text("utf-8")
            break
    if found["version"] is None:
        found["version"] = importlib.metadata.version("vllm")
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Client:
    """A Python that has vLLM, with its client.

    ``pandas`` is whether that package is there: without it the client has no data set "custom",
    and gets the prompts as "sharegpt", of which it leaves out those with fewer than 4 or more than
    1024 tokens. ``provenance`` is the content of `kimi_eagle3.json`, if that vLLM is a patched
    wheel. ``tokenizer`` is the folder or hub id from which the client loads one, for counting.
    ``extra`` is laid into every request.
    """

    python: Path
    version: str
    pandas: bool
    provenance: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class Latency(Strict, frozen=True):
    """Milliseconds."""

    mean: float
    median: float
    p99: float


class Foreign(Strict, frozen=True):
    """What the server did for others during a run.

    ``requests`` and ``tokens`` are what it counted beyond what our client was answered (tokens may
    be below 0 if it counted less: then these are not the counters of the server that answered).
    ``running`` are requests of others that were in flight before or after.
    """

    requests: int
    tokens: int
    running: int

    def __str__(self) -> str:
        told = [
            f"{number} {what}"
            for number, what in (
                (self.requests, "requests"),
                (self.tokens, "generated tokens"),
                (self.running, "requests in flight"),
            )
            if number
        ]
        return ", ".join(told)


class Run(Strict, frozen=True):
    """One data set once through a server, at most ``concurrency`` requests at a time.

    ``seconds``, ``output_throughput`` (tokens a second) and the latencies are the client's: time to
    first token, time per further token, between two chunks, of a whole request. ``prompt_tokens``
    and ``drafts`` to ``accepted_at`` are the server's, see `measure.metrics.Snapshot`.
    ``client_acceptance_length`` is the client's own figure. ``foreign`` is ``None`` for a run that
    had the server for itself.
    """

    role: Role
    data: str
    concurrency: int
    requests: int
    completed: int
    failed: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    output_throughput: float
    ttft_ms: Latency
    tpot_ms: Latency
    itl_ms: Latency
    e2el_ms: Latency
    drafts: int
    draft_tokens: int
    accepted: int
    accepted_at: list[int]
    acceptance_length: float | None
    client_acceptance_length: float | None
    foreign: Foreign | None

    @property
    def told(self) -> str:
        """In a line."""
        told = [f"{self.output_throughput:.1f} tokens/s", f"{self.seconds:.1f} s"]
        if self.acceptance_length is not None:
            told.insert(0, f"acceptance length {self.acceptance_length:.2f}")
        if self.failed:
            told.append(f"{self.failed} requests failed")
        if self.foreign is not None:
            told.append(f"foreign traffic: {self.foreign}")
        return ", ".join(told)


def find_client(python: Path) -> Client:
    """The vLLM of a Python. Raises UsageFault or Refused, with the reason, if it has none."""
    python = Path(os.path.abspath(python))  # not resolve(): a virtual environment is known by links
    try:
        done = subprocess.run(
            [python, "-c", _LOOK], capture_output=True, text=True, cwd="/", timeout=120
        )
        found = parsed(done.stdout.splitlines()[-1])
        missing = found["place"] is None
        told = Client(python, str(found["version"]), found["pandas"], found["provenance"])
    except OSError as fault:
        raise UsageFault(
            f"--python {python} does not start: {fault.strerror}",
            next_step="Name the Python of an environment with vLLM, .venv/bin/python for example.",
        ) from fault
    except (subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as fault:
        raise UsageFault(f"--python {python} is no Python that works") from fault
    if missing:
        raise Refused(
            f"{python} has no vLLM, whose benchmark client is needed",
            next_step="Name the Python of an environment that has it: --python .venv/bin/python",
        )
    return told


def measure(
    client: Client,
    server: Server,
    role: Role,
    data: DataSet,
    concurrency: int,
    requests: int,
    *,
    output_tokens: int,
    log: Path,
    progress: Progress = lambda done, of: None,
) -> Run:
    """Send ``requests`` chats and report: greedy, at most ``output_tokens`` each.

    What the client says goes to the file ``log``. Raises EnvironmentFault if the client fails, no
    request is answered, or the server was started again meanwhile. An interrupt ends the client.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        words = [str(client.python), "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
        prompts = data.take(requests)
        words += client_options(client, server, prompts, concurrency, output_tokens, Path(folder))
        before = settle(server)
        if len(before.accepted_at) != server.draft_tokens:
            raise EnvironmentFault(
                f"{server.url} drafts {len(before.accepted_at)} tokens now, {server.draft_tokens} "
                "before: the server was started again",
                next_step="Measure again, on a server that stays up.",
            )
        _run(words, log, requests, progress)
        after = settle(server)
        try:
            result = parsed((Path(folder) / "result.json").read_bytes())
        except (OSError, ValueError) as fault:
            raise _failure(log, "ended without a result") from fault
    in_flight = max(s.running + s.waiting for s in (before, after))
    try:
        return _read(result, role, data.name, concurrency, requests, after - before, in_flight)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as fault:
        raise EnvironmentFault(
            f"the client of vLLM {client.version} reports in a way that is not known here: {fault}",
            next_step=f"Its output is in {log}.",
        ) from fault


def client_options(
    client: Client,
    server: Server,
    prompts: Sequence[str],
    concurrency: int,
    output_tokens: int,
    folder: Path,
) -> list[str]:
    """The options of ``vllm bench serve``; the prompts are written to ``folder`` for it.

    Its result goes to ``result.json`` there.
    """
    tokenizer = client.tokenizer or server.root
    words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
    words += ["--base-url", server.url, "--model", tokenizer, "--tokenizer", tokenizer]
    words += ["--served-model-name", server.model, "--seed", "0", "--temperature", "0"]
    words += ["--max-concurrency", str(concurrency), "--ready-check-timeout-sec", "0"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "99"]
    if client.trust_remote_code:
        words.append("--trust-remote-code")
    if client.extra:
        words += ["--extra-body", json.dumps(client.extra)]
    if client.pandas:
        # The client would put its own chat template round each prompt, and the server another one.
        words += ["--dataset-name", "custom", "--skip-chat-template"]
        path = folder / "prompts.jsonl"
        text = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    else:
        words += ["--dataset-name", "sharegpt"]
        path = folder / "prompts.json"
        text = json.dumps([{"conversations": [{"value": p}, {"value": ""}]} for p in prompts])
    path.write_text(text, encoding="utf-8")
    words += ["--dataset-path", str(path), "--num-prompts", str(len(prompts))]
    words += ["--disable-shuffle", "--no-oversample", "--output-len", str(output_tokens)]
    # The detailed form, because it alone has the reasons of requests that failed.
    words += ["--save-result", "--save-detailed", "--result-dir", str(folder)]
    return [*words, "--result-filename", "result.json"]


def _run(words: Sequence[str], log: Path, requests: int, progress: Progress) -> None:
    """Run the client in a session of its own, so that an interrupt reaches us first."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,
        )
        try:
            answers = 0
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)
                answers = max(answers, _answers(log, requests))
                progress(answers, requests)
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise _failure(log, f"ended with code {process.returncode}")


def _answers(log: Path, requests: int) -> int:
    """How far the client's bar has come."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 2000))
        seen = re.findall(rb"(\d+)/(\d+) \[", stream.read())
    return int(seen[-1][0]) if seen and int(seen[-1][1]) == requests else 0


def _failure(log: Path, what: str) -> EnvironmentFault:
    text = log.read_text("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|error)\b", line)]
    said = (errors or lines or ["it said nothing"])[-1]
    return EnvironmentFault(
        f"vLLM's benchmark client {what}: {said[:300]}", next_step=f"Its output is in {log}."
    )


def _read(
    result: dict[str, Any],
    role: Role,
    data: str,
    concurrency: int,
    requests: int,
    delta: Delta,
    in_flight: int,
) -> Run:
    completed, failed = int(result["completed"]), int(result.get("failed", 0))
    if not completed:
        reasons = [line for error in result.get("errors", []) for line in error.splitlines()[-1:]]
        raise EnvironmentFault(
            f"none of {requests} requests was answered: {reasons[-1] if reasons else 'no reason'}",
            next_step="The server's log tells more.",
        )

    if completed + failed != requests:
        raise EnvironmentFault(
            f"the client sent {completed + failed} of {requests} prompts of {data}: without the "
            "package pandas it takes none with fewer than 4 or more than 1024 tokens",
            next_step="Install pandas beside that vLLM, or leave those prompts out.",
        )

    def number(name: str) -> float:
        value = float(result[name])
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        return value

    def latency(name: str) -> Latency:
        return Latency(*(number(f"{kind}_{name}_ms") for kind in ("mean", "median", "p99")))

    tokens = int(result["total_output_tokens"])
    foreign = Foreign(
        # Those of ours that failed may have been counted or not.
        requests=max(0, delta.requests - completed - failed),
        tokens=0 if failed else delta.generation_tokens - tokens,
        running=in_flight,
    )
    own = result.get("spec_decode_acceptance_length")
    return Run(
        role=role,
        data=data,
        concurrency=concurrency,
        requests=requests,
        completed=completed,
        failed=failed,
        seconds=number("duration"),
        prompt_tokens=delta.prompt_tokens,
        output_tokens=tokens,
        output_throughput=number("output_throughput"),
        ttft_ms=latency("ttft"),
        tpot_ms=latency("tpot"),
        itl_ms=latency("itl"),
        e2el_ms=latency("e2el"),
        drafts=delta.drafts,
        draft_tokens=delta.draft_tokens,
        accepted=delta.accepted,
        accepted_at=list(delta.accepted_at),
        acceptance_length=delta.acceptance_length,
        client_acceptance_length=None if own is None else float(own),
        foreign=foreign if any((foreign.requests, foreign.tokens, foreign.running)) else None,
    )
