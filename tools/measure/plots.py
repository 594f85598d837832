"""The pictures of a report, as PNG files; matplotlib draws them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measure.report import ServerBenchReport
from patchset.report import harmless

DPI = 130
_OURS, _PALE, _KNOWN, _GREY = "#1f5f99", "#a9c4dd", "#c2541b", "#666666"
_STAR = "* somebody else used the server meanwhile"


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def draw(report: ServerBenchReport, folder: Path) -> list[Path]:
    """Draw what the report has figures for: acceptance.png, positions.png, speed-up.png."""
    import matplotlib

    matplotlib.use("Agg")
    # Names come from outside: a $ in one is no formula.
    settings = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}
    settings |= {"text.parse_math": False}
    made = []
    with matplotlib.rc_context(settings):
        for name, picture in (
            ("acceptance.png", _acceptance(report)),
            ("positions.png", _positions(report)),
            ("speed-up.png", _speed_ups(report)),
        ):
            if picture is not None:
                picture.savefig(folder / name, dpi=DPI, bbox_inches="tight")
                made.append(folder / name)
    return made


def _acceptance(report: ServerBenchReport) -> Any:
    """Bars, one for each data set, and lines where others published."""
    from matplotlib.figure import Figure

    shown = [item for item in report.acceptance if item.length is not None]
    if not shown:
        return None
    most = 1 + max(len(item.rates) for item in shown)
    figure = Figure(figsize=(9.5, 1.6 + 0.5 * len(shown)))
    axes = figure.subplots()
    for row, item in enumerate(shown):
        assert item.length is not None
        color, ink = (_OURS, "white") if item.alone else (_PALE, "black")
        axes.barh(row, item.length, height=0.62, color=color)
        label = f"{item.length:.2f}" + ("" if item.alone else " *")
        axes.text(item.length - 0.03, row, label, va="center", ha="right", color=ink, weight="bold")
        if item.published is not None:
            axes.plot([item.published] * 2, [row - 0.42, row + 0.42], color=_KNOWN, lw=3)
            axes.text(
                item.published,
                row - 0.44,
                f"{item.published:.2f}",
                color=_KNOWN,
                ha="center",
                va="bottom",
                size=9,
            )
    known = [
        (length, data)
        for source in report.published
        if source.draft_tokens == most - 1
        for data, length in source.lengths.items()
    ]
    if known:
        (low, worst), (high, best) = min(known), max(known)
        axes.axvspan(low, high, color=_KNOWN, alpha=0.12, lw=0, zorder=0)
        for at in {low, high}:
            axes.axvline(at, color=_KNOWN, ls="--", lw=1.3, zorder=0)
        told = f"published for this drafter: {low:.2f} ({worst}) to {high:.2f} ({best})"
        axes.text(most, -0.75, told, color=_KNOWN, ha="right", va="bottom", size=10.5)
    axes.set_yticks(range(len(shown)), [_name(item.data) for item in shown])
    axes.invert_yaxis()
    axes.set_xlim(1, most)
    axes.set_xlabel(f"acceptance length, tokens a verification (1: no draft accepted, {most}: all)")
    axes.set_title("Acceptance length by data set", loc="left", weight="bold", pad=24)
    _explain(figure, all(item.alone for item in shown))
    return figure


def _positions(report: ServerBenchReport) -> Any:
    """A table in colours: how often the draft of each position was accepted."""
    from matplotlib.figure import Figure

    shown = [item for item in report.acceptance if item.rates]
    if not shown:
        return None
    width = max(len(item.rates) for item in shown)
    figure = Figure(figsize=(3.6 + 1.15 * width, 1.5 + 0.5 * len(shown)))
    axes = figure.subplots()
    grid = [item.rates + [0.0] * (width - len(item.rates)) for item in shown]
    axes.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, item in enumerate(shown):
        for column, rate in enumerate(item.rates):
            dark = "white" if rate > 0.55 else "black"
            axes.text(column, row, f"{rate:.0%}", ha="center", va="center", color=dark, size=12)
    names = [_name(item.data) + ("" if item.alone else " *") for item in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.set_xticks(range(width), [str(number + 1) for number in range(width)])
    axes.set_xlabel("draft position")
    axes.tick_params(length=0)
    axes.set_title("Drafts accepted, by position", loc="left", weight="bold")
    for side in axes.spines.values():
        side.set_visible(False)
    _explain(figure, all(item.alone for item in shown))
    return figure


def _speed_ups(report: ServerBenchReport) -> Any:
    """A line for each data set over the number of requests at once."""
    from matplotlib.figure import Figure

    if not report.speed_ups:
        return None
    figure = Figure(figsize=(9.5, 5))
    axes = figure.subplots()
    names = list(dict.fromkeys(item.data for item in report.speed_ups))
    levels = sorted({item.concurrency for item in report.speed_ups})
    for number, name in enumerate(names):
        points = sorted(
            (i for i in report.speed_ups if i.data == name), key=lambda i: i.concurrency
        )
        color = f"C{number}"
        places = [levels.index(point.concurrency) for point in points]
        axes.plot(places, [point.ratio for point in points], color=color, lw=2.2, label=_name(name))
        for place, point in zip(places, points, strict=True):
            inside = color if point.alone else "white"
            axes.plot(place, point.ratio, "o", color=color, mfc=inside, ms=8)
            if len(names) > 2:
                continue  # the lines would be hidden by their labels; a table has the figures
            label = f"{point.ratio:.2f}" + ("" if point.alone else " *")
            above = (
                {"xytext": (0, 8), "va": "bottom"}
                if number == 0
                else {"xytext": (0, -9), "va": "top"}
            )
            axes.annotate(
                label,
                (place, point.ratio),
                textcoords="offset points",
                ha="center",
                color=color,
                **above,
            )
    axes.axhline(1, color=_GREY, ls="--", lw=1.3)
    told = {"transform": axes.get_yaxis_transform(), "color": _GREY, "size": 10, "va": "top"}
    axes.text(0.01, 0.99, "as fast as without the drafter", **told)
    ratios = [item.ratio for item in report.speed_ups]
    axes.set_ylim(min(0.9, min(ratios) - 0.15), max(1.1, max(ratios) + 0.15))
    axes.margins(x=0.08)
    axes.set_xticks(range(len(levels)), [str(level) for level in levels])
    axes.set_xlabel("requests at once")
    axes.set_ylabel("output tokens a second,\nwith the drafter / without")
    axes.set_title("Speed-up by concurrency", loc="left", weight="bold")
    if len(names) > 1:
        axes.legend(frameon=False)
    _explain(figure, all(item.alone for item in report.speed_ups))
    return figure


def _explain(figure: Any, alone: bool) -> None:
    if not alone:
        figure.text(0.99, -0.03, _STAR, ha="right", va="top", size=10, color=_GREY)


def _name(text: str) -> str:
    """A name that fits, without characters that do something."""
    text = harmless(text).replace("\n", " ")
    return text if len(text) <= 32 else text[:31] + "…"
