# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests that the workers of an engine that run different vLLM code do not start."""

import multiprocessing
from pathlib import Path

import pytest

from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.v1.worker import gpu_worker

pytestmark = pytest.mark.cpu_test

WORKER = "v1/worker/gpu_worker.py"


def _install(folder: Path, **changed: str) -> Path:
    """A small vLLM of three files, some with other content."""
    content = {WORKER: "runner = 1\n", "config.py": "a = 1\n", "_version.py": "v = 1\n"}
    for name, text in {**content, **changed}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "vllm" / WORKER


def _start_worker(rank: int, files: list[Path], store: str, results) -> None:
    """What a worker does before it loads a model, up to the model parallel groups."""
    gpu_worker.__file__ = str(files[rank])
    gpu_worker.ensure_model_parallel_initialized = lambda *args: None
    vllm_config = VllmConfig(
        parallel_config=ParallelConfig(
            tensor_parallel_size=len(files), distributed_executor_backend="mp"
        )
    )
    try:
        with set_current_vllm_config(vllm_config):
            gpu_worker.init_worker_distributed_environment(
                vllm_config, rank, f"file://{store}", rank, "gloo"
            )
    except RuntimeError as error:
        results.put(str(error))
    else:
        results.put(None)


def _start(tmp_path: Path, files: list[Path]) -> list[str | None]:
    """Start one worker with each installation; what they die of."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    store = str(tmp_path / "store")
    workers = [
        context.Process(target=_start_worker, args=(rank, files, store, results))
        for rank in range(len(files))
    ]
    for worker in workers:
        worker.start()
    errors = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    return errors


def test_worker_with_an_edited_file_is_named(tmp_path: Path):
    files = [
        _install(tmp_path / "a"),
        _install(tmp_path / "b"),
        _install(tmp_path / "c", **{"config.py": "a = 2\n"}),
    ]
    for error in _start(tmp_path, files):
        assert error is not None
        assert "rank 2 on " in error
        assert "has another config.py than rank 0" in error


def test_version_and_additional_files_are_no_reason(tmp_path: Path):
    files = [
        _install(tmp_path / "a"),
        _install(tmp_path / "b", **{"_version.py": "v = 2\n", "scratch.py": "\n"}),
    ]
    assert _start(tmp_path, files) == [None, None]
