"""What a running vLLM server does, measured: its counters, its own client, the report.

No printing and no exit. It may import ``patchset`` and ``advice``, never vllm or torch.
"""
