"""Lines over time as SVG, one panel below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP = 60, 34, 620, 110, 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot.

    :param title: above it, with the unit
    :param points: of time in minutes, and value
    :param limit: a line across, if there is something not to be exceeded
    """

    title: str
    points: Sequence[tuple[float, float]]
    limit: float | None = None


def svg(panels: Sequence[Panel]) -> str:
    """Draw the panels."""
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    width = _LEFT + _WIDTH + 20
    body = "\n".join(line for index, panel in enumerate(panels) for line in _draw(index, panel))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _draw(index: int, panel: Panel) -> Iterator[str]:
    top = _TOP + index * (_HEIGHT + _GAP)
    longest = max((x for x, _ in panel.points), default=1.0) or 1.0
    highest = max([panel.limit or 0.0, *(y for _, y in panel.points)]) * 1.1 or 1.0

    def place(x: float, y: float) -> str:
        return f"{_LEFT + x / longest * _WIDTH:.1f},{top + _HEIGHT - y / highest * _HEIGHT:.1f}"

    yield _text(_LEFT, top - 8, panel.title, weight="bold")
    yield f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#bbb"/>'
    for share in (0.0, 0.5, 1.0):
        y = top + _HEIGHT * (1 - share) + 4
        yield _text(_LEFT - 6, y, f"{highest * share:.3g}", anchor="end")
        yield _text(_LEFT + _WIDTH * share, top + _HEIGHT + 14, f"{longest * share:.3g} min", anchor="middle")
    if panel.limit is not None:
        ends = f"{place(0, panel.limit)} {place(longest, panel.limit)}"
        yield f'<polyline points="{ends}" fill="none" stroke="#a00" stroke-dasharray="4 3"/>'
    points = " ".join(place(x, y) for x, y in panel.points)
    yield f'<polyline points="{points}" fill="none" stroke="#1b7f5c" stroke-width="1.2"/>'


def _text(x: float, y: float, text: str, *, weight: str = "normal", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"
