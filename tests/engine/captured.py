"""Runs inside the engine's process: compares the states it captures with transformers'."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from standin.reference import load_target, target_states


def differences(llm: Any, prompts: list[list[int]], length: int) -> dict[str, Any]:
    """Generates `length` tokens after each prompt and looks at all states that the drafter gets.

    For each auxiliary state, in the order in which the drafter gets them:

    * `same`: its largest difference to the tap of that number (`standin.reference`) at any token of
      any text, as a share of the tap's largest value;
    * `next`: the same to the tap after it (the last: before it), which must not be small.

    `rows` counts the states compared, by the largest number of requests that were in a step with
    them; `rejected` those left out because they belong to drafts that were wrong.
    """
    from vllm import SamplingParams

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    steps: list[tuple[list[str], list[int], torch.Tensor, torch.Tensor, torch.Tensor]] = []
    # The first model runner has a drafter, the second one a speculator.
    drafter = runner.drafter if hasattr(runner, "drafter") else runner.speculator
    propose = drafter.propose

    def watched(*given: Any, **named: Any) -> Any:
        if given:
            batch, states = given[0], torch.cat(given[4], dim=-1)
            ids, starts = list(batch.req_ids), batch.query_start_loc_np.tolist()
            tokens, positions = batch.input_ids, batch.positions
        else:
            ids, starts = (
                list(runner.input_batch.req_ids),
                named["common_attn_metadata"].query_start_loc_cpu.tolist(),
            )
            tokens, positions, states = (
                named[f"target_{name}"] for name in ("token_ids", "positions", "hidden_states")
            )
        steps.append((ids, starts, tokens.clone(), positions.clone(), states.clone()))
        return propose(*given, **named)

    drafter.propose = watched
    sampling = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(requests, sampling, use_tqdm=False)

    target = load_target(Path(llm.llm_engine.model_config.model))
    texts, taps = {}, {}
    for prompt, output in zip(prompts, outputs, strict=True):
        text = torch.tensor(prompt + list(output.outputs[0].token_ids))
        texts[output.request_id] = text
        taps[output.request_id] = torch.cat(target_states(target, text[None])[0])
    count = len(next(iter(taps.values())))
    neighbour = [*range(1, count), count - 2]
    scale = torch.stack([t.abs().amax((1, 2)) for t in taps.values()]).amax(0)
    same, other = torch.zeros(count), torch.zeros(count)
    rows, rejected = Counter[int](), 0
    for ids, starts, tokens, positions, states in steps:
        for request, start, end in zip(ids, starts, starts[1:], strict=False):
            # The engine adds a suffix to a request's id.
            name = next(n for n in texts if request == n or request.startswith(f"{n}-"))
            places = positions[start:end]
            known = places < len(texts[name])
            right = known & (
                tokens[start:end] == texts[name][places.clamp(max=len(texts[name]) - 1)]
            )
            right = right.int().cumprod(0).bool()  # nothing after a wrong draft
            rejected += int((~right).sum())
            rows[len(ids)] += int(right.sum())
            got = states[start:end][right].view(-1, count, taps[name].shape[-1]).transpose(0, 1)
            want = taps[name][:, places[right]]
            same = torch.maximum(same, (got - want).abs().amax((1, 2)) / scale)
            other = torch.maximum(other, (got - want[neighbour]).abs().amax((1, 2)) / scale)
    return {
        "same": same.tolist(),
        "next": other.tolist(),
        "rows": dict(rows),
        "rejected": rejected,
    }
