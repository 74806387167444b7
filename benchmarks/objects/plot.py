"""The plot: bars with whiskers on a logarithmic scale, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.objects.report import HEADINGS
from benchmarks.objects.scenarios import Figure, Scenario
from benchmarks.objects.summary import Spread, number, ratio, why_not

_SHOWN: Final[tuple[Figure, ...]] = ("cpu", "speed")
_LEFT, _BAR, _ROW, _HEAD, _GAP = 290, 200, 17, 24, 110
_WIDTH: Final = _LEFT + len(_SHOWN) * (_BAR + _GAP)
_DECADES: Final = (-1, 3)
"""From a tenth of the baseline to a thousand times."""


def svg(scenarios: Sequence[Scenario], written: dict[str, Any]) -> str:
    """Draw each client's ratios to the baseline of its scenario."""
    body = list(_body(scenarios, written["results"]))
    height = float(body.pop())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _body(scenarios: Sequence[Scenario], results: dict[str, Any]) -> Iterator[str]:
    """Draw from top to bottom; the last text is the height."""
    y = 20.0
    for column, name in enumerate(_SHOWN):
        yield _text(_x(column, 1.0), y, f"{HEADINGS[name]} (log scale)", weight="bold")
    for scenario in scenarios:
        y += _HEAD
        yield _text(8, y, scenario.title, weight="bold")
        top, measured = y, results[scenario.name]
        for client, runs in measured.items():
            y += _ROW
            yield _text(20, y, client)
            reason = why_not(runs) or why_not(measured[scenario.baseline])
            for column, name in enumerate(_SHOWN):
                if reason:
                    yield _text(_x(column, 1.0) + 4, y, reason[:40], colour="#a00")
                elif found := ratio(name, runs, measured[scenario.baseline], scenario.target.objects):
                    colour = "#1b7f5c" if client.startswith("ours") else "#8a94a6"
                    yield from _bar(column, y, found, colour)
        for column in range(len(_SHOWN)):
            x = _x(column, 1.0)
            yield f'<line x1="{x}" y1="{top + 4}" x2="{x}" y2="{y + 4}" stroke="#333"/>'
        y += 6
    yield str(y + 14)


def _bar(column: int, y: float, found: Spread, colour: str) -> Iterator[str]:
    one, median, least, greatest = (_x(column, v) for v in (1.0, found.median, found.least, found.greatest))
    left, width = min(one, median), max(abs(median - one), 1)
    yield f'<rect x="{left:.1f}" y="{y - 9}" width="{width:.1f}" height="11" fill="{colour}"/>'
    yield f'<line x1="{least:.1f}" y1="{y - 3.5}" x2="{greatest:.1f}" y2="{y - 3.5}" stroke="#111"/>'
    yield _text(max(median, greatest, one) + 5, y, f"{number(found.median, 2)} x")


def _x(column: int, value: float) -> float:
    first, last = _DECADES
    place = (min(max(math.log10(max(value, 1e-9)), first), last) - first) / (last - first)
    return _LEFT + column * (_BAR + _GAP) + place * _BAR


def _text(x: float, y: float, text: str, *, weight: str = "normal", colour: str = "#111") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
