"""Run the real vLLM engine, on a CPU unless told otherwise, from a process that needs no vllm.

A *tree* is a directory that holds an importable `vllm` package with its CPU extension (an unpacked
CPU wheel, patched or not); a *python* is the interpreter of an environment with vLLM's
dependencies. Both may be the same installation: then the tree is its `site-packages`.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
LOG_TAIL = 6000  # characters of the log that an error message shows
MADE_BY = ".made-by"  # beside a checkpoint in the cache: makers_sha256() when it was last used
_NOT_MAKERS = (
    "engine.py",
    "job.py",
    "prefill.py",
    "scaffold.py",
)  # do not decide what is in a checkpoint

# What the stand-in wants from every engine; a job's own keys win.
ENGINE_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "trust_remote_code": True,
    "max_model_len": 512,
    "block_size": 32,
    "seed": 0,
}


class EngineFailed(RuntimeError):
    """The engine's process died, hung or would not answer; the message ends with its log."""


Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Server:
    """An OpenAI server that answers at `url` (no trailing slash) as model `model`.

    `patience`: seconds that an answer may keep silent.
    """

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    model: str = "standin"
    patience: float = 300.0

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST `body` as JSON and return the decoded answer. Raises urllib.error.HTTPError."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=self.patience) as answer:
            decoded: dict[str, Any] = json.load(answer)
        return decoded

    def get(self, path: str) -> dict[str, Any]:
        """GET `path` and return the decoded answer. Raises urllib.error.HTTPError."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            decoded: dict[str, Any] = json.load(answer)
        return decoded

    def metrics(self) -> dict[str, float]:
        """`/metrics` as name -> value, summed over labels; `name[i]` for draft position i."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if line.startswith("vllm:"):
                name, value = line.rsplit(" ", 1)
                base, _, labels = name.partition("{")
                position = re.search(r'position="(\d+)"', labels)
                key = f"{base}[{position[1]}]" if position else base
                found[key] = found.get(key, 0.0) + float(value)
        return found


def engine_environ(
    tree: Path, extra: Mapping[str, str] | None = None, device: Device = "cpu"
) -> dict[str, str]:
    """Environment variables under which a process runs the vllm of `tree` on this machine's CPU.

    With `device` "cuda", on its GPU, as vLLM itself would. `extra` is laid over it. What the
    caller's own environment says about Python, torch and vLLM is dropped.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON", "TORCH"))}
    scaffold = [ROOT / "standin" / "plugin"] if device == "cpu" else []
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(map(str, [tree, *scaffold, ROOT])),
        # Matrices this small lose more at the barriers of a second thread than it gives (on a busy
        # machine: fifteen times slower), and one thread always adds in the same order.
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(cache_root() / "vllm" / tree.name),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **(_ON_CPU if device == "cpu" else {}),
        **(extra or {}),
    }


_ON_CPU = {
    # See standin/scaffold.py for these three.
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "VLLM_PLUGINS": "standin_cpu",
    # The releases from 0.29 choose the V2 model runner themselves wherever Triton works.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # 0.16.0 has no MLA attention on CPUs: the target falls back to plain multi-head attention.
    "VLLM_MLA_DISABLE": "1",
    # Binding to "physical" cores leaves half of a small virtual machine idle.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Small helpers are decorated with torch.compile; compiling them needs a C++ compiler and
    # longer than the whole run.
    "TORCHDYNAMO_DISABLE": "1",
}


def run_engines(
    python: Path,
    tree: Path,
    jobs: Sequence[Mapping[str, Any]],
    *,
    environ: Mapping[str, str] | None = None,
    timeout: float = 600,
    device: Device = "cpu",
    module: str = "standin.job",
    at_once: int = 1,
) -> list[dict[str, Any]]:
    """Run several engines one after another in one process (importing vllm takes the longest).

    Or in `at_once` processes side by side, each with its share of them.

    A job is a JSON object::

        {"engine": {...},          # arguments of vllm.LLM, laid over ENGINE_DEFAULTS
         "runs": [                 # generate() calls on that engine, in this order
           {"requests": [{"prompt_token_ids": [1, 2]} | {"prompt": "..."},
                         # optional in a request:
                         #   "images": [{"size": [width, height], "seed": 1}], one for each
                         #     media placeholder of the prompt
                         #   "sampling": {...}, laid over the run's
                        ],
            "sampling": {...}}],   # arguments of vllm.SamplingParams; temperature 0 unless given
         # optional: a function called before the runs with the LLM and these keyword arguments
         "probe": "module:function", "probe_arguments": {...}}

    Its result, in the same order::

        {"seconds": {"start": 9.1},
         "log": [...],             # what vLLM logged while this engine lived
         "probe": ...,             # what the probe returned (must be JSON)
         "runs": [{"outputs": [{"token_ids": [...], "text": "...", "finish_reason": "length",
                                "logprobs": [[[id, logprob], ...], ...]}],
                   "metrics": {"num_drafts": 3, "num_accepted_tokens_per_pos": [2, 1], ...},
                   "seconds": 1.2}]}
        # or, when the engine could not be made or fell over:
        {"error": {"type": "ValueError", "message": "...", "traceback": "..."}, "log": [...], ...}

    `module` is what runs in the process, with the two files' names as its arguments.
    `metrics` are the differences that this run made to vLLM's own counters, named without `vllm:`
    and `spec_decode_`. Raises EngineFailed when the process dies or outlasts `timeout` seconds.
    """
    jobs = [{**job, "engine": {**ENGINE_DEFAULTS, **job["engine"]}} for job in jobs]
    settings = engine_environ(tree, environ, device)
    results: list[dict[str, Any]] = [{} for _ in jobs]
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        running = []
        for first in range(min(at_once, len(jobs))):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standin-")))
            request, answer, log = (folder / n for n in ("job.json", "answer.json", "log.txt"))
            request.write_text(json.dumps(jobs[first::at_once]), encoding="utf-8")
            command = [str(python), "-m", module, str(request), str(answer)]
            process = stack.enter_context(_process(command, settings, log, folder))
            running.append((process, answer, log))
        for first, (process, answer, log) in enumerate(running):
            try:
                process.wait(deadline - time.monotonic())
            except subprocess.TimeoutExpired:
                raise EngineFailed(f"no answer after {timeout:.0f} s\n{_tail(log)}") from None
            if process.returncode or not answer.exists():
                raise EngineFailed(f"engine exited with status {process.returncode}\n{_tail(log)}")
            results[first::at_once] = json.loads(answer.read_text(encoding="utf-8"))
    return results


def run_engine(
    python: Path,
    tree: Path,
    job: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> dict[str, Any]:
    """One job of `run_engines`, and its result."""
    return run_engines(python, tree, [job], environ=environ, timeout=timeout)[0]


@contextlib.contextmanager
def serve(
    python: Path,
    tree: Path,
    engine: Mapping[str, Any],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    timeout: float = 300,
    launch: Sequence[str] | None = None,
) -> Iterator[Server]:
    """`vllm serve` on 127.0.0.1 at a free port, stopped at the end of the `with` block.

    `launch` are the words to start it with, if not with `python`, before model and options.

    `engine` holds arguments of vllm.LLM, `model` among them, laid over ENGINE_DEFAULTS. Output goes
    to the file `log`. Raises EngineFailed when it exits or is not ready within `timeout` seconds.
    """
    options = {**ENGINE_DEFAULTS, **engine}
    command = list(launch or [str(python), "-m", "vllm.entrypoints.cli.main", "serve"])
    command += [str(options.pop("model"))]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is False:
            command.append("--no-" + flag[2:])
        elif isinstance(value, dict | list):
            command += [flag, json.dumps(value)]
        else:
            command += [flag, str(value)]
    # The engine core lives in a process of its own, as it does for a user.
    settings = engine_environ(tree, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **(environ or {})})
    with launched(command, settings, log=log, timeout=timeout) as server:
        yield server


@contextlib.contextmanager
def launched(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    log: Path,
    timeout: float,
    model: str = "standin",
    waiting: Callable[[float], None] = lambda seconds: None,
) -> Iterator[Server]:
    """The server that the words of a `vllm serve` start, once it answers; stopped after the block.

    It is given 127.0.0.1, a free port and the name `model`. `waiting` is called every half second
    until then, with the seconds so far. Raises EngineFailed as `serve` does.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", model]
    with (
        tempfile.TemporaryDirectory(prefix="standin-") as folder,
        _process(words, environ, log, Path(folder)) as process,
    ):
        started = time.monotonic()
        while not _healthy(url):
            waited = time.monotonic() - started
            if process.poll() is not None:
                raise EngineFailed(f"server exited with {process.returncode}\n{_tail(log)}")
            if waited > timeout:
                raise EngineFailed(f"server not ready after {timeout:.0f} s\n{_tail(log)}")
            waiting(waited)
            time.sleep(0.5)
        yield Server(url, log, process, model)


