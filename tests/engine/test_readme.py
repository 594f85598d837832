"""The `vllm serve` commands of the README and docs/ are ones that the patched release takes."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from standin.engine import engine_environ

from engine.support import FIRST, Engine, Setting

ROOT = Path(__file__).resolve().parents[2]

# Parses each command as `vllm serve` does, and names what in it the release does not know.
CHECK = """
import dataclasses, json, sys
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
except ImportError:  # before it moved
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
    assert args.headless == (args.node_rank > 0), "the first node has the API server"
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


@pytest.mark.parametrize(
    ("page", "setting", "least"),
    [
        ("README.md", FIRST, 3),  # the doctor names one, too
        ("docs/several-machines.md", Setting("0.32.0"), 4),
    ],
)
def test_the_serve_commands_parse(
    page: str, setting: Setting, least: int, engine_of: Callable[[Setting], Engine]
) -> None:
    wanted = commands((ROOT / page).read_text(encoding="utf-8"))
    assert len(wanted) >= least
    engine = engine_of(setting)
    done = subprocess.run(
        [engine.python, "-c", CHECK],
        input=json.dumps(wanted),
        # Offline, vLLM looks for the model on this disk while it parses.
        env=engine_environ(engine.tree, {"HF_HUB_OFFLINE": "0"}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = done.stdout.rpartition("FOUND ")[2]
    assert json.loads(answer) == [["moonshotai/Kimi-K2.5", "eagle3"]] * len(wanted)
