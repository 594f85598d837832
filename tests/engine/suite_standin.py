"""The checks of the Blackwell suite, made ready for the stand-in."""

import json
import random
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from standin.engine import Server, serve

from engine.support import Engine
from suite.campaign import Configuration
from suite.checks import Context, Material
from suite.pictures import halves

DRAFTS = 3
TOKENS = 1 + 8 * (1 + DRAFTS)  # the prompt's own, then whole rounds where every draft is accepted
# The constructed target writes one word after another in the order of their ids: with these words
# from CALL on, and a prompt that ends just before, it calls a tool.
CALL = 100
CALL_WORDS = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.weather:0",
    "<|tool_call_argument_begin|>",
    '{"city":',
    '"Paris"}',
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
# As the stand-in's own, but the prompt ends with the last words of the user.
TEMPLATE = (
    "{%- for message in messages -%}<|im_{{ message.role }}|> {{ message.role }} <|im_middle|>"
    "{%- if message.content is string -%}{{ ' ' + message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type in ['image', 'image_url'] -%}"
    "{{ ' <|media_begin|> image <|media_content|> <|media_pad|> <|media_end|>' }}"
    "{%- else -%}{{ ' ' + part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def calling(target: Path, path: Path) -> Path:
    """A copy of a target whose vocabulary has the words of a tool call."""
    path.mkdir()
    for file in target.iterdir():
        if file.name not in ("tokenizer.json", "tokenizer_config.json"):
            (path / file.name).symlink_to(file)
    tokenizer = json.loads((target / "tokenizer.json").read_bytes())
    words = {i: word for word, i in tokenizer["model"]["vocab"].items()}
    words |= dict(enumerate(CALL_WORDS, CALL))
    tokenizer["model"]["vocab"] = {word: i for i, word in words.items()}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((target / "tokenizer_config.json").read_bytes())
    config["chat_template"] = TEMPLATE
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def material(target: Path) -> Material:
    """What to ask a stand-in, in its own words."""
    vocabulary = json.loads((target / "tokenizer.json").read_bytes())["model"]["vocab"]
    words = {i: word for word, i in vocabulary.items()}
    chance = random.Random(7)

    def text(length: int, last: int) -> str:
        return " ".join(words[i] for i in [*chance.choices(range(150, 498), k=length), last])

    red, green, blue = (200, 30, 30), (30, 200, 30), (30, 30, 200)
    return Material(
        prompts=[text(5 + 3 * n, 150 + 40 * n) for n in range(6)],
        pictures=[(text(4, 300), halves(56, 56, red, blue), halves(56, 56, green, red))],
        tools=[TOOL],
        calling=[text(5, CALL - 1), text(9, CALL - 6)],
        filler=text(400, 200),
        data={"words": [text(6, 150 + 30 * n) for n in range(8)]},
        tokens=TOKENS,
        call_tokens=TOKENS,
    )


def cache_tokens(target: Path, mla: bool) -> int:
    """What 1 GiB of KV cache holds of a target in float32, without a drafter."""
    text = json.loads((target / "config.json").read_bytes())["text_config"]
    rope, nope = text["qk_rope_head_dim"], text["qk_nope_head_dim"]
    keys_and_values = 2 * text["num_attention_heads"] * (nope + rope)
    width = text["kv_lora_rank"] + rope if mla else keys_and_values
    token: int = 4 * text["num_hidden_layers"] * width
    return (1 << 30) // token


def context(target: Path, **more: Any) -> Context:
    """For a server of `target` in float32, without a drafter unless `more` says otherwise."""
    given: dict[str, Any] = {
        "material": material(target),
        "margin": 0.0,
        "draft_lengths": (256,),
        "levels": (1, 4, 16),
        "minutes": 0.2,
        "least_speed_up": 0.0,
    }
    return Context(**given | more)


def configuration(
    name: str,
    engine: Engine,
    target: Path,
    drafter: Path | None = None,
    **more: Any,
) -> Configuration:
    """A server of the stand-in; `more` are fields of the context."""
    options: dict[str, Any] = {
        "model": str(target),
        "enable_auto_tool_choice": True,
        "tool_call_parser": "kimi_k2",
    }
    if not engine.setting.mla:  # see test_images.py
        options["max_num_batched_tokens"] = 512
    if drafter is not None:
        options["speculative_config"] = {
            "method": "eagle3",
            "model": str(drafter),
            "num_speculative_tokens": DRAFTS,
        }

    def start(log: Path) -> AbstractContextManager[Server]:
        environ = engine.setting.environ
        return serve(engine.python, engine.tree, options, log=log, environ=environ)

    known = context(target, **more)
    if drafter is None:
        tokens = cache_tokens(target, engine.setting.mla)
        return Configuration(name, start, replace(known, cache_tokens=tokens))
    drafting = {"drafts": DRAFTS, "published": {"words": 1.0 + DRAFTS}, **more}
    return Configuration(name, start, replace(known, **drafting), "alone")
