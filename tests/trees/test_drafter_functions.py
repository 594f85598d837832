"""What the patches for drafters do, in each release's own functions, without an engine.

The engine runs on a few releases only (tests/engine); here the patched functions of every release
are taken out of its source and run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from patchset.probes import Code, _run
from patchset.project import Project
from patchset.releases import Release
from patchset.source import open_source
from trees.support import pins

pytestmark = pytest.mark.network

CONFIG = "vllm/config/speculative.py"
V1 = "vllm/v1/worker/gpu_model_runner.py"
V2_EAGLE = "vllm/v1/worker/gpu/spec_decode/eagle"
V2 = f"{V2_EAGLE}/eagle3_utils.py"
KEY = "eagle_aux_hidden_state_layer_ids"
LAYERS, HIDDEN = 61, 7168  # Kimi-K2.5's


class Log:
    """vLLM's logger: keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info_once(self, *args: object) -> None:
        pass

    def warning_once(self, text: str, *args: object) -> None:
        self.warnings.append(text % args)


@pytest.fixture(scope="module")
def code(pristine: Path, project: Project, release: Release) -> Iterator[Code]:
    """The patched source of one release."""
    after: dict[str, bytes | None] = {}
    with open_source(pristine) as read:
        for step in project.series(release.version).forward(read):
            after.update(step.files)
        yield Code(lambda path: after[path] if path in after else read(path))


@pytest.fixture(scope="module")
def released(pristine: Path) -> Iterator[Code]:
    """The source of the same release as published."""
    with open_source(pristine) as read:
        yield Code(read)


def resolve(code: Code, fields: dict[str, Any], fc: int | None = 3) -> tuple[Any, Log]:
    """The drafter's configuration after ours was made of it, and what was logged."""
    name = "_resolve_aux_hidden_state_layer_ids"
    log = Log()
    function = code.get(CONFIG, f"SpeculativeConfig.{name}")
    hf_config = SimpleNamespace(**fields)
    _run(function, logger=log)[name](
        SimpleNamespace(
            target_model_config=SimpleNamespace(
                get_total_num_hidden_layers=lambda: LAYERS, get_hidden_size=lambda: HIDDEN
            ),
            draft_model_config=SimpleNamespace(
                hf_config=hf_config, model="drafter", get_hidden_size=lambda: HIDDEN
            ),
            _get_draft_fc_input_size=lambda: None if fc is None else fc * HIDDEN,
        )
    )
    return hf_config, log


def read_by_runners(code: Code, hf_config: Any) -> set[tuple[int, ...] | None]:
    """What the release's runners, one or two, take from that configuration."""
    drafter = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=hf_config))
    name = "_get_eagle3_aux_layers_from_config"
    function = code.get(V1, f"GPUModelRunner.{name}")
    found = {_run(function)[name](SimpleNamespace(speculative_config=drafter))}
    name = "get_eagle3_aux_layers_from_config"
    if second := code.find(V2, name):
        found.add(_run(second)[name](drafter))
    return found


@pytest.mark.parametrize(
    ("ids", "inputs"),
    [([2, 30, 58], (2, 30, 58)), ([1, 29, 57], (2, 30, 58)), ([0, 30, 61], (0, 30, 61))],
)
def test_both_runners_read_nested_ids_of_either_convention(
    code: Code, ids: list[int], inputs: tuple[int, ...]
) -> None:
    hf_config, log = resolve(code, {"eagle_config": {KEY: ids}})
    assert read_by_runners(code, hf_config) == {inputs}
    assert log.warnings == []


def test_a_top_level_list_is_literal_unless_it_is_the_trainers_default(code: Code) -> None:
    hf_config, log = resolve(code, {KEY: [1, 30, 58], "eagle_config": {KEY: [2, 30, 58]}})
    assert read_by_runners(code, hf_config) == {(1, 30, 58)}
    assert log.warnings == []
    hf_config, log = resolve(code, {KEY: [1, 29, 57]})
    assert read_by_runners(code, hf_config) == {(2, 30, 58)}
    assert "(2, 30, 58)" in log.warnings[0]


def test_without_ids_the_target_has_its_default(code: Code) -> None:
    hf_config, _ = resolve(code, {"eagle_config": None})
    assert read_by_runners(code, hf_config) == {None}


