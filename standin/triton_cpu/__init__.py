"""A Triton backend `cpu` that can do nothing: vLLM from 0.23 asks for one before it keeps Triton.

Kernels run in Triton's interpreter (`TRITON_INTERPRET=1`), which needs neither compiler nor driver.
The entry point is in standin/plugin.
"""
