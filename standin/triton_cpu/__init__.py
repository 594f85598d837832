"""A Triton backend `cpu` that can do nothing: vLLM from 0.23 asks for one before it keeps Triton,
and some releases for a distribution `vllm` whose version says `cpu`.

Kernels run in Triton's interpreter (`TRITON_INTERPRET=1`), which needs neither compiler nor driver.
Both are announced in standin/plugin.
"""
