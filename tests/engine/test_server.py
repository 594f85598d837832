"""Once through the real OpenAI server: same answers with a drafter, and its counters move."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin.engine import serve

from engine.support import Engine


def picture() -> str:
    """A data URL of a small image in two colours."""
    # A PPM file needs no library to write: 56 x 56 pixels, red above blue.
    pixels = io.BytesIO(b"P6 56 56 255\n" + b"\xff\x00\x00" * 1568 + b"\x00\x00\xff" * 1568)
    return "data:image/x-portable-pixmap;base64," + base64.b64encode(pixels.read()).decode()


def chats() -> list[dict[str, Any]]:
    image = {"type": "image_url", "image_url": {"url": picture()}}
    contents: list[Any] = [
        "baba dada zuzi",
        [{"type": "text", "text": "bidi bodo"}, image, {"type": "text", "text": "gaga"}],
    ]
    common = {"model": "standin", "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    return [{**common, "messages": [{"role": "user", "content": c}]} for c in contents]


def answers(
    engine: Engine, options: dict[str, Any], log: Path
) -> tuple[list[str], dict[str, float]]:
    """The server's answers to `chats()`, and its metrics after them."""
    with serve(engine.python, engine.tree, options, log=log) as server:
        texts = []
        for chat in chats():
            choice = server.post("/v1/chat/completions", chat)["choices"][0]
            texts.append(choice["message"]["content"])
        return texts, server.metrics()


def test_chat(
    patched: Engine, target: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    drafter = checkpoint(
        "standin.drafter:make_drafter", style="llama", trained=True, target=str(target)
    )
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
    plain = {"model": str(target), "max_num_batched_tokens": 512}
    want, without = answers(patched, plain, tmp_path / "plain.log")
    got, metrics = answers(
        patched, {**plain, "speculative_config": speculation}, tmp_path / "drafted.log"
    )
    assert got == want
    assert len(set(want)) == 2
    assert all(len(text.split()) == 32 for text in want)
    assert "vllm:spec_decode_num_drafts_total" not in without
    drafts = metrics["vllm:spec_decode_num_drafts_total"]
    assert drafts > 0
    assert metrics["vllm:spec_decode_num_draft_tokens_total"] == 3 * drafts
    per_position = [
        metrics[f"vllm:spec_decode_num_accepted_tokens_per_pos_total[{i}]"] for i in range(3)
    ]
    assert sum(per_position) == metrics["vllm:spec_decode_num_accepted_tokens_total"]
    assert per_position == pytest.approx(sorted(per_position, reverse=True))
