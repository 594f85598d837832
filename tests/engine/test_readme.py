"""The `vllm serve` commands of the README are ones that the patched release takes."""

import json
import re
import shlex
import subprocess
from pathlib import Path

from standin.engine import engine_environ

from engine.support import Engine

README = Path(__file__).resolve().parents[2] / "README.md"

# Parses each command as `vllm serve` does, and names what in it the release does not know.
CHECK = """
import dataclasses, json, sys
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
found = []
for command in json.load(sys.stdin):
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(command)
    validate_parsed_serve_args(args)
    engine = AsyncEngineArgs.from_cli_args(args)
    unknown = set(engine.speculative_config) - known
    assert not unknown, unknown
    assert args.tool_call_parser in ToolParserManager.list_registered()
    assert args.reasoning_parser in ReasoningParserManager.list_registered()
    found.append([args.model_tag or engine.model, engine.speculative_config["method"]])
print("FOUND", json.dumps(found))
"""


def commands(text: str) -> list[list[str]]:
    """The arguments of each `vllm serve` in a block of the Markdown `text`."""
    blocks = re.findall(r"```(?:sh|text)\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("vllm serve ")]


def test_the_serve_commands_parse(patched: Engine) -> None:
    wanted = commands(README.read_text(encoding="utf-8"))
    assert len(wanted) >= 3  # the doctor names one, too
    done = subprocess.run(
        [patched.python, "-c", CHECK],
        input=json.dumps(wanted),
        # Offline, vLLM looks for the model on this disk while it parses.
        env=engine_environ(patched.tree, {"HF_HUB_OFFLINE": "0"}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = done.stdout.rpartition("FOUND ")[2]
    assert json.loads(answer) == [["moonshotai/Kimi-K2.5", "eagle3"]] * len(wanted)
