"""What the user wants looked at, from environment variables, and the servers for it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from standin.engine import Server, launched

from advice.cards import read_cards
from advice.environment import look_at
from advice.examine import Examination, examine
from advice.memory import budget
from advice.serve import FIELDS
from advice.setup import Setup
from measure.data import OURS, read_data
from measure.published import published_for
from patchset.errors import Refused, UsageFault
from patchset.project import Project
from suite.campaign import Configuration
from suite.checks import CHECKS, Context
from suite.material import MATERIAL

PREFIX = "KIMI_EAGLE3_"
# Logits are computed in bfloat16, whose steps between 16 and 32 are 1/8: four of them.
MARGIN = 0.5
START_SECONDS = 3600  # 600 GB of weights from a slow disk
PATIENCE = 1800  # for the prompts at the model's own limit
SAY_EVERY = 30  # seconds
# What is looked at where the model is spread otherwise than in the first layout.
OTHER_LAYOUTS = ("lossless", "acceptance", "concurrency", "speed_up", "memory")
_LAYOUT = re.compile(r"tp(?P<tp>\d+)(?:pp(?P<pp>\d+))?(?:dcp(?P<dcp>\d+))?")


@dataclass(frozen=True)
class Wanted:
    """The variables, read. ``launch``: the words before the model; ``release``: None for ``python``
    to tell. ``drafters`` by name.
    """

    target: str
    drafters: Mapping[str, str]
    python: Path | None
    image: str | None
    engine: str
    release: str | None
    gpus: str
    layouts: tuple[str, ...]
    drafts: int
    minutes: float
    options: tuple[str, ...]
    data: Mapping[str, Path]
    folder: Path

    @property
    def names(self) -> list[str]:
        """The configurations, in the order in which they are looked at."""
        return [f"{layout}-{name}" for layout in self.layouts for name in ("alone", *self.drafters)]

    @property
    def checks(self) -> list[tuple[str, str]]:
        """Configuration and check, in that order."""
        first = f"{self.layouts[0]}-"
        return [
            (name, check)
            for name in self.names
            for check in CHECKS
            if name.startswith(first) or check in OTHER_LAYOUTS
        ]


def needs(environ: Mapping[str, str]) -> list[str]:
    """The variables that are missing, each with what it is."""
    wanted = {
        "TARGET": "the folder of Kimi-K2.5",
        "DRAFTERS": f"folders of its drafters, {os.pathsep!r} between them",
        "GPUS": "the cards, e.g. 8xB200",
    }
    missing = [f"{PREFIX}{n} ({what})" for n, what in wanted.items() if not environ.get(PREFIX + n)]
    if not environ.get(PREFIX + "PYTHON") and not environ.get(PREFIX + "IMAGE"):
        missing.append(f"{PREFIX}PYTHON or {PREFIX}IMAGE (the patched build)")
    return missing


def read(environ: Mapping[str, str], root: Path) -> Wanted:
    """The variables, none of which is missing. Raises UsageFault for a value that is none."""

    def get(name: str, default: str = "") -> str:
        return environ.get(PREFIX + name) or default

    drafters = {}
    for place in get("DRAFTERS").split(os.pathsep):
        path = _place(place)
        name = re.sub(r"[^\w.-]+", "-", Path(path).name)
        if name in drafters or name == "alone":
            raise UsageFault(f"{PREFIX}DRAFTERS: two drafters are called {name}")
        drafters[name] = path
    number = read_cards(get("GPUS")).number
    usual = [f"tp{number}"]
    if number % 4 == 0:
        usual += [f"tp{number // 2}pp2", f"tp{number}dcp{number}"]
    layouts = tuple(get("LAYOUTS", " ".join(usual)).split())
    if wrong := [layout for layout in layouts if not _LAYOUT.fullmatch(layout)]:
        raise UsageFault(f"{PREFIX}LAYOUTS: {wrong[0]!r} is not like tp8, tp4pp2 or tp8dcp8")
    if get("IMAGE") and not get("RELEASE"):
        raise UsageFault(f"{PREFIX}RELEASE: say which release the image {get('IMAGE')} has")
    data = {}
    for item in get("DATA").split():
        name, equals, file = item.partition("=")
        if not equals:
            raise UsageFault(f"{PREFIX}DATA: {item!r} is not like gsm8k=/data/gsm8k.jsonl")
        data[name] = Path(file).absolute()
    try:
        drafts, minutes = int(get("DRAFT_TOKENS", "3")), float(get("MINUTES", "60"))
    except ValueError as fault:
        raise UsageFault(f"{PREFIX}DRAFT_TOKENS or {PREFIX}MINUTES: {fault}") from fault
    return Wanted(
        target=_place(get("TARGET")),
        drafters=drafters,
        python=Path(get("PYTHON")) if get("PYTHON") else None,
        image=get("IMAGE") or None,
        engine=get("ENGINE", "docker"),
        release=get("RELEASE") or None,
        gpus=get("GPUS"),
        layouts=layouts,
        drafts=drafts,
        minutes=minutes,
        options=tuple(shlex.split(get("OPTIONS"))),
        data=data,
        folder=Path(get("OUT", str(root / "build" / "kimi"))).absolute(),
    )


def _place(text: str) -> str:
    """A folder, absolute, because the server has its own working directory; or a hub id."""
    return str(Path(text).resolve()) if Path(text).is_dir() else text


def asked(wanted: Wanted) -> dict[str, Any]:
    """What a report is about. Raises :class:`Refused` for a python without a pinned vLLM."""
    names = ("target", "drafters", "gpus", "layouts", "drafts", "options")
    told = {name: getattr(wanted, name) for name in names}
    told["data"] = {name: str(path) for name, path in wanted.data.items()}
    if wanted.python is None:
        return {"vllm": f"{wanted.release} of the image {wanted.image}", **told}
    seen = look_at(wanted.python, Project.here(), wanted.release)
    return {"vllm": seen.checks[-1].reason, **told}


def configurations(wanted: Wanted, told: Any) -> list[Configuration]:
    """The servers, in the order of ``wanted.names``."""
    found = []
    judged: dict[tuple[str, str], Examination | Refused] = {}
    for layout in wanted.layouts:
        for name, drafter in wanted.drafters.items():
            try:
                judged[layout, name] = _examine(wanted, layout, drafter)
            except Refused as fault:
                judged[layout, name] = fault
    lengths = {
        e.pair.drafter.context
        for e in judged.values()
        if isinstance(e, Examination) and e.pair.drafter.context
    }
    material = replace(MATERIAL, data=_data(wanted))
    for layout in wanted.layouts:
        alone = f"{layout}-alone"
        for name in ("alone", *wanted.drafters):
            drafting = name != "alone"
            # Without a drafter, the command is that for the first one, less the drafter.
            judgement = judged[layout, name if drafting else next(iter(wanted.drafters))]
            context = Context(
                material=material,
                margin=MARGIN,
                draft_lengths=sorted(lengths),
                drafts=wanted.drafts if drafting else 0,
                cache_tokens=_tokens(judgement, drafting),
                published=_published(wanted, wanted.drafters[name]) if drafting else {},
                minutes=wanted.minutes,
            )
            start = Start(wanted, judgement, drafting, told)
            found.append(
                Configuration(f"{layout}-{name}", start, context, alone if drafting else None)
            )
    return found


def _data(wanted: Wanted) -> dict[str, list[str]]:
    """Prompts by data set: ours, by category, and those that the user gives."""
    ours = read_data("ours", OURS)
    sets = [*ours.parts, *(read_data(name, path) for name, path in wanted.data.items())]
    return {item.name: [prompt.prompt for prompt in item.prompts] for item in sets}


def _published(wanted: Wanted, drafter: str) -> dict[str, float]:
    """The published acceptance lengths for this drafter and number of draft tokens, by our names
    of the data sets.
    """
    sources = [p for p in published_for(drafter) if p.draft_tokens == wanted.drafts]
    found = {name: p.length(name) for p in sources for name in wanted.data}
    return {name: length for name, length in found.items() if length is not None}


def _examine(wanted: Wanted, layout: str, drafter: str) -> Examination:
    sizes = _LAYOUT.fullmatch(layout)
    assert sizes is not None  # read() looked
    setup = Setup(
        release=wanted.release or "",
        gpus=wanted.gpus,
        tp=int(sizes["tp"]),
        pp=int(sizes["pp"] or 1),
        dcp=int(sizes["dcp"] or 1),
        num_speculative_tokens=wanted.drafts,
    )
    for option, value in zip(wanted.options, wanted.options[1:], strict=False):
        if option in FIELDS:
            field, kind = FIELDS[option]
            setup = replace(setup, **{field: kind(value)})
    return examine(Project.here(), wanted.target, drafter, setup, environment=wanted.python)


def _tokens(judgement: Examination | Refused, drafting: bool) -> int | None:
    """What the KV cache should hold, by the doctor's arithmetic."""
    if isinstance(judgement, Refused) or not judgement.pair.target.checkpoint.shards:
        return None
    gpus = judgement.pair.setup.gpus
    return budget(judgement.pair, read_cards(gpus), drafting=drafting).tokens if gpus else None


