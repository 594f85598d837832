"""`standin.job` on a Ray cluster of two nodes on this machine: `python -m … JOBS ANSWER`.

A node is a raylet with processes of its own. vLLM asks Ray for a card for each worker, and says of
the CPU that Ray does not know it. So each node claims one card, and the CPU platform claims to be
what Ray calls a card.
"""

import os
from typing import Any

from standin import job


def as_cards() -> None:
    """Let vLLM take what Ray calls a card for this CPU; Ray calls it first in each worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # see standin/scaffold.py; Ray has looked by now
    from vllm.platforms.cpu import CpuPlatform

    platform: Any = CpuPlatform
    platform.ray_device_key = "GPU"


def places(llm: Any) -> list[str]:
    """The ids of the Ray nodes that the workers are on."""
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    return [worker.node_id for worker in executor.ray_worker_handles]


def main() -> None:
    """Make the cluster, run the jobs in a driver on its first node, take it down."""
    os.environ["RAY_TMPDIR"] = os.getcwd()  # goes with this job's folder

    import ray
    from ray.cluster_utils import Cluster

    # Ray would count no card of a node behind this variable, and set it for a worker.
    del os.environ["CUDA_VISIBLE_DEVICES"]
    os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    cluster = Cluster()
    try:
        for _ in range(2):
            cluster.add_node(
                num_cpus=1, num_gpus=1, object_store_memory=80 << 20, include_dashboard=False
            )
        hook = f"{__spec__.name}.as_cards"
        ray.init(address=cluster.address, runtime_env={"worker_process_setup_hook": hook})
        as_cards()
        job.main()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
