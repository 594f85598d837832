"""Drives a release's kimi_k2 tool parser with every kind of split of a stream; prints JSON.

A script for the engine's python with a tree on PYTHONPATH: `tool_parser_probe.py LEVEL`, where the
level is "parser" (its `extract_tool_calls_streaming` alone) or "server" (the chat endpoint's own
generator of chunks around it, with and without a reasoning parser). The report is, for each stream,
`{"calls": how many, "splits": how many, "wrong": how many of them, "example": the first wrong one,
"reasoning_wrong": how many gave another reasoning text, "unstreamed_wrong": whether the whole text
gives anything else}`.

What a stream must give is known from how it is made here, and is what the release's unstreamed
`extract_tool_calls` gives for its whole text, except for calls that never end: those it drops.
"""

import asyncio
import inspect
import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers.kimi_k2_tool_parser import KimiK2ToolParser

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
THINK, THINK_END, TURN_END = "<think>", "</think>", "<|im_end|>"
MARKERS = [SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END, THINK, THINK_END]

Call = tuple[str, str, str]  # id, name, arguments


@dataclass
class Stream:
    """What a model writes, and what a client must get of it."""

    text: str
    content: str
    calls: list[Call] = field(default_factory=list)
    endless: list[Call] = field(default_factory=list)  # the last of `calls`: no end was written
    finish: str = "stop"


def call(name: str, index: int, arguments: str, end: str = CALL_END) -> str:
    return f"{CALL}functions.{name}:{index}{ARGUMENTS}{arguments}{end}"


def got(name: str, index: int, arguments: str) -> Call:
    return (f"functions.{name}:{index}", name, arguments)


NESTED = json.dumps(
    {"q": {"all": [{"k": '"}', "v": None}, {"k": "{[<|", "v": 1.5e3}]}, "s": 'a "b" \\ \n c <x>'}
)
UNICODE = json.dumps({"city": "Tōkyō 東京 🌸👩‍🚀", "größe": "ß"}, ensure_ascii=False)
PLAIN = '{"city": "Paris"}'
LONG = json.dumps({"file": "".join(f"line {i} of a long file\n" for i in range(400))})