def makers_sha256() -> str:
    """Tells whether a checkpoint in the cache was made by the present source, in hex."""
    return hashlib.sha256(_makers()).hexdigest()


def _makers() -> bytes:
    """The source that decides what is in a checkpoint."""
    files = [p for p in sorted(Path(__file__).parent.glob("*.py")) if p.name not in _NOT_MAKERS]
    return b"\0".join(path.read_bytes() for path in files)


def make_checkpoint(python: Path, call: str, **arguments: Any) -> Path:
    """A checkpoint made by `call` ("module:function") in `python`, kept in the user's cache.

    The function gets the folder to write to and `arguments` (JSON values). What is kept is used
    again only for the same call, the same arguments and the same source of this package. Raises
    subprocess.CalledProcessError when it fails, with its output on standard error.
    """
    asked = json.dumps([call, arguments], sort_keys=True).encode()
    content = b"\0".join([asked, _makers()])
    name = f"{call.rpartition(':')[2]}-{hashlib.sha256(content).hexdigest()[:16]}"
    kept = cache_root() / "checkpoints" / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    (kept.parent / f"{name}{MADE_BY}").write_text(makers_sha256())
    if kept.exists():
        return kept
    code = (
        "import importlib, json, pathlib, sys\n"
        "module, _, function = sys.argv[1].partition(':')\n"
        "make = getattr(importlib.import_module(module), function)\n"
        "make(pathlib.Path(sys.argv[2]), **json.loads(sys.argv[3]))\n"
    )
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="part-") as folder:
        made = Path(folder) / name
        command = [str(python), "-c", code, call, str(made), json.dumps(arguments)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environ, cwd=folder, stdout=sys.stderr)
        try:
            made.rename(kept)
        except OSError:  # another process was faster
            if not kept.exists():
                raise
    return kept


@contextlib.contextmanager
def _process(
    command: Sequence[str], environ: Mapping[str, str], log: Path, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`command` in a session of its own, which is gone, children included, after the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=folder,  # not the checkout: its folders must not be importable by accident
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                # Its children may hold a GPU's memory, which the next engine wants, for a while.
                for _ in range(300):
                    os.killpg(process.pid, 0)
                    time.sleep(0.1)
            process.wait()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]


def cache_root() -> Path:
    """This repository's folder in the user's cache (the one that tools/bootstrap.py uses)."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "vllm-kimi-eagle3"
