"""What the doctor knows of how each release reads a drafter, against that release's source."""

from __future__ import annotations

import re
from pathlib import Path

from advice.rules import Rules
from advice.serve import OPTIONS
from patchset.releases import Release

MODELS = "vllm/model_executor/models"


def test_rules_are_those_of_the_release(source: Path, release: Release) -> None:
    rules = Rules(release.version)

    def text(path: str) -> str:
        place = source / path
        return place.read_text(encoding="utf-8") if place.is_file() else ""

    registry = text(f"{MODELS}/registry.py")
    classes = re.findall(r'"(\w+)": \("(?:llama|deepseek|qwen3)_eagle3"', registry)
    assert set(classes) == rules.architectures
    llama, mla = text(f"{MODELS}/llama_eagle3.py"), text(f"{MODELS}/deepseek_eagle3.py")
    assert ("model.fc_norm is not None" in llama) == rules.since("0.22.0")
    assert bool(mla) == rules.since("0.18.0")
    assert ("model.fc_norm is not None" in mla) == rules.since("0.23.0")
    assert ("norm_before_fc" in llama) == rules.since("0.18.0")
    assert "norm_before_fc" not in mla
    assert ("hf_to_vllm_mapper" in mla) == rules.since("0.25.0")
    assert ("draft_id_to_target_id = None" in llama) == rules.since("0.30.0")
    speculators = text("vllm/transformers_utils/configs/speculators/algos.py")
    eagle3 = speculators[speculators.index("def update_eagle3") :]
    eagle3 = eagle3.partition("\n@register")[0]
    assert ('"fc_norm"' in eagle3) == rules.since("0.25.0")
    assert ('"norm_before_fc"' in eagle3) == rules.since("0.19.0")
    assert '"num_aux_hidden_states"' not in eagle3
    assert ("kimi_k2=" in text("vllm/transformers_utils/config.py")) == rules.since("0.18.0")

    first = text("vllm/v1/worker/gpu_model_runner.py")
    ids = first[first.index("def _get_eagle3_aux_layers_from_config") :].partition("\n    def ")[0]
    assert ("eagle_config" in ids) == rules.since("0.22.0")
    second = text("vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py")
    assert not re.search(r"eagle_config\S*\.get\(\s*.eagle_aux", second)
    # The V2 runner is for every model from the release on that no longer lists its models.
    config = text("vllm/config/vllm.py")
    chosen = "def use_v2_model_runner" in config and "DEFAULT_V2_MODEL_RUNNER_" not in config
    assert chosen == rules.second_runner


def test_the_release_has_the_options_that_the_doctor_names(source: Path) -> None:
    """Chat options are declared as fields of a class; their flags are made of the names."""
    place = source / "vllm"
    flags = (place / "engine/arg_utils.py").read_text(encoding="utf-8")
    # The file moved; it is the one that declares them.
    files = [path.read_text(encoding="utf-8") for path in (place / "entrypoints").rglob("*.py")]
    chat = "\n".join(text for text in files if "enable_auto_tool_choice: " in text)
    for option in OPTIONS:
        field = option.removeprefix("--").replace("-", "_")
        assert f'"{option}"' in flags or re.search(rf"^    {field}: ", chat, re.MULTILINE), option
    assert '"bfloat16"' in (place / "config/cache.py").read_text(encoding="utf-8")
