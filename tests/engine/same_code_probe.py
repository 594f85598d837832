"""Runs under the engine's python: `check_same_code` of a release, in one of several workers.

`python same_code_probe.py FOLDER RANK` goes through the cases of FOLDER/cases.json. In each it
joins a process group of gloo and calls the function as it stands in this worker's own copy
of vLLM, of which it needs no more than that file and `version.py`. A stock worker does not call it.
It writes what the function said, by case, to FOLDER/RANK.json: null where it let the worker go on.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import torch

WORKER = "vllm/v1/worker/gpu_worker.py"


def check(tree: Path) -> str | None:
    """What the function of `tree` says against this worker's process group."""
    file = tree / WORKER
    text = file.read_text(encoding="utf-8")
    found = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "check_same_code"
    ]
    patient = ast.unparse(found[0])
    assert "timedelta(seconds=60)" in patient
    scope: dict[str, Any] = {"torch": torch, "__file__": str(file)}
    exec(patient.replace("timedelta(seconds=60)", "timedelta(seconds=3)"), scope)
    sys.path.insert(0, str(tree))
    try:
        scope["check_same_code"]()
    except RuntimeError as error:
        return str(error)
    finally:
        sys.path.remove(str(tree))
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]
    return None


def main() -> None:
    """Take the part of one rank in every case that has it."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    said = {}
    for case in json.loads((folder / "cases.json").read_text(encoding="utf-8")):
        if rank >= len(case["trees"]):
            continue
        torch.distributed.init_process_group(
            "gloo",
            init_method=case["store"],
            world_size=len(case["trees"]),
            rank=rank,
        )
        if rank not in case["stock"]:
            said[case["name"]] = check(Path(case["trees"][rank]))
        torch.distributed.barrier()  # the store lives in rank 0
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main()
