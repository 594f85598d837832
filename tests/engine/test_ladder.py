"""Each of the first patches is needed: cut the series after one, and the next fault shows.

The order is that in which releases fail, one layer at a time, until these faults are healed in
0.18.0.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.support import CARRIED, FIRST, Engine, Setting, good
from patchset.project import Project

# The patches applied so far, and the error that the engine then stops with.
RUNGS = [
    ((), "ValidationError", "Eagle3 is only supported for"),
    (("F03",), "AttributeError", "'KimiK25Config' object has no attribute 'image_token_index'"),
    (("F03", "F01"), "RuntimeError", "Model does not support EAGLE3 interface"),
]


def upto(release: str, faults: tuple[str, ...]) -> int:
    """The length of the shortest cut of the release's series that cures `faults`."""
    patches = Project.here().series(release).patches
    cured: set[str] = set()
    for number, patch in enumerate(patches):
        if cured.issuperset(faults):
            return number
        cured.update(patch.faults)
    return len(patches)


@pytest.fixture(scope="module")
def job(target: Path, checkpoint: Callable[..., Path]) -> dict[str, Any]:
    drafter = checkpoint("standin.drafter:make_drafter", style="llama")
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
    return {
        "engine": {"model": str(target), "speculative_config": speculation},
        "runs": [{"requests": [{"prompt": "baba dada"}], "sampling": {"max_tokens": 8}}],
    }


each_release = pytest.mark.parametrize(
    "setting", [FIRST, *(pytest.param(s, marks=pytest.mark.slow) for s in CARRIED)], ids=str
)


@each_release
@pytest.mark.parametrize(("faults", "kind", "message"), RUNGS)
def test_the_next_fault_shows(
    faults: tuple[str, ...],
    kind: str,
    message: str,
    setting: Setting,
    job: dict[str, Any],
    engine_of: Callable[..., Engine],
) -> None:
    (result,) = engine_of(setting, upto(setting.release, faults)).run(job)
    assert "error" in result, "the engine started"
    # 0.17.1 begins with a small letter.
    assert message.lower() in result["error"]["message"].lower()
    assert result["error"]["type"] == kind


@each_release
def test_at_the_top_it_drafts(
    setting: Setting, job: dict[str, Any], engine_of: Callable[..., Engine]
) -> None:
    top = upto(setting.release, ("F03", "F01", "F02"))
    result = good(engine_of(setting, top).run(job)[0])
    assert len(result["runs"][0]["outputs"][0]["token_ids"]) == 8
    assert result["runs"][0]["metrics"]["num_draft_tokens"] > 0


@pytest.mark.slow
def test_what_else_stock_refuses(
    job: dict[str, Any], stock: Engine, checkpoint: Callable[..., Path]
) -> None:
    """F08: MLA-style drafters are unknown; F30: there is no LoRA on the wrapper."""
    drafter = checkpoint("standin.drafter:make_drafter", style="mla")
    speculation = {**job["engine"]["speculative_config"], "model": str(drafter)}
    without = {key: job["engine"][key] for key in job["engine"] if key != "speculative_config"}
    f08, f30 = stock.run(
        {"engine": {**job["engine"], "speculative_config": speculation}},
        {"engine": {**without, "enable_lora": True}},
    )
    assert "model type `kimi_k2`" in f08["error"]["message"]
    assert "does not support LoRA" in f30["error"]["message"]
