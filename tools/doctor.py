"""Will this target, drafter, release and these cards work together? A second, without a GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cli import EXIT_CODES, click, command, execute, json_option, run

if TYPE_CHECKING:
    from advice.checks import Level
    from advice.examine import Examination
    from patchset.archive import Progress
    from patchset.report import Report

CODES = EXIT_CODES.replace(
    "0 done or nothing to do", "0 go, 10 go with care (a warning), 11 stop (it cannot work)"
)


@partial(command, codes=CODES)
@click.option("--target", help="Folder or hub id of the target, e.g. moonshotai/Kimi-K2.5.")
@click.option("--drafter", help="Folder or hub id of the EAGLE-3 drafter.")
@click.option("--release", help="The vLLM release, with this repository's series.")
@click.option("--stock", is_flag=True, help="The release as published, without the series.")
@click.option(
    "--env",
    type=click.Path(path_type=Path),
    help="A Python, an environment or a checkout: judge the vLLM that is there.",
)
@click.option("--gpus", help="The cards, e.g. 8xRTX-PRO-6000 or 8xB200.")
@click.option(
    "--tp", type=click.IntRange(min=1), help="Tensor parallel size; if left out, all cards."
)
@click.option("--pp", type=click.IntRange(min=1), default=1, help="Pipeline parallel size.")
@click.option("--dcp", type=click.IntRange(min=1), default=1, help="Decode context parallel size.")
@click.option("--kv-cache-dtype", help="As for vllm serve: auto, bfloat16, fp8, ...")
@click.option("--attention-backend", help="As for vllm serve, e.g. TRITON_MLA.")
@click.option("--draft-attention-backend", help="The drafter's own attention backend.")
@click.option(
    "--max-model-len", type=click.IntRange(min=1), help="Longest sequence to serve, in tokens."
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Requests served at once.")
@click.option(
    "--gpu-memory-utilization",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of each card's memory that vLLM may take.",
)
@click.option(
    "--num-speculative-tokens",
    type=click.IntRange(1, 64),
    default=3,
    help="Draft tokens in a round.",
)
@click.option(
    "--fix",
    type=click.Path(path_type=Path),
    help="Write the drafter's config.json, corrected, to this new folder, with links to its other "
    "files, and judge that.",
)
@click.option("--arithmetic", is_flag=True, help="Show what each card's memory goes to.")
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Read a vLLM log instead and name the first cause; - for standard input.",
)
@json_option
def doctor(
    target: str | None,
    drafter: str | None,
    release: str | None,
    stock: bool,
    env: Path | None,
    gpus: str | None,
    tp: int | None,
    pp: int,
    dcp: int,
    kv_cache_dtype: str | None,
    attention_backend: str | None,
    draft_attention_backend: str | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    gpu_memory_utilization: float | None,
    num_speculative_tokens: int,
    fix: Path | None,
    arithmetic: bool,
    log: Path | None,
    json: bool,
) -> None:
    """Say whether TARGET and DRAFTER will work together, what to change, and what to run.

    Reads configuration files and the headers of the weights: no weights, no GPU, no torch, no vLLM.
    """

    def job(progress: Progress) -> Report:
        from advice.cards import read_cards
        from advice.examine import examine
        from advice.setup import Setup
        from patchset.errors import UsageFault
        from patchset.project import Project

        if log is not None:
            if target or drafter or env or fix:
                raise UsageFault("--log is read alone")
            return _log_report(log)
        if gpu_memory_utilization != gpu_memory_utilization:  # click's range lets NaN through
            raise UsageFault("--gpu-memory-utilization is a number above 0 and at most 1")
        if target is None or drafter is None:
            raise UsageFault("--target and --drafter have to be given")
        if env is not None and stock:
            raise UsageFault("--env tells what is there; leave out --stock")
        cards = read_cards(gpus).number if gpus else pp
        setup = Setup(
            release=release or "",
            stock=stock,
            gpus=gpus,
            tp=tp or max(1, cards // pp),
            pp=pp,
            dcp=dcp,
            kv_cache_dtype=kv_cache_dtype,
            attention_backend=attention_backend,
            draft_attention_backend=draft_attention_backend,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            gpu_memory_utilization=gpu_memory_utilization,
            num_speculative_tokens=num_speculative_tokens,
        )
        found = examine(Project.here(), target, drafter, setup, environment=env, fix=fix)
        return _report(found, arithmetic)

    execute("doctor", json, job)


def _report(found: Examination, arithmetic: bool) -> Report:
    from advice.checks import EXIT_CODES, LEVELS, report_of
    from patchset.report import DoctorReport, NeedReport, schema

    verdict, rules = found.verdict, found.pair.rules
    counts = {level: sum(c.level == level for c in found.checks) for level in LEVELS}
    told = ", ".join(f"{n} {level}" for level, n in reversed(counts.items()) if n)
    message = f"{rules.name}: {told}"
    if verdict == "stop":
        if found.command:
            message += "; your options will not work, those of the command above should"
    elif found.command:
        message += "; measure the acceptance length of what the command above serves"
    memory = []
    if (card := found.budget) is not None:
        share = "what vLLM may take of each card"
        memory = [NeedReport(what="memory", size=card.usable, how=share)]
        memory += [NeedReport(what=n.what, size=-n.size, how=n.how) for n in card.needs]
        cache = f"{card.tokens:,} tokens of {card.per_token} bytes"
        memory += [NeedReport(what="KV cache", size=card.left, how=cache)]
    return DoctorReport(
        schema=schema("doctor"),
        result="stop" if verdict == "stop" else "warned" if verdict == "warn" else "go",
        exit_code=EXIT_CODES[verdict],
        message=message,
        release=rules.version,
        series=bool(rules.patches),
        target=found.pair.target.name,
        drafter=found.pair.drafter.name,
        checks=[report_of(check) for check in found.checks],
        command=list(found.command),
        fixed=str(found.fixed) if found.fixed else None,
        changes=list(found.changes),
        memory=memory,
        notes=[f"{n.size / (1 << 30):9.2f} GiB  {n.what}: {n.how}" for n in memory]
        if arithmetic
        else [],
    )


def _log_report(path: Path) -> Report:
    from advice.checks import EXIT_CODES
    from advice.logs import cure_of, diagnose, read_log
    from patchset.faults import load_faults
    from patchset.project import Project
    from patchset.report import FindingReport, LogReport, schema

    project = Project.here()
    found = diagnose(read_log(path), load_faults(project.root / "patches" / "faults.toml"))
    cause, error = found.cause, found.error
    if cause is not None:
        what = "the first cause is" if cause.fatal else "no error of a known fault, but a hint of"
        message = f"{what} {cause.fault.id} in line {cause.line}: {cause.fault.title}"
    elif error is not None:
        message = f"no known fault; the first error is in line {error.number}"
    else:
        message = "no known fault and no error"
    level: Level = "stop" if cause and cause.fatal else "warn" if cause or error else "pass"
    return LogReport(
        schema=schema("doctor-log"),
        result="stop" if level == "stop" else "state",
        exit_code=EXIT_CODES[level],
        message=message,
        log=str(path),
        release=found.release,
        local=found.local,
        findings=[
            FindingReport(
                fault=item.fault.id,
                title=item.fault.title,
                line=item.line,
                text=item.text,
                fatal=item.fatal,
                cure=cure_of(item, project),
            )
            for item in found.findings
        ],
        error_line=error.number if error else None,
        error=error.text.strip() if error else None,
    )


if __name__ == "__main__":
    run(doctor, "doctor")
