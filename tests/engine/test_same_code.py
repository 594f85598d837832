"""Every worker of an engine has to run the same vLLM code, or the engine says which one does not.

First the function alone, in worker processes that have nothing of vLLM but it; then whole engines.
"""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin.engine import ENGINE_DEFAULTS, engine_environ

from engine.conftest import python_of
from engine.support import Engine, Setting, good, tree
from patchset.download import download
from patchset.project import Project
from patchset.series import changes
from patchset.source import open_source

HOST = socket.gethostname()
START = "The workers of this engine run different vLLM code: "
END = "; install the same vLLM, with the same patches, on every node"
WORKER = "vllm/v1/worker/gpu_worker.py"
OTHER = "vllm/config/parallel.py"


class Case(NamedTuple):
    """Workers, what is special about the copy of one of them, and what each says."""

    workers: int
    odd: dict[str, str]  # files that rank 1 has otherwise
    said: dict[int, str | None]
    stock: tuple[int, ...] = ()
    # In newer releases the workers of one machine find each other in a file.
    file: bool = False


def says(why: str, *ranks: int) -> dict[int, str | None]:
    return dict.fromkeys(ranks, START + why + END)


def who(rank: int, version: str = "1+patched") -> str:
    return f"rank {rank} on {HOST} (vLLM {version})"


def version(told: str) -> str:
    return f"__version__, __version_tuple__ = {told!r}, (1, 0)\n"


SILENT: dict[int, str | None] = {
    rank: f"{START}rank 1 has not told {who(rank)} within 60 s what it runs{END}" for rank in (0, 2)
}
CASES = {
    # Installed otherwise, and with files of a developer beside vLLM's own.
    "equal": Case(
        3,
        {"vllm/_version.py": version("1.dev0"), "vllm/mine.py": "x = 1\n"},
        {0: None, 1: None, 2: None},
    ),
    "one of three": Case(
        3,
        {OTHER: "edited\n", "vllm/_version.py": version("1")},
        says(f"{who(1, '1')} has another config/parallel.py than {who(0)}", 0, 1, 2),
    ),
    "one of two": Case(
        2,
        {WORKER: "\n\n# edited\n"},
        says(f"{who(1)} has another v1/worker/gpu_worker.py than {who(0)}", 0, 1),
    ),
    "stock": Case(3, {}, SILENT, stock=(1,)),
    "stock, file": Case(3, {}, SILENT, stock=(1,), file=True),
    "one of two, file": Case(
        2,
        {OTHER: "edited\n"},
        says(f"{who(1)} has another config/parallel.py than {who(0)}", 0, 1),
        file=True,
    ),
    "alone": Case(1, {}, {0: None}),
}


@pytest.fixture(
    scope="module",
    params=["0.15.0", "0.32.0", *(pytest.param(v, marks=pytest.mark.slow) for v in ("0.23.0",))],
)
def said(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[int, str | None]]:
    """Case -> rank -> what it said, with the function and the torch of a release."""
    folder = tmp_path_factory.mktemp("workers")
    project = Project.here()
    with open_source(download(project.release(request.param).pristine())) as read:
        files = {
            c.path: (c.after or b"").decode()
            for c in changes(project.series(request.param).forward(read), read)
            if c.path == WORKER
        }
        files |= {"vllm/version.py": (read("vllm/version.py") or b"").decode()}
    files |= {OTHER: "", "vllm/_version.py": version("1+patched"), "vllm/__init__.py": ""}
    cases = []
    for name, case in CASES.items():
        trees = [folder / name / str(rank) for rank in range(case.workers)]
        for rank, place in enumerate(trees):
            copy = {**files, **(case.odd if rank == 1 else {})}
            copy[WORKER] = files[WORKER] + case.odd.get(WORKER, "") * (rank == 1)
            for path, text in copy.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_text(text, encoding="utf-8")
        (trees[-1] / "vllm" / ".#lock.py").symlink_to("nobody@nowhere")
        (trees[-1] / "vllm" / "folder.py").mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        store = f"file://{folder}/{port}.store" if case.file else f"tcp://127.0.0.1:{port}"
        described = {"name": name, "trees": [*map(str, trees)], "stock": case.stock, "store": store}
        cases.append(described)
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    probe_file = Path(__file__).with_name("same_code_probe.py")
    python = python_of(Setting(request.param))
    found: dict[str, dict[int, str | None]] = {name: {} for name in CASES}
    with (folder / "log.txt").open("wb") as log:
        workers = [
            subprocess.Popen([python, probe_file, folder, str(rank)], stdout=log, stderr=log)
            for rank in range(3)
        ]
        try:
            for rank, worker in enumerate(workers):
                assert worker.wait(300) == 0, (folder / "log.txt").read_text()
                for name, sentence in json.loads((folder / f"{rank}.json").read_text()).items():
                    found[name][rank] = sentence
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    return found