@dataclass(frozen=True)
class Start:
    """Starts the server of one configuration; raises Refused where the doctor says it cannot be."""

    wanted: Wanted
    judgement: Examination | Refused
    drafting: bool
    told: Any

    @contextmanager
    def __call__(self, log: Path) -> Iterator[Server]:
        """The server, once it answers; its output goes to ``log``."""
        words = self.words()
        self.told(f"    {shlex.join(words)}")
        self.told(f"    its log: {log}")
        last = [0.0]

        def waiting(seconds: float) -> None:
            if seconds - last[0] >= SAY_EVERY:
                last[0] = seconds
                self.told(f"    starting since {seconds:.0f} s: {_last_line(log)}")

        server = launched(
            words, os.environ, log=log, timeout=START_SECONDS, model="kimi", waiting=waiting
        )
        try:
            with server as running:
                yield replace(running, patience=PATIENCE)
        finally:
            if self.wanted.image:  # a client that had to be killed leaves its container
                remove = [self.wanted.engine, "rm", "--force", words[words.index("--name") + 1]]
                subprocess.run(remove, check=False, capture_output=True)

    def words(self) -> list[str]:
        """The command. Raises Refused with the doctor's reason where there is none."""
        if isinstance(self.judgement, Refused):
            raise self.judgement
        if not self.judgement.command:
            stops = [check for check in self.judgement.checks if check.level == "stop"]
            raise Refused("the doctor says: " + "; ".join(check.reason for check in stops))
        _, _, model, *options = self.judgement.command
        if not self.drafting:
            at = options.index("--speculative-config")
            del options[at : at + 2]
        options += _unknown(self.wanted.options)
        if self.wanted.python:
            return [str(self.wanted.python), *_SERVE, model, *options]
        assert self.wanted.image is not None
        shared = [item for item in (model, *self.wanted.drafters.values()) if Path(item).is_dir()]
        mounts = [word for item in shared for word in ("-v", f"{item}:{item}:ro")]
        # Stopped with its client, which passes signals on; the network is the machine's own.
        command = [
            self.wanted.engine,
            "run",
            "--rm",
            "--init",
            "--name",
            f"kimi-{uuid4().hex[:12]}",
        ]
        command += ["--gpus", "all", "--ipc", "host", "--network", "host", *mounts]
        return [*command, self.wanted.image, model, *options]


_SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")


def _unknown(options: tuple[str, ...]) -> list[str]:
    """The user's options that the doctor does not put into the command itself."""
    rest, words = [], list(options)
    while words:
        word = words.pop(0)
        if word in FIELDS and words:
            words.pop(0)
        else:
            rest.append(word)
    return rest


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "")
