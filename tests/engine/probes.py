"""Functions that run inside the engine's process (the `probe` of a job)."""

import math
from typing import Any


def likely_continuations(
    llm: Any, prompt: list[int], temperature: float, length: int, least: float
) -> list[tuple[list[int], float]]:
    """Continuations of `length` tokens that are sampled with probability `least` or more, exactly.

    The probabilities are the product of the target's own next-token distributions.
    """
    from vllm import SamplingParams

    everything = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    found: list[tuple[list[int], float]] = [([], 1.0)]
    for _ in range(length):
        prefixes = [{"prompt_token_ids": prompt + tokens} for tokens, _ in found]
        outputs = llm.generate(prefixes, everything, use_tqdm=False)
        longer = []
        for (tokens, probability), output in zip(found, outputs, strict=True):
            entries = output.outputs[0].logprobs[0]
            weights = {t: math.exp(e.logprob / temperature) for t, e in entries.items()}
            total = sum(weights.values())
            longer += [([*tokens, t], probability * w / total) for t, w in weights.items()]
        found = [pair for pair in longer if pair[1] >= least]
    return found


def compiled_graphs(llm: Any) -> int:
    """How many graphs Dynamo has handed to a compiler in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