@pytest.mark.parametrize("case", CASES)
def test_workers(case: str, said: dict[str, dict[int, str | None]]) -> None:
    assert said[case] == CASES[case].said


# Python reads this at each start: the spawned worker of rank 1 imports vLLM from another tree.
HOOK = """
import multiprocessing.spawn as spawn
import os

prepare = spawn.prepare

def with_another_tree(data):
    if data.get("name", "").endswith("-1"):
        trees = {os.environ["FIRST_TREE"]: os.environ["SECOND_TREE"]}
        data["sys_path"] = [trees.get(path, path) for path in data["sys_path"]]
        with open(os.path.join(os.path.dirname(__file__), "second.txt"), "w") as file:
            print(*data["sys_path"], file=file)
    prepare(data)

spawn.prepare = with_another_tree
"""


def start(first: Engine, second: Path, target: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """The result and the log of an engine of two workers, of which the other one has `second`."""
    (folder / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    job = {
        **ENGINE_DEFAULTS,
        "model": str(target),
        "limit_mm_per_prompt": {"vision_chunk": 0},
        "max_model_len": 64,
        "num_gpu_blocks_override": 8,
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
    }
    (folder / "job.json").write_text(json.dumps([{"engine": job}]), encoding="utf-8")
    environ = engine_environ(
        first.tree,
        {
            **first.setting.environ,
            "VLLM_CPU_OMP_THREADS_BIND": "0|1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "FIRST_TREE": str(first.tree),
            "SECOND_TREE": str(second),
        },
    )
    environ["PYTHONPATH"] = os.pathsep.join([str(folder), environ["PYTHONPATH"]])
    done = subprocess.run(
        [first.python, "-m", "standin.job", folder / "job.json", folder / "answer.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        cwd=folder,
        timeout=900,
        check=False,
    )
    result: dict[str, Any]
    (result,) = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return result, done.stdout


SETTING = Setting("0.32.0", 2, mla=True)


@pytest.mark.slow
def test_an_engine_with_one_stock_worker(
    engine_of: Callable[..., Engine], target: Path, tmp_path: Path
) -> None:
    """Every worker with the series: `test_compiled_and_parallel.py`."""
    result, log = start(engine_of(SETTING), tree(SETTING.release, 0), target, tmp_path)
    told = f"RuntimeError: {START}rank 1 has not told rank 0 on {HOST} (vLLM "
    assert told in log, log[-3000:]
    assert "WorkerProc initialization failed" in result["error"]["message"]


@pytest.mark.slow
def test_without_the_patch_such_an_engine_starts_without_a_word(
    engine_of: Callable[..., Engine], target: Path, tmp_path: Path
) -> None:
    """F38: one worker as released, the other with all patches but the one that compares them."""
    (last,) = Project.here().series(SETTING.release).patches[-1:]
    assert last.faults == ("F38",)
    count = len(Project.here().series(SETTING.release).patches)
    second = tree(SETTING.release, count - 1)
    result, log = start(engine_of(SETTING, 0), second, target, tmp_path)
    good(result)
    assert str(second) in (tmp_path / "second.txt").read_text(), "rank 1 has the other tree"
    assert "different vLLM" not in log