@pytest.mark.parametrize(
    ("fields", "fc", "words"),
    [
        ({KEY: [2, 30, 62]}, 3, "from 0 to 61"),
        ({KEY: [30, 2, 58]}, 3, "ascending"),
        ({KEY: ["2", "30", "58"]}, 3, "integers"),
        ({"eagle_config": {KEY: [2, 30]}}, 3, "takes 21504 inputs"),
        ({KEY: [2, 20, 30, 58]}, 3, "give 28672"),
        ({"target_hidden_size": 4096}, None, "made for a target of hidden size 4096"),
    ],
)
def test_ids_that_do_not_fit_are_refused(
    code: Code, fields: dict[str, Any], fc: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        resolve(code, fields, fc)


def test_only_a_request_that_is_too_long_for_the_drafter_is_left_without_drafts(code: Code) -> None:
    name = "_exceeds_drafter"
    function = code.get("vllm/v1/core/sched/scheduler.py", f"Scheduler.{name}")
    log = Log()
    exceeds = _run(function, logger=log)[name]
    scheduler = SimpleNamespace(drafter_max_model_len=48, num_spec_tokens=3, max_model_len=128)
    assert not exceeds(scheduler, SimpleNamespace(num_computed_tokens=45))
    assert log.warnings == []
    assert exceeds(scheduler, SimpleNamespace(num_computed_tokens=46))
    assert "48 tokens" in log.warnings[0]
    scheduler.drafter_max_model_len = None
    assert not exceeds(scheduler, SimpleNamespace(num_computed_tokens=4000))


def overridden(code: Code, monkeypatch: pytest.MonkeyPatch, **draft: Any) -> Any:
    """The attention backend under which the V2 runner builds a drafter beside an MLA target."""

    def replace(config: Any, **changes: Any) -> Any:
        return SimpleNamespace(**{**vars(config), **changes})

    target = SimpleNamespace(
        model_config=SimpleNamespace(use_mla=True),
        attention_config=SimpleNamespace(backend="TRITON_MLA"),
        load_config=None,
    )
    drafter = SimpleNamespace(
        draft_model_config=SimpleNamespace(use_mla=draft["use_mla"]),
        attention_backend=draft.get("attention_backend"),
        kv_cache_dtype=None,
        moe_backend=None,
    )
    name = "apply_draft_overrides"
    if function := code.find(CONFIG, f"SpeculativeConfig.{name}"):
        table = [("attention_backend", "attention_config", "backend")]
        run = _run(function, replace=replace, _DRAFT_VLLM_CONFIG_OVERRIDES=table)
        return run[name](drafter, target).attention_config.backend

    class Loaded(Exception):
        """Carries the configuration, where the model would be loaded."""

    def get_model(*, vllm_config: Any, **_: Any) -> None:
        raise Loaded(vllm_config)

    for module in ("vllm", "vllm.compilation"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    backends: Any = ModuleType("vllm.compilation.backends")
    backends.set_model_tag = lambda _: nullcontext()
    monkeypatch.setitem(sys.modules, backends.__name__, backends)
    name = "load_eagle_model"
    used = {"get_model": get_model, "get_pp_safe_draft_load_config": lambda config: config}
    run = _run(code.get(f"{V2_EAGLE}/utils.py", name), replace=replace, **used)
    target.speculative_config = drafter
    with pytest.raises(Loaded) as loaded:
        run[name](None, target)
    return loaded.value.args[0].attention_config.backend


FROM_V2 = [p for p in pins(series=True) if Version(p.values[0].version) >= Version("0.29.0")]


@pytest.mark.parametrize("release", FROM_V2, indirect=True, scope="module")
def test_an_mla_backend_reaches_mla_drafters_only(
    code: Code, released: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F06, with the V2 runner. 0.29.0 as released does not even take the drafter's own."""
    own = {"use_mla": False, "attention_backend": "FLASH_ATTN"}
    assert overridden(released, monkeypatch, use_mla=False) == "TRITON_MLA"
    assert overridden(code, monkeypatch, use_mla=False) is None
    assert overridden(code, monkeypatch, use_mla=True) == "TRITON_MLA"
    assert overridden(code, monkeypatch, **own) == "FLASH_ATTN"


@pytest.mark.parametrize("release", FROM_V2, indirect=True, scope="module")
@pytest.mark.parametrize(
    ("rope_type", "asked", "runner", "limit"),
    [
        ("default", None, 1, 48),  # V1 has no way to go on
        ("default", None, 2, None),  # the RoPE table was extended
        ("default", 40, 2, 40),  # ... but that was asked for
        ("yarn", None, 2, 48),
    ],
)
def test_the_drafters_length(
    code: Code, rope_type: str, asked: int | None, runner: int, limit: int | None
) -> None:
    names = ("get_drafter_max_model_len", "draft_shares_target_positions")
    pieces = [code.get(CONFIG, f"SpeculativeConfig.{name}") for name in names]
    outer = code.find(CONFIG, "_rope_only_sizes_cache")
    ropes = {
        "iter_rope_parameters": lambda config: [config.rope_parameters],
        "is_rope_parameters_nested": lambda rope: False,
        "_CACHE_ONLY_ROPE_TYPES": {"default"},
    }
    found = _run(*pieces, *([outer] if outer else []), **ropes)
    hf_config = SimpleNamespace(rope_parameters={"rope_type": rope_type})
    drafter = SimpleNamespace(
        method="eagle3",
        max_model_len=asked,
        draft_model_config=SimpleNamespace(max_model_len=asked or 48, hf_config=hf_config),
    )
    drafter.draft_shares_target_positions = lambda: found[names[1]](drafter)
    assert found[names[0]](drafter, 128, runner == 2) == limit
    assert found[names[0]](drafter, 32, runner == 2) is None
