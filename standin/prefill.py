"""MLA prefill on a CPU for 0.28.0, which has the decode half only.

It chooses FlashAttention, whose module a CPU cannot import, gathers the cache with a kernel of
CUDA, and merges with one of Triton, which takes minutes in the interpreter. `standin.scaffold` puts
these in their places.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend


class Prefill(MLAPrefillBackend):
    """softmax(q k^T scale) v for each request on its own.

    q and k are [tokens, heads, 192], v and what is returned [tokens, heads, 128]; the logarithm of
    the sum of exponentials, where it is asked for, is [heads, tokens].
    """

    @staticmethod
    def get_name() -> str:
        """Its name in logs."""
        return "STANDIN"

    def run_prefill_new_tokens(
        self, q: Tensor, k: Tensor, v: Tensor, return_softmax_lse: bool, **unused: Any
    ) -> Any:
        """Attention of new tokens to themselves and those before them."""
        bounds = self._prefill_metadata.query_start_loc.tolist()
        both = self._attend(q, k, v, bounds, bounds, causal=True)
        return both if return_softmax_lse else both[0]

    def run_prefill_context_chunk(
        self, chunk: Any, q: Tensor, k: Tensor, v: Tensor, **unused: Any
    ) -> tuple[Tensor, Tensor]:
        """Attention of new tokens to a part of what the cache holds of their requests."""
        new, old = chunk.query_start_loc.tolist(), chunk.cu_seq_lens.tolist()
        return self._attend(q, k, v, new, old, causal=False)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, new: list[int], old: list[int], *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        output, sums = q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(q.shape[1], len(q))
        for at, end, first, last in zip(new, new[1:], old, old[1:], strict=False):
            scores = torch.einsum("qhd,khd->hqk", q[at:end], k[first:last]) * self.scale
            if causal:
                scores += torch.full(scores.shape[1:], float("-inf")).triu(1)
            output[at:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[first:last])
            sums[:, at:end] = scores.logsumexp(-1)
        return output, sums


def gather(
    src_cache: Tensor,
    dst: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    token_to_seq: Tensor,
    num_tokens: int,
    kv_cache_dtype: str,
    scale: Tensor,
    seq_starts: Tensor | None = None,
) -> None:
    """Copies a part of each request's context from `src_cache` [blocks, block size, 576] to `dst`.

    Request i has the rows from `cu_seq_lens[i]` on, and its part begins at `seq_starts[i]`.
    """
    requests = token_to_seq[:num_tokens].long()
    places = torch.arange(num_tokens) - cu_seq_lens[requests]
    if seq_starts is not None:
        places = places + seq_starts[requests]
    size = src_cache.shape[1]
    dst[:num_tokens] = src_cache[block_table[requests, places // size].long(), places % size]


def merge(
    output: Tensor,
    prefix_output: Tensor,
    prefix_lse: Tensor,
    suffix_output: Tensor,
    suffix_lse: Tensor,
    output_lse: Tensor | None = None,
    *unused: None,
) -> None:
    """Attention to all keys from that to the first ones and that to the others.

    Outputs are [tokens, heads, size], the logarithms of their sums of exponentials [heads, tokens]:
    -inf where a request has no such keys.
    """
    share = torch.sigmoid(prefix_lse - suffix_lse).nan_to_num().T.unsqueeze(-1)
    output.copy_(torch.lerp(suffix_output, prefix_output, share))
    if output_lse is not None:
        output_lse.copy_(torch.logaddexp(prefix_lse, suffix_lse))
