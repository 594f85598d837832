"""The engine's side of `standin.engine.run_engines`: `python -m standin.job JOBS ANSWER`."""

import gc
import importlib
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any


class _Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def image_of(size: list[int], seed: int) -> Any:
    """A PIL image of `size` (width, height) pixels of noise, the same for the same seed."""
    import numpy as np
    from PIL import Image

    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """One engine from start to shutdown; see `standin.engine.run_engines` for the format."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    result: dict[str, Any] = {"runs": []}
    kept = _Messages()
    logging.getLogger("vllm").addHandler(kept)
    llm = None
    try:
        started = time.perf_counter()
        llm = LLM(**job["engine"], disable_log_stats=False)
        result["seconds"] = {"start": time.perf_counter() - started}
        if "probe" in job:
            module, _, function = job["probe"].partition(":")
            probe = getattr(importlib.import_module(module), function)
            result["probe"] = probe(llm, **job.get("probe_arguments", {}))
        for run in job.get("runs", []):
            result["runs"].append(_run(llm, run))
    except Exception as error:
        result["error"] = {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
    finally:
        logging.getLogger("vllm").removeHandler(kept)
        result["log"] = kept.messages
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()
    return result


def _run(llm: Any, run: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    prompts, params = [], []
    for request in run["requests"]:
        prompt = {k: v for k, v in request.items() if k in ("prompt", "prompt_token_ids")}
        if images := request.get("images"):
            chunks = [{"type": "image", "image": image_of(**i), "uuid": None} for i in images]
            prompt["multi_modal_data"] = {"vision_chunk": chunks}
        prompts.append(prompt)
        sampling = {"temperature": 0.0, **run.get("sampling", {}), **request.get("sampling", {})}
        params.append(SamplingParams(**sampling))
    before = _metrics(llm)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return {
        "outputs": [_output(output.outputs[0]) for output in outputs],
        "metrics": _difference(before, _metrics(llm)),
        "seconds": seconds,
    }


def _output(completion: Any) -> dict[str, Any]:
    found = {
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
    }
    if completion.logprobs is not None:
        found["logprobs"] = [
            [[token, entry.logprob] for token, entry in position.items()]
            for position in completion.logprobs
        ]
    return found


def _metrics(llm: Any) -> dict[str, Any]:
    """vLLM's counters by name; a vector counter (per position) is a list."""
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:").removeprefix("spec_decode_")
        if type(metric).__name__ == "Counter":
            found[name] = metric.value
        elif type(metric).__name__ == "Vector":
            found[name] = list(metric.values)
    return found


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for name, value in after.items():
        if isinstance(value, list):
            old = before.get(name) or [0] * len(value)
            result[name] = [new - o for new, o in zip(value, old, strict=True)]
        else:
            result[name] = value - before.get(name, 0)
    return result


def main() -> None:
    """Read the jobs, run them in turn, write the answer whole or not at all."""
    jobs, answer = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    text = json.dumps([run_job(job) for job in jobs])
    answer.with_suffix(".part").write_text(text, encoding="utf-8")
    answer.with_suffix(".part").replace(answer)


if __name__ == "__main__":
    main()
