"""The doctor on pairs that are right, and on the same pairs spoilt in one way each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advice.checkpoint import open_checkpoint
from advice.checks import Check, worst
from advice.drafter import read_drafter
from advice.fix import corrected, write_fix
from advice.pair import pair_checks
from advice.rules import Rules
from advice.setup import Setup
from advice.target import read_target
from advice.together import Pair
from patchset.errors import IntegrityFault, Refused, UsageFault
from unit.doctor_files import (
    HIDDEN,
    LAYERS,
    VOCABULARY,
    drafter_config,
    drafter_entries,
    make_drafter,
    make_target,
)

SERIES = Rules("0.16.0", frozenset(range(1, 12)))
STOCK = Rules("0.16.0")
WORDS = list(range(3, 90, 2))
IDS = "eagle_aux_hidden_state_layer_ids"


def nested(*ids: Any) -> dict[str, Any]:
    return {"eagle_config": {IDS: list(ids)}}


def top(*ids: Any) -> dict[str, Any]:
    return {"eagle_config": None, IDS: list(ids)}


def judge(
    folder: Path,
    style: str = "llama",
    rules: Rules = SERIES,
    setup: Setup | None = None,
    target: dict[str, Any] | None = None,
    **drafter: Any,
) -> list[Check]:
    return pair_checks(pair_of(folder, style, rules, setup, target, **drafter))


def pair_of(
    folder: Path,
    style: str = "llama",
    rules: Rules = SERIES,
    setup: Setup | None = None,
    target: dict[str, Any] | None = None,
    **drafter: Any,
) -> Pair:
    return Pair(
        read_target(open_checkpoint(str(make_target(folder / "Kimi-K2.5", **(target or {}))))),
        read_drafter(open_checkpoint(str(make_drafter(folder / "drafter", style, **drafter)))),
        setup or Setup(rules.version),
        rules,
    )


def bad(checks: list[Check]) -> dict[str, str]:
    return {check.id: check.level for check in checks if check.level in ("warn", "stop")}


RIGHT: dict[str, dict[str, Any]] = {
    "nested ids": {},
    "no ids": {"eagle_config": None},
    "ids of outputs": nested(1, 3, 4),
    "ids at the top": top(2, 4, 5),
    "draft vocabulary": {"words": WORDS},
    "own embedding and head": {
        "extra": [
            ("embed_tokens.weight", "BF16", (VOCABULARY, HIDDEN)),
            ("lm_head.weight", "BF16", (VOCABULARY, HIDDEN)),
        ]
    },
    "EAGLE-3.1": {
        "fc_norm": True,
        "norm_output": True,
        "num_aux_hidden_states": 3,
        "extra": [(f"fc_norm.{i}.weight", "BF16", (HIDDEN,)) for i in range(3)],
    },
    "rotary table": {"extra": [("midlayer.self_attn.rotary_emb.inv_freq", "F32", (4,))]},
}


@pytest.mark.parametrize("style", ["llama", "mla"])
@pytest.mark.parametrize("case", RIGHT)
def test_a_right_drafter_passes(case: str, style: str, tmp_path: Path) -> None:
    assert bad(judge(tmp_path, style, **RIGHT[case])) == {}


# Name -> arguments of make_drafter, and the check that has to say it.
SPOILT: dict[str, tuple[dict[str, Any], str, str]] = {
    "ids that could be of either kind": (nested(2, 4, 7), "pair.ids", "warn"),
    "id beyond the last layer": (nested(2, 4, 9), "pair.ids", "stop"),
    "outputs beyond the last layer": (nested(1, 4, 8), "pair.ids", "stop"),
    "negative id": (nested(-1, 4, 7), "pair.ids", "stop"),
    "id twice": (nested(2, 4, 4), "pair.ids", "stop"),
    "ids out of order": (nested(4, 2, 5), "pair.ids", "stop"),
    "ids that are no numbers": (nested("2", "4", "5"), "pair.ids", "stop"),
    "ids that are no list": ({"eagle_config": {IDS: "2,4,5"}}, "pair.ids", "stop"),
    "fewer ids than fc takes": (nested(2, 4), "pair.fc", "stop"),
    "more ids than fc takes": (nested(2, 4, 5, 7), "pair.fc", "stop"),
    "two lists that disagree": (
        {"eagle_config": {IDS: [3, 5, 6]}, IDS: [2, 4, 5]},
        "pair.ids",
        "warn",
    ),
    "fc of another target": (
        {"entries": [("fc.weight", "BF16", (HIDDEN, 100)), *drafter_entries()[1:]]},
        "pair.fc",
        "stop",
    ),
    "no d2t": ({"words": WORDS, "without": ["d2t"]}, "pair.d2t", "stop"),
    "no head for a draft vocabulary": (
        {"words": WORDS, "without": ["lm_head"]},
        "pair.tensors",
        "stop",
    ),
    "head of another size": (
        {"words": WORDS, "draft_vocab_size": 20},
        "pair.shapes",
        "stop",
    ),
    "d2t that holds tokens": (
        {"words": [at + token for at, token in enumerate(range(88, 128))]},
        "pair.d2t",
        "stop",
    ),
    "d2t that maps two words to one": ({"words": [3, 3, *WORDS[2:]]}, "pair.d2t", "warn"),
    "d2t of zeros": ({"words": list(range(40))}, "pair.d2t", "warn"),
    "t2d of other words": ({"words": WORDS, "held": WORDS[1:]}, "pair.d2t", "warn"),
    "other vocabulary": ({"vocab_size": 130}, "pair.vocabulary", "stop"),
    "fc_norm without tensors": ({"fc_norm": True}, "pair.norms", "stop"),
    "fc_norm tensors without the flag": (
        {"entries": drafter_entries(norms=3)},
        "pair.norms",
        "stop",
    ),
    "too few fc_norm tensors": (
        {"entries": drafter_entries(norms=2), "fc_norm": True},
        "pair.norms",
        "stop",
    ),
    "norm before fc": (
        {"norm_before_fc": True, "extra": [("input_norm.weight", "BF16", (96,))]},
        "pair.norms",
        "stop",
    ),
    "norm_output alone": ({"norm_output": True}, "pair.norms", "warn"),
    "norm before residual": ({"norm_before_residual": True}, "pair.norms", "warn"),
    "d2t of another type": (
        {"words": WORDS, "without": ["d2t"], "extra": [("d2t", "F32", (len(WORDS),))]},
        "pair.d2t",
        "warn",
    ),
    "an fc that is not used": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        "pair.ids",
        "stop",
    ),
    "no down_proj": ({"without": ["midlayer.mlp.down"]}, "pair.tensors", "stop"),
    "half of a fused weight": ({"without": ["midlayer.mlp.gate"]}, "pair.tensors", "stop"),
    "no fc": ({"without": ["fc."]}, "pair.tensors", "stop"),
    "no norm": ({"without": ["norm."]}, "pair.tensors", "stop"),
    "unknown tensor": (
        {"extra": [("midlayer.mlp.bogus.weight", "BF16", (4,))]},
        "pair.tensors-unknown",
        "stop",
    ),
    "names with a prefix": (
        {"without": ["norm."], "extra": [("model.norm.weight", "BF16", (HIDDEN,))]},
        "pair.tensors",
        "stop",
    ),
    "other hidden size": ({"hidden_size": 16}, "pair.hidden", "stop"),
    "other head size": ({"head_dim": 16}, "pair.shapes", "stop"),
    "other MLP": ({"intermediate_size": 64}, "pair.shapes", "stop"),
    "two layers, one there": ({"num_hidden_layers": 2}, "pair.tensors", "stop"),
    "model_type of a target": ({"model_type": "deepseek_v3"}, "pair.model-type", "stop"),
    "unknown class": ({"architectures": ["GemmaForCausalLM"]}, "pair.class", "stop"),
    "FP8 without a configuration": (
        {
            "entries": [
                (name, "F8_E4M3" if "mlp" in name else dtype, shape)
                for name, dtype, shape in drafter_entries()
            ]
        },
        "pair.quantization",
        "stop",
    ),
    "made for another target": ({"_name_or_path": "x/Kimi-K2.6-draft"}, "pair.made-for", "warn"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_drafter_is_told_of(case: str, tmp_path: Path) -> None:
    arguments, where, level = SPOILT[case]
    found = bad(judge(tmp_path, **arguments))
    assert found.get(where) == level, found


def test_the_drafters_own_context(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, max_position_embeddings=100)
    levels = {
        (rules.version, len(rules.patches)): next(
            c for c in pair_checks(replace(pair, rules=rules)) if c.id == "pair.context"
        ).level
        for rules in (SERIES, STOCK, Rules("0.30.0"), Rules("0.33.0"))
    }
    assert levels == {
        ("0.16.0", 11): "warn",
        ("0.16.0", 0): "warn",
        ("0.30.0", 0): "stop",
        ("0.33.0", 0): "warn",
    }
    served = replace(pair, setup=Setup("0.16.0", max_model_len=100), rules=STOCK)
    assert "pair.context" not in bad(pair_checks(served))
    beyond = replace(pair, setup=Setup("0.16.0", max_model_len=5000))
    assert bad(pair_checks(beyond))["pair.context"] == "stop"


@pytest.mark.parametrize(
    ("setup", "level"),
    [
        (Setup("0.16.0", tp=4), None),
        (Setup("0.16.0", tp=3), "stop"),
        (Setup("0.16.0", pp=2), "stop"),
        (Setup("0.16.0", tp=4, dcp=3), "stop"),
    ],
)
def test_parallel_sizes(setup: Setup, level: str | None, tmp_path: Path) -> None:
    assert bad(judge(tmp_path, "mla", setup=setup)).get("pair.parallel") == level


@pytest.mark.parametrize(
    ("rules", "level"),
    [
        (replace(SERIES, version="0.29.0"), "stop"),
        (replace(SERIES, version="0.30.0"), None),
        (replace(STOCK, version="0.30.0"), "stop"),
    ],
    ids=str,
)
def test_pipeline_stages(rules: Rules, level: str | None, tmp_path: Path) -> None:
    found = bad(judge(tmp_path, "mla", rules, Setup(rules.version, pp=2)))
    assert found.get("pair.parallel") == level


def test_decode_context_parallel_wants_an_mla_drafter(tmp_path: Path) -> None:
    setup = Setup("0.16.0", tp=4, dcp=2)
    assert "pair.dcp" in bad(judge(tmp_path / "a", "llama", setup=setup))
    assert "pair.dcp" not in bad(judge(tmp_path / "b", "mla", setup=setup))


@pytest.mark.parametrize(
    ("generation", "level"),
    [({"eos_token_id": [2, 3]}, None), ({}, "warn"), ({"eos_token_id": 500}, "warn")],
)
def test_stop_tokens(generation: Any, level: str | None, tmp_path: Path) -> None:
    found = bad(judge(tmp_path, target={"generation": generation}))
    assert found.get("pair.eos") == level


# How releases without the series read the same drafters: (case, release) -> verdict on the ids.
@pytest.mark.parametrize(
    ("version", "ids", "level"),
    [
        ("0.18.0", nested(1, 3, 4), "pass"),  # ignored, and the default is right
        ("0.18.0", nested(2, 4, 7), "stop"),  # ignored, and the default is another
        ("0.22.1", nested(1, 3, 4), "stop"),  # taken as they are
        ("0.22.1", nested(2, 4, 5), "pass"),
        ("0.32.0", nested(1, 3, 4), "pass"),
        ("0.32.0", nested(2, 4, 7), "stop"),
        ("0.32.0", top(1, 3, 4), "stop"),
        ("0.32.0", top(2, 4, 7), "warn"),
        ("0.32.0", top(0, 4, 5), "stop"),  # F16
        ("0.22.1", top(2, 4, 8), "stop"),  # F16
        ("0.32.0", top(2, 4, 8), "warn"),
        ("0.32.0", top(4, 2, 5), "warn"),  # the target sorts them
        ("0.32.0", nested(2, 4, 9), "warn"),  # ignored, whatever it says
        ("0.32.0", nested("2", "4", "5"), "warn"),
        ("0.32.0", top(2, 4, 9), "stop"),
        ("0.22.1", nested(2, 4, 9), "stop"),
    ],
)
def test_layer_ids_by_release(version: str, ids: Any, level: str, tmp_path: Path) -> None:
    found = judge(tmp_path, rules=Rules(version), **ids)
    assert [check.level for check in found if check.id == "pair.ids"] == [level]


@pytest.mark.parametrize(
    ("version", "style", "level"),
    [
        ("0.21.0", "llama", "stop"),
        ("0.22.0", "llama", None),
        ("0.22.1", "mla", "stop"),
        ("0.23.0", "mla", None),
    ],
)
def test_eagle31_by_release(version: str, style: str, level: str | None, tmp_path: Path) -> None:
    found = judge(tmp_path, style, rules=Rules(version), **RIGHT["EAGLE-3.1"])
    assert bad(found).get("pair.norms") == level


@pytest.mark.parametrize(("version", "level"), [("0.24.0", "warn"), ("0.25.0", "stop")])
def test_an_unknown_tensor_of_an_mla_drafter(version: str, level: str, tmp_path: Path) -> None:
    extra = [("layers.0.bogus.weight", "BF16", (4,))]
    found = bad(judge(tmp_path, "mla", rules=Rules(version), extra=extra))
    assert found["pair.tensors-unknown"] == level


def test_stock_releases_without_the_mla_class(tmp_path: Path) -> None:
    assert bad(judge(tmp_path / "a", "mla", STOCK))["pair.class"] == "stop"
    assert "pair.class" not in bad(judge(tmp_path / "b", "mla", Rules("0.18.0")))


def speculators(**changes: Any) -> dict[str, Any]:
    layer = {k: v for k, v in drafter_config().items() if k not in ("eagle_config",)}
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": VOCABULARY,
        "transformer_layer_config": layer,
        "speculators_config": {
            "verifier": {"name_or_path": "moonshotai/Kimi-K2.5"},
            "proposal_methods": [{"speculative_tokens": 3}],
        },
        **changes,
    }


def test_the_speculators_form(tmp_path: Path) -> None:
    found = judge(tmp_path / "a", config=speculators())
    assert bad(found) == {}
    assert "by both names" in next(c for c in found if c.id == "pair.made-for").reason
    layer = {**speculators()["transformer_layer_config"], "model_type": "mistral"}
    found = judge(tmp_path / "b", config=speculators(transformer_layer_config=layer))
    assert bad(found)["pair.class"] == "stop"
    norms = {"fc_norm": True, "norm_output": True}
    entries = drafter_entries(norms=3)
    for version, level in (("0.24.0", "stop"), ("0.25.0", None)):
        found = judge(
            tmp_path / version,
            rules=Rules(version),
            config=speculators(**norms),
            entries=entries,
        )
        assert bad(found).get("pair.norms") == level


def test_a_drafter_without_safetensors_could_not_be_judged(tmp_path: Path) -> None:
    pair = pair_of(tmp_path)
    (tmp_path / "drafter" / "model.safetensors").unlink()
    drafter = read_drafter(open_checkpoint(str(tmp_path / "drafter")))
    assert bad(pair_checks(replace(pair, drafter=drafter)))["pair.tensors"] == "warn"


FIXABLE: dict[str, dict[str, Any]] = {
    "outputs at the top": top(1, 3, 4),
    "outputs nested": nested(1, 3, 4),
    "other list nested": nested(2, 4, 7),
    "model_type": {"model_type": "deepseek_v3"},
    "draft vocabulary": {"words": WORDS, "draft_vocab_size": 20},
    "fc_norm": {"entries": drafter_entries("mla", norms=3), "norm_output": True},
}


@pytest.mark.parametrize("case", FIXABLE)
def test_the_corrected_copy_stops_no_more(case: str, tmp_path: Path) -> None:
    newest = Rules("0.33.0")
    pair = pair_of(tmp_path, "mla", newest, **FIXABLE[case])
    before = worst(c for c in pair_checks(pair))
    assert before == ("note" if case == "outputs nested" else "stop")
    fix = corrected(pair.target, pair.drafter)
    assert fix.changes
    written = write_fix(tmp_path / "fixed", fix, pair.drafter)
    again = pair_checks(replace(pair, drafter=read_drafter(written)))
    assert worst(again) == ("warn" if case == "other list nested" else "note"), bad(again)


def test_nothing_is_overwritten_and_nothing_written_for_nothing(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, **top(2, 4, 5))
    fix = corrected(pair.target, pair.drafter)
    with pytest.raises(UsageFault, match="exists"):
        write_fix(tmp_path / "drafter", fix, pair.drafter)
    with pytest.raises(Refused, match="to need a change"):
        write_fix(tmp_path / "fixed", fix, pair.drafter)
    assert not (tmp_path / "fixed").exists()


def test_the_target_lends_what_is_missing(tmp_path: Path) -> None:
    tensors = next(c for c in judge(tmp_path) if c.id == "pair.tensors")
    assert "embed_tokens and lm_head from the target" in tensors.reason
    assert LAYERS == 8  # what the ids above are for


@pytest.mark.parametrize(
    ("check", "level", "changes"),
    [
        ("pair.activation", "stop", {"hidden_act": "gelu"}),
        ("pair.tensors", "stop", {"mlp_bias": True}),
        ("pair.tensors", "stop", {"attention_bias": True}),
        ("pair.model-type", "stop", {"model_type": ""}),
        ("pair.quantization", "warn", {"quantization_config": {"quant_method": "fp8"}}),
    ],
)
def test_what_only_the_configuration_asks_for(
    tmp_path: Path, check: str, level: str, changes: dict[str, Any]
) -> None:
    found = {item.id: item.level for item in judge(tmp_path, **changes)}
    assert found[check] == level


def test_nested_ids_that_are_no_list(tmp_path: Path) -> None:
    changes: dict[str, Any] = {IDS: [2, 4, 5], "eagle_config": {IDS: 5}}
    checks = judge(tmp_path, **changes)
    assert any("(5 in eagle_config)" in check.reason for check in checks)


@pytest.mark.parametrize("layers", [1001, 1 << 39])
def test_a_number_of_layers_that_no_model_has(tmp_path: Path, layers: int) -> None:
    with pytest.raises(IntegrityFault, match="at most 1000"):
        judge(tmp_path, num_hidden_layers=layers)


@pytest.mark.parametrize("factor", [0, -2])
def test_a_scaling_that_leaves_no_positions(tmp_path: Path, factor: int) -> None:
    with pytest.raises(IntegrityFault, match="has to be above 0"):
        judge(tmp_path, rope_scaling={"rope_type": "linear", "factor": factor})


def test_a_quantized_module_has_to_have_a_weight(tmp_path: Path) -> None:
    """Whatever else stands in its place is no weight."""
    quantized: dict[str, Any] = {"quantization_config": {"quant_method": "fp8"}}
    for name, level in (("weight_packed", None), ("junk", "stop")):
        entry = (f"midlayer.mlp.up_proj.{name}", "U8", (1,))
        folder = tmp_path / name
        without = ["midlayer.mlp.up_proj"]
        checks = judge(folder, without=without, extra=[entry], **quantized)
        assert bad(checks).get("pair.tensors") == level
