"""What to expect of a target, a drafter, a release and cards together, from files alone.

No printing, no global state; imports neither vllm nor torch nor transformers.
"""