STREAMS = {
    "text only": Stream("It is 5 < 6, said <|she|>: a<b.", "It is 5 < 6, said <|she|>: a<b."),
    "text that ends like a marker": Stream("Less than is <", "Less than is <"),
    "one call": Stream(
        f"Let me look.{SECTION}{call('weather', 0, PLAIN)}{SECTION_END}",
        "Let me look.",
        [got("weather", 0, PLAIN)],
    ),
    "nested arguments": Stream(
        f"{SECTION}{call('find', 0, NESTED)}{SECTION_END}", "", [got("find", 0, NESTED)]
    ),
    "unicode": Stream(
        f"Über 東京 🌸{SECTION}{call('weather', 3, UNICODE)}{SECTION_END}",
        "Über 東京 🌸",
        [got("weather", 3, UNICODE)],
    ),
    "parallel calls": Stream(
        f"Three.{SECTION}{call('a', 0, PLAIN)}{call('b', 1, NESTED)}{call('a', 2, PLAIN)}"
        f"{SECTION_END}",
        "Three.",
        [got("a", 0, PLAIN), got("b", 1, NESTED), got("a", 2, PLAIN)],
    ),
    "text between and after": Stream(
        f"Before \n{SECTION}\n noise {call('a', 0, PLAIN)}\n between\n{call('b', 1, '{}')} \n"
        f"{SECTION_END} after",
        "Before \n",
        [got("a", 0, PLAIN), got("b", 1, "{}")],
    ),
    "spaces in a call": Stream(
        f"{SECTION}{CALL} functions.a:0 {ARGUMENTS} {PLAIN} \n{CALL_END}{SECTION_END}",
        "",
        [got("a", 0, PLAIN)],
    ),
    "empty arguments": Stream(
        f"{SECTION}{call('a', 0, '')}{call('b', 1, '{}')}{SECTION_END}",
        "",
        [got("a", 0, ""), got("b", 1, "{}")],
    ),
    "empty section": Stream(f"Nothing.{SECTION}{SECTION_END}", "Nothing."),
    "two sections": Stream(
        f"One.{SECTION}{call('a', 0, PLAIN)}{SECTION_END}Two.{SECTION}{call('b', 1, PLAIN)}"
        f"{SECTION_END}",
        "One.",
        [got("a", 0, PLAIN), got("b", 1, PLAIN)],
    ),
    "a call without an index": Stream(
        f"{SECTION}{call('a', 0, PLAIN)}{CALL}functions.b{ARGUMENTS}{PLAIN}{CALL_END}"
        f"{call('c', 2, PLAIN)}{SECTION_END}",
        "",
        [got("a", 0, PLAIN), got("c", 2, PLAIN)],
    ),
    "section closed early": Stream(
        f"Go.{SECTION}{call('a', 0, PLAIN)}{call('b', 1, NESTED, end='')}{SECTION_END}",
        "Go.",
        [got("a", 0, PLAIN), got("b", 1, NESTED)],
        [got("b", 1, NESTED)],
    ),
    "no section end": Stream(
        f"Go.{SECTION}{call('a', 0, NESTED)}", "Go.", [got("a", 0, NESTED)], finish="length"
    ),
    "cut in the arguments": Stream(
        f"Go.{SECTION}{call('a', 0, PLAIN)}{call('b', 1, NESTED[:38], end='')}",
        "Go.",
        [got("a", 0, PLAIN), got("b", 1, NESTED[:38])],
        [got("b", 1, NESTED[:38])],
        finish="length",
    ),
    "long arguments": Stream(
        f"Write.{SECTION}{call('write', 0, LONG)}{call('a', 1, PLAIN)}{SECTION_END}",
        "Write.",
        [got("write", 0, LONG), got("a", 1, PLAIN)],
    ),
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, as Kimi's is: a character may take several tokens, a marker is one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([stream.text for stream in STREAMS.values()], trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    tokenizer.add_special_tokens([AddedToken(TURN_END, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TURN_END)


TOKENIZER = make_tokenizer()
VOCABULARY: dict[str, int] = TOKENIZER.get_vocab()


Delta = tuple[list[int], str]


def pieces_of(text: str) -> list[tuple[int, str]]:
    """Ids with the text that the engine's detokenizer adds for each, and the end of the turn."""
    stream = decoders.DecodeStream(skip_special_tokens=True)
    ids = TOKENIZER.encode(text)
    pieces = [(i, stream.step(TOKENIZER.backend_tokenizer, i) or "") for i in ids]
    assert "".join(piece for _, piece in pieces) == text
    return [*pieces, (VOCABULARY[TURN_END], "")]


def cut(pieces: list[tuple[int, str]], cuts: tuple[int, ...], lag: int) -> list[Delta]:
    """Deltas that end at `cuts` and at the end; text is `lag` characters late until then.

    With stop strings the engine holds back as many characters as could begin one.
    """
    deltas, begin, sent, text = [], 0, 0, ""
    for end in (*cuts, len(pieces)):
        text += "".join(piece for _, piece in pieces[begin:end])
        upto = len(text) if end == len(pieces) else max(sent, len(text) - lag)
        deltas.append(([i for i, _ in pieces[begin:end]], text[sent:upto]))
        begin, sent = end, upto
    return deltas


def splits(length: int, pairs: int, rounds: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """(cuts, lag) for a stream of `length` tokens.

    All in one, 1 to 9 tokens a delta in every phase, all cuts in two and in three (at most `pairs`
    of either, drawn at random), and `rounds` times cuts at random, with and without a lag.
    """
    chance = random.Random(length)
    yield (), 0
    for step in range(1, 10):
        for phase in range(1, step + 1):
            yield tuple(range(phase, length, step)), 0
    for parts in (1, 2):
        every = list(itertools.combinations(range(1, length), parts))
        yield from ((cuts, 0) for cuts in chance.sample(every, min(pairs, len(every))))
    for _ in range(rounds):
        cuts = sorted(chance.sample(range(1, length), chance.randint(1, length - 1)))
        yield tuple(cuts), chance.choice([0, 0, 1, 3, 7, 20, 40])


@dataclass
class Client:
    """What a client makes of the deltas of one stream."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str | None = None

    def take(self, delta: Any) -> None:
        """`delta`: a DeltaMessage, or a chunk's as a namespace."""
        self.content += getattr(delta, "content", None) or ""
        self.reasoning += getattr(delta, "reasoning", None) or ""
        for each in getattr(delta, "tool_calls", None) or []:
            while len(self.calls) <= each.index:
                self.calls.append(["", "", ""])
            call, function = self.calls[each.index], each.function
            call[0] += getattr(each, "id", None) or ""
            if function:
                call[1] += getattr(function, "name", None) or ""
                call[2] += getattr(function, "arguments", None) or ""


REQUEST = ChatCompletionRequest(
    model="kimi",
    messages=[{"role": "user", "content": "?"}],
    tools=[
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("weather", "find", "write", "a", "b", "c")
    ],
    stream=True,
)


def parse(deltas: list[Delta]) -> Client:
    """The parser alone, called as the server calls it."""
    parser, client, text = KimiK2ToolParser(TOKENIZER), Client(), ""
    ids: list[int] = []
    for new_ids, new_text in deltas:
        arguments = (text, text + new_text, new_text, ids, ids + new_ids, new_ids)
        delta = parser.extract_tool_calls_streaming(*arguments, request=REQUEST)
        text, ids = arguments[1], arguments[4]
        if delta is not None:
            client.take(delta)
    return client


def serve(deltas: list[Delta], finish: str, reasoning: bool) -> Client:
    """The chat endpoint's generator of chunks, fed with the engine's outputs."""
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.engine.protocol import RequestResponseMetadata
    from vllm.outputs import CompletionOutput, RequestOutput

    prompt = [VOCABULARY[THINK]] if reasoning else []

    async def outputs() -> Any:
        for number, (ids, text) in enumerate(deltas):
            done = number == len(deltas) - 1
            yield RequestOutput(
                request_id="r",
                prompt=None,
                prompt_token_ids=prompt,
                prompt_logprobs=None,
                outputs=[
                    CompletionOutput(
                        index=0,
                        text=text,
                        token_ids=ids,
                        cumulative_logprob=None,
                        logprobs=None,
                        finish_reason=finish if done else None,
                    )
                ],
                finished=done,
                num_cached_tokens=0,
            )

    server = object.__new__(OpenAIServingChat)
    for name, value in SERVER.items():
        setattr(server, name, value)
    if find_spec("vllm.parser"):
        from vllm.parser import ParserManager

        if hasattr(ParserManager, "get_parser"):  # from 0.20.0 one parser does both
            server.parser_cls = ParserManager.get_parser(
                tool_parser_name="kimi_k2",
                reasoning_parser_name="kimi_k2" if reasoning else None,
                enable_auto_tools=True,
            )
    server.reasoning_parser = reasoning_parser() if reasoning else None  # 0.15 makes its own
    parts = reasoning_parser()(TOKENIZER) if reasoning else None
    wanted = inspect.signature(server.chat_completion_stream_generator).parameters
    given = {
        "request": REQUEST,
        "result_generator": outputs(),
        "request_id": "r",
        "model_name": "kimi",
        "conversation": [],
        "tokenizer": TOKENIZER,
        "request_metadata": RequestResponseMetadata(request_id="r"),
        "reasoning_parser": parts,
    }
    client = Client()

    async def read() -> None:
        chunks = server.chat_completion_stream_generator(
            **{name: value for name, value in given.items() if name in wanted}
        )
        async for chunk in chunks:
            data = chunk.removeprefix("data: ").strip()
            if data == "[DONE]":
                continue
            answer = json.loads(data, object_hook=lambda each: SimpleNamespace(**each))
            if not hasattr(answer, "choices"):
                raise RuntimeError(data)
            for choice in answer.choices:
                client.take(choice.delta)
                client.finish = choice.finish_reason or client.finish

    asyncio.run(read())
    return client


def reasoning_parser() -> Any:
    from vllm.reasoning import ReasoningParserManager

    return ReasoningParserManager.get_reasoning_parser("kimi_k2")


SERVER: dict[str, Any] = {
    "tool_parser": KimiK2ToolParser,
    "enable_auto_tools": True,
    "tool_call_id_type": "kimi_k2",
    "use_harmony": False,
    "log_error_stack": False,
    "system_fingerprint": None,
    "default_chat_template_kwargs": None,
    "response_role": "assistant",
    "request_logger": None,
    "enable_log_outputs": False,
    "enable_log_deltas": False,
    "enable_force_include_usage": False,
    "enable_prompt_tokens_details": False,
}
REASONING = "First I think \u00fcber 東京, then I call."


def report(level: str) -> dict[str, Any]:
    """See the module's docstring."""
    found = {}
    kinds = [False] if level == "parser" else [False, True]
    for (name, stream), reasoning in itertools.product(STREAMS.items(), kinds):
        before = REASONING + THINK_END if reasoning else ""
        pieces = pieces_of(before + stream.text)
        if stream.finish == "length":
            pieces.pop()
        wanted = {"content": stream.content, "calls": [list(each) for each in stream.calls]}
        if level == "server":
            wanted["finish"] = "tool_calls" if stream.calls else stream.finish
        count, wrong, short, example = 0, 0, 0, None
        many = (2000, 200) if level == "parser" and len(pieces) < 1000 else (50, 20)
        for cuts, lag in splits(len(pieces), *many):
            # A late text confuses the reasoning parsers, which go by ids: not looked at here.
            deltas = cut(pieces, cuts, 0 if reasoning else lag)
            client = parse(deltas) if level == "parser" else serve(deltas, stream.finish, reasoning)
            result = {key: getattr(client, key) for key in wanted}
            count += 1
            short += reasoning and client.reasoning != REASONING
            if result != wanted:
                wrong += 1
                example = example or {"cuts": cuts[:40], "lag": lag, "got": result}
        whole = KimiK2ToolParser(TOKENIZER).extract_tool_calls(stream.text, REQUEST)
        calls = [(c.id, c.function.name, c.function.arguments) for c in whole.tool_calls]
        ended = [each for each in stream.calls if each not in stream.endless]
        found[name + (", after reasoning" if reasoning else "")] = {
            "calls": len(stream.calls),
            "splits": count,
            "wrong": wrong,
            "example": example,
            "reasoning_wrong": short,
            "unstreamed_wrong": (calls, whole.content or "") != (ended, stream.content),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(report(sys.argv[1])))
