"""Runs under the engine's python: functions that a series touches, one at a time, without vLLM.

`python functions_probe.py FOLDER` reads FOLDER/RELEASE/{stock,patched}/vllm/…, takes single
functions out of those files as they stand there, calls each with the few things that it uses, and
prints what came of it as JSON: release -> state -> case -> result, or "TypeError: …" for an
exception. A case whose file or function a release does not have is left out.

It needs no compiled extension, so one process serves every release.
"""

import ast
import copy
import json
import sys
from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch

MODELS = "vllm/model_executor/models"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
PROPOSER = "vllm/v1/spec_decode/llm_base_proposer.py"


class _Absent(Exception):
    """The release has no such function."""


def function(file: Path, owner: str, name: str, **known: Any) -> Callable[..., Any]:
    """Method `name` of class `owner` in `file`, which finds `known` as its globals."""
    if not file.exists():
        raise _Absent
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    item.decorator_list = []
                    future = ast.parse("from __future__ import annotations").body
                    module = ast.Module([*future, item], type_ignores=[])
                    scope = {"torch": torch, **known}
                    exec(compile(ast.fix_missing_locations(module), str(file), "exec"), scope)
                    found: Callable[..., Any] = scope[name]
                    return found
    raise _Absent


class _Sent(dict[str, Any]):
    """What a stage sends to the next one (IntermediateTensors)."""

    @property
    def tensors(self) -> dict[str, Any]:
        """By name."""
        return self


