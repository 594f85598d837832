"""Two workers on two nodes of a Ray cluster, both on this machine: as with vLLM's own processes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from standin.engine import engine_environ, run_engines

import bootstrap
from engine.support import Engine, Setting, good
from engine.test_compiled_and_parallel import check, job

LOCK = Path(__file__).resolve().parents[2] / "requirements" / "ray.txt"
SETTING = Setting("0.32.0", runner=2, mla=True)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["tensor", "pipeline"])
def test_two_nodes(
    split: str, engine_of: Callable[[Setting], Engine], checkpoint: Callable[..., Path]
) -> None:
    if split == "pipeline":
        SETTING.require("F17")
    engine = engine_of(SETTING)
    drafter = {"taps": (2, 4, 7), "ids": (2, 4, 7), "style": "mla"}
    made = checkpoint("standin.constructed:make_constructed_set", drafters={"mla": drafter})
    wanted = job(
        made,
        "mla",
        **{f"{split}_parallel_size": 2, "distributed_executor_backend": "ray"},
    ) | {"probe": "tests.engine.ray_job:places", "probe_arguments": {}}
    ray = bootstrap.site_packages(bootstrap.environment(LOCK))
    environ = {**SETTING.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    environ["PYTHONPATH"] = os.pathsep.join([engine_environ(engine.tree)["PYTHONPATH"], str(ray)])
    (result,) = run_engines(
        engine.python,
        engine.tree,
        [wanted],
        environ=environ,
        timeout=1200,
        module="tests.engine.ray_job",
    )
    check(result, right=True)
    assert len(set(good(result)["probe"])) == 2, "one worker on each node"
