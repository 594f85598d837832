"""vLLM's counters: pages as servers of two releases gave them, and pages that are none."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.metrics import Snapshot, parse
from patchset.errors import EnvironmentFault, Refused

# Lines of /metrics after one chat of 16 tokens with the constructed pair, 3 draft tokens.
PAGES = {
    path.stem: path.read_text("utf-8")
    for path in sorted((Path(__file__).parent / "metrics").glob("*.txt"))
}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return PAGES[request.param]


def without(page: str, pattern: str) -> str:
    return "\n".join(line for line in page.splitlines() if not re.search(pattern, line))


def moved(page: str, pattern: str, by: float) -> str:
    """The page with the value of each sample whose line begins so moved by a number."""
    return re.sub(
        rf"^({pattern}.*) (\S+)$", lambda m: f"{m[1]} {float(m[2]) + by}", page, flags=re.MULTILINE
    )


def test_recorded_pages(page: str) -> None:
    found = parse(page)
    assert found.model == "standin"
    assert (found.drafting, found.drafts, found.draft_tokens) == (True, 5, 15)
    assert (found.accepted, found.accepted_at) == (12, (4, 4, 4))
    assert (found.requests, found.prompt_tokens, found.generation_tokens) == (1, 9, 16)
    assert (found.running, found.waiting) == (0, 0)
    assert len(found.started) == 2


def test_difference(page: str) -> None:
    before = parse(page)
    later = moved(page, "vllm:spec_decode_num_drafts_total", 10)
    later = moved(later, "vllm:spec_decode_num_draft_tokens_total", 30)
    later = moved(later, "vllm:spec_decode_num_accepted_tokens_total", 15)
    for at, by in enumerate((9, 5, 1)):
        later = moved(
            later, rf'vllm:spec_decode_num_accepted_tokens_per_pos_total.*position="{at}"', by
        )
    later = moved(later, "vllm:generation_tokens_total", 25)
    later = moved(later, 'vllm:request_success_total.*"stop"', 2)
    delta = parse(later) - before
    assert (delta.drafts, delta.draft_tokens, delta.accepted) == (10, 30, 15)
    assert delta.acceptance_length == 2.5
    assert delta.acceptance_rates == (0.9, 0.5, 0.1)
    assert (delta.requests, delta.prompt_tokens, delta.generation_tokens) == (2, 0, 25)


def test_nothing_drafted(page: str) -> None:
    snapshot = parse(page)
    assert (snapshot - snapshot).acceptance_length is None
    assert (snapshot - snapshot).acceptance_rates == ()


def test_no_drafter(page: str) -> None:
    found = parse(without(page, "spec_decode"))
    assert (found.drafting, found.drafts, found.accepted_at) == (False, 0, ())
    assert found.generation_tokens == 16


def test_engines_are_summed(page: str) -> None:
    both = page + "\n" + page.replace('engine="0"', 'engine="1"')
    found = parse(both)
    assert (found.drafts, found.accepted_at, found.generation_tokens) == (10, (8, 8, 8), 32)


def test_models_are_kept_apart(page: str) -> None:
    other = moved(page.replace('"standin"', '"a \\"b\\" \\\\ c\\nd} 7"'), "vllm:generation", 100)
    both = f"{page}\n{other}"
    with pytest.raises(Refused, match=r'(?s)several models; it counts for a "b".*, standin'):
        parse(both)
    assert parse(both, "standin").generation_tokens == 16
    assert parse(both, 'a "b" \\ c\nd} 7').generation_tokens == 116
    with pytest.raises(Refused, match="no model kimi; it counts for"):
        parse(both, "kimi")


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        ("vllm:generation_tokens_total", -1),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total.*position="2"', -1),
        ("vllm:generation_tokens_created", 60),  # counters that have overtaken the old ones
        ("process_start_time_seconds", 60),
    ],
)
def test_restart(page: str, pattern: str, by: float) -> None:
    again = moved(page, pattern, by)
    assert again != page
    with pytest.raises(EnvironmentFault, match="the server was started again"):
        parse(again) - parse(page)


def test_restart_with_another_drafter(page: str) -> None:
    longer = (
        page
        + '\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="3",'
        + ('model_name="standin"} 0')
    )
    assert parse(longer).accepted_at == (4, 4, 4, 0)
    with pytest.raises(EnvironmentFault, match="started again"):
        parse(longer) - parse(page)


def test_without_times_of_creation(page: str) -> None:
    """As servers with several API processes have it."""
    bare = without(page, "_created|process_start")
    assert parse(bare).started == ()
    assert (parse(bare) - parse(bare)).requests == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not as vLLM does"),
        ("<html>hello</html>", "not as vLLM does"),
        ("sglang:num_running_reqs 1.0", "not as vLLM does"),
        ('vllm:cache_config_info{a="b"} 1.0', "counts no tokens"),
        ("vllm:generation_tokens_total NaN", "no count"),
        ("vllm:generation_tokens_total -5", "no count"),
        ("vllm:generation_tokens_total 1e999", "no count"),
        ("vllm:generation_tokens_total many", "no count"),
        ("vllm:generation_tokens_total{", "no count"),
        ("vllm:generation_tokens_total", "no count"),
        (
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="9999999999"} 1',
            "none",
        ),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 1', "none"),
    ],
)
def test_hostile_pages(text: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        parse(text)


@given(st.data())
def test_any_page(data: st.DataObject) -> None:
    """Whatever is put into a page, it is read or refused."""
    page = data.draw(st.sampled_from(sorted(PAGES.values())))
    at = data.draw(st.integers(0, len(page)))
    until = data.draw(st.integers(at, min(len(page), at + 200)))
    spoilt = page[:at] + data.draw(st.text(max_size=50)) + page[until:]
    with suppress(Refused):
        assert isinstance(parse(spoilt), Snapshot)


def test_timestamps_and_exponents() -> None:
    found = parse('vllm:generation_tokens_total{model_name="m"} 1.5e+03 1795990852610\r\n')
    assert (found.model, found.generation_tokens) == ("m", 1500)
    assert replace(found, taken=0.0) == replace(
        parse("vllm:generation_tokens_total 1500"), taken=0.0, model="m"
    )