def text_model(tree: Path, rank: SimpleNamespace) -> type:
    """The class DeepseekV2Model without anything but what it inherits of EagleModelMixin, if so."""
    text = (tree / MODELS / "deepseek_v2.py").read_text(encoding="utf-8")
    if "class DeepseekV2Model(nn.Module, EagleModelMixin)" not in text:
        return SimpleNamespace
    state = ModuleType("vllm.distributed.parallel_state")
    state.__dict__.update(get_pp_group=lambda: rank, model_parallel_is_initialized=lambda: True)
    for name in ("vllm", "vllm.distributed"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules[state.__name__] = state
    mixin = ast.parse((tree / MODELS / "interfaces.py").read_text(encoding="utf-8")).body
    body = [n for n in mixin if isinstance(n, ast.ClassDef) and n.name == "EagleModelMixin"]
    future = ast.parse("from __future__ import annotations").body
    scope: dict[str, Any] = {"bisect_right": bisect_right, "ClassVar": ClassVar}
    exec(compile(ast.Module([*future, *body], type_ignores=[]), "interfaces.py", "exec"), scope)
    return type("DeepseekV2Model", (SimpleNamespace, scope["EagleModelMixin"]), {})


def captured_states(
    tree: Path, layer_ids: tuple[int, ...], starts: tuple[int, ...] = (0,)
) -> list[float]:
    """The states that a target of four layers returns; before layer i the residual stream is i.

    `starts` are the first layers of its pipeline stages, two at most.
    """
    rank = SimpleNamespace(world_size=len(starts))
    forward = function(
        tree / MODELS / "deepseek_v2.py",
        "DeepseekV2Model",
        "forward",
        get_pp_group=lambda: rank,
        islice=islice,
        IntermediateTensors=_Sent,
    )

    def layer(_: Any, states: Any, residual: Any, *rest: Any) -> tuple[Any, Any]:
        total = states if residual is None else states + residual
        return torch.ones(1), total

    def norm(states: Any, residual: Any) -> tuple[Any, Any]:
        states.fill_(-1)  # in place, as the kernel does
        residual.fill_(-1)
        return states, residual

    output: Any = None
    for start, end in zip(starts, (*starts[1:], 4), strict=True):
        rank.is_first_rank, rank.is_last_rank = start == 0, end == 4
        target = text_model(tree, rank)(
            config=SimpleNamespace(),
            layers=[layer] * 4,
            start_layer=start,
            end_layer=end,
            norm=norm,
        )
        if hasattr(target, "_set_aux_hidden_state_layers"):
            target._set_aux_hidden_state_layers(layer_ids)
        else:
            target.aux_hidden_state_layers = layer_ids
        output = forward(target, torch.zeros(1), torch.zeros(1), output, torch.zeros(1))
    _, states = output
    return [float(state) for state in states]


def combined(tree: Path, file: str, owner: str) -> list[float]:
    """What a drafter makes of three states of 1, with norms that scale by 2, 3 and 5."""
    combine = function(tree / MODELS / file, owner, "combine_hidden_states")
    norms = [lambda state, factor=factor: factor * state for factor in (2, 3, 5)]
    model = SimpleNamespace(
        fc=lambda state: state,
        fc_norm=norms,
        num_aux_hidden_states=3,
        norm_before_fc=False,
        use_aux_hidden_state=True,
    )
    found: list[float] = combine(SimpleNamespace(model=model), torch.ones(3)).tolist()
    return found


def rotary_parameters(tree: Path) -> dict[str, Any]:
    """What the attention of an MLA-style drafter is made with, without scaling, theta 50000."""
    made: list[Any] = []
    build = function(
        tree / MODELS / "deepseek_eagle3.py",
        "DeepseekV2Eagle3DecoderLayer",
        "__init__",
        super=lambda: SimpleNamespace(__init__=lambda: None),
        copy=copy,
        get_draft_quant_config=lambda _: None,
        DeepseekV2MLAAttention=lambda *, config, **_: made.append(config),
        DeepseekV2MLP=lambda **_: None,
        RMSNorm=lambda *_, **__: None,
    )
    config = SimpleNamespace(
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_act="silu",
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        # As the config loader has left it.
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
    )
    drafter = SimpleNamespace(use_mla=True)
    layer = SimpleNamespace(_norm_before_residual=None, _norm_after_residual=None)
    build(
        layer,
        SimpleNamespace(
            cache_config=None, speculative_config=SimpleNamespace(draft_model_config=drafter)
        ),
        "",
        config,
    )
    found: dict[str, Any] = made[0].rope_parameters
    return found


def image_behind_the_chunk(tree: Path) -> list[Any]:
    """Embeddings and mask for the drafter, whose last position is an image's first."""
    gather = function(
        tree / RUNNER,
        "GPUModelRunner",
        "_gather_mm_embeddings",
        # From 0.23.0 on it asks for the features that may matter: here the only one does.
        get_mm_features_in_window=lambda features, start, end: (0, len(features)),
        PIN_MEMORY=False,
    )

    def buffer() -> SimpleNamespace:
        cpu = torch.zeros(8, dtype=torch.bool)
        return SimpleNamespace(cpu=cpu, copy_to_gpu=lambda count: cpu[:count])

    place = SimpleNamespace(
        offset=4,
        length=3,
        is_embed=None,
        get_embeds_indices_in_range=lambda start, end: (start, end),
    )
    request = SimpleNamespace(
        num_computed_tokens=0, mm_features=[SimpleNamespace(mm_position=place, identifier="2f1c0e")]
    )
    runner = SimpleNamespace(
        is_mm_embed_idx=0,
        is_mm_embed_buffers=[buffer(), buffer()],
        input_batch=SimpleNamespace(req_ids=["a"]),
        requests={"a": request},
        encoder_cache={},
        _get_encoder_output_from_cache=lambda identifier: None,  # from 0.28.0
        is_multimodal_pruning_enabled=False,
        uses_mrope=False,
    )
    step = SimpleNamespace(total_num_scheduled_tokens=4, num_scheduled_tokens={"a": 4})
    embeddings, mask = gather(runner, step, shift_computed_tokens=1)
    return [len(embeddings), mask.tolist()]


def positions_after_the_limit(tree: Path) -> list[list[int]]:
    """Positions that three draft steps start from, at 2 and at the drafter's last one, 7."""
    calls: list[list[int]] = []

    def kernel(*, positions_1d: Any, out_clamped_positions: Any, **_: Any) -> None:
        calls.append(positions_1d.tolist())
        after = positions_1d + 1
        out_clamped_positions.copy_(torch.where(after >= 8, 0, after))

    update = function(
        tree / PROPOSER,
        "SpecDecodeBaseProposer",
        "_update_positions_dependent_metadata",
        eagle_step_update_slot_mapping_and_metadata=kernel,
    )
    proposer = SimpleNamespace(
        uses_mrope=False,
        uses_xdrope_dim=0,
        draft_uses_xdrope_dim=0,
        positions=torch.zeros(2, dtype=torch.int64),
        max_model_len=8,
        is_shorter_than_target=True,
        _slot_mapping_buffer=torch.zeros(2),
    )
    batch = SimpleNamespace(
        block_table_tensor=None,
        seq_lens=None,
        max_seq_len=8,
        _seq_lens_cpu=None,
        _num_computed_tokens_cpu=None,
        seq_lens_cpu_upper_bound=None,
    )
    positions = torch.tensor([2, 7])
    for _ in range(3):
        positions = update(proposer, positions, batch, 2, 2, 16)
    return calls


CASES: dict[str, Callable[[Path], Any]] = {
    "states at 2": lambda tree: captured_states(tree, (2,)),
    "states at 0": lambda tree: captured_states(tree, (0, 2)),
    "states at 4": lambda tree: captured_states(tree, (2, 4)),
    "stages, at 1": lambda tree: captured_states(tree, (1,), (0, 2)),
    "stages, at 1, 2, 3": lambda tree: captured_states(tree, (1, 2, 3), (0, 2)),
    "stages, at 3, 4": lambda tree: captured_states(tree, (3, 4), (0, 2)),
    "fc_norm, llama": lambda tree: combined(tree, "llama_eagle3.py", "Eagle3LlamaForCausalLM"),
    "fc_norm, mla": lambda tree: combined(
        tree, "deepseek_eagle3.py", "Eagle3DeepseekV2ForCausalLM"
    ),
    "rope_theta, mla": rotary_parameters,
    "image": image_behind_the_chunk,
    "positions": positions_after_the_limit,
}


def answers(tree: Path) -> dict[str, Any]:
    """The result of every case that the release has."""
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        try:
            found[name] = case(tree)
        except _Absent:
            continue
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    """Answer for each release and state."""
    folder = Path(sys.argv[1])
    trees = sorted(folder.glob("*/*"))
    found: dict[str, dict[str, Any]] = {tree.parent.name: {} for tree in trees}
    for tree in trees:
        found[tree.parent.name][tree.name] = answers(tree)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
