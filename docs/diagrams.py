"""
Draw the diagrams of the documentation: ``python docs/diagrams.py`` writes ``docs/_static/*.svg``.

They are in the repository, since a page must show them anywhere; a test draws them again and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "_static"
INK, FAINT, BLUE, GREEN, RED, AMBER = "#1f2933", "#7b8794", "#1565c0", "#2e7d32", "#c62828", "#b26a00"


class Drawing:
    """
    An SVG with a white ground, so that it can be read on a dark page as well.

    :param width: Pixels.
    :param height: Likewise.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self._parts = [
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = INK,
        size: int = 13,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        colour: str = INK,
        width: float = 1.5,
        dash: str = "",
    ) -> None:
        """Draw a line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = INK, dash: str = "") -> None:
        """Draw a level or an upright arrow."""
        self.line(x1, y1, x2, y2, colour=colour, dash=dash)
        if y1 == y2:
            back = x2 - 8 if x2 > x1 else x2 + 8
            points = f"{x2:g},{y2:g} {back:g},{y2 - 4:g} {back:g},{y2 + 4:g}"
        else:
            back = y2 - 8 if y2 > y1 else y2 + 8
            points = f"{x2:g},{y2:g} {x2 - 4:g},{back:g} {x2 + 4:g},{back:g}"
        self._parts.append(f'<polygon points="{points}" fill="{colour}"/>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        edge: str = "none",
        opacity: float = 1,
    ) -> None:
        """Draw a box."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" '
            f'fill-opacity="{opacity:g}" stroke="{edge}"/>'
        )

    def dot(self, x: float, y: float, *, colour: str, hollow: bool = False) -> None:
        """Draw a dot."""
        fill = "#ffffff" if hollow else colour
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="6" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
        )

    def cross(self, x: float, y: float, *, colour: str) -> None:
        """Draw a cross."""
        for sign in (1, -1):
            self.line(x - 6, y - 6 * sign, x + 6, y + 6 * sign, colour=colour, width=2.5)

    def svg(self) -> str:
        """Give the file."""
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img" '
            f'font-family="system-ui, Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
        )


def watermark() -> str:
    """Draw the positions of a source, and the cuts in them."""
    d = Drawing(820, 290, "Low watermark, settled bound, seen set and late arrivals on the line of positions")
    low, bound, now = 250, 450, 650
    axis = 170
    d.box(20, axis - 34, low - 20, 68, fill="#e8edf2")
    d.box(low, axis - 34, bound - low, 68, fill="#e3f2e6")
    d.box(bound, axis - 34, now - bound, 68, fill="#e3effb")
    d.arrow(20, axis, 800, axis)
    d.text(800, 20, "positions, by the source's own clock", anchor="end", colour=FAINT, size=12)
    for x, above, below in (
        (low, "low watermark", "stored"),
        (bound, "settled bound", "now - late_arrival"),
        (now, "the source's now", ""),
    ):
        d.line(x, axis - 48, x, axis + 40, width=2)
        d.text(x, axis - 56, above, anchor="middle", bold=True)
        d.text(x, axis + 56, below, anchor="middle", colour=FAINT, size=12)
    for x in (50, 80, 130, 175, 215):
        d.dot(x, axis, colour=FAINT)
    for x in (285, 330, 410):
        d.dot(x, axis, colour=GREEN)
    for x in (480, 520, 610):
        d.dot(x, axis, colour=BLUE)
    for x in (690, 745):
        d.dot(x, axis, colour=AMBER, hollow=True)
    d.text(135, axis + 85, "delivered, and closed:", anchor="middle", colour=FAINT)
    d.text(135, axis + 102, "nothing more can appear here", anchor="middle", colour=FAINT)
    d.text(350, axis + 85, "delivered in this sweep;", anchor="middle", colour=GREEN)
    d.text(350, axis + 102, "low moves past it at its end", anchor="middle", colour=GREEN)
    d.text(550, axis + 85, "delivered at once, and", anchor="middle", colour=BLUE)
    d.text(550, axis + 102, "remembered by id in seen", anchor="middle", colour=BLUE)
    d.text(732, axis + 85, "not due:", anchor="middle", colour=AMBER)
    d.text(732, axis + 102, "waits", anchor="middle", colour=AMBER)
    d.arrow(560, 62, 560, axis - 10, colour=BLUE, dash="4 3")
    d.dot(560, axis, colour=BLUE)
    d.text(560, 53, "appears late: its id is not in seen, so it is news", anchor="middle", colour=BLUE)
    d.arrow(105, 62, 105, axis - 10, colour=RED, dash="4 3")
    d.cross(105, axis, colour=RED)
    d.text(20, 36, "appears later than late_arrival:", colour=RED)
    d.text(20, 53, "outside the promise", colour=RED)
    return d.svg()


def delivery() -> str:
    """Draw what happens to one event, and where a crash repeats it."""
    d = Drawing(860, 470, "Sequence of one event through watcher, supervisor, metadata database and store")
    lanes = {"source": 90, "watcher": 260, "supervisor": 430, "metadata database": 600, "store": 770}
    for name, x in lanes.items():
        d.box(x - 78, 16, 156, 30, fill="#eef2f6", edge=FAINT)
        d.text(x, 36, name, anchor="middle", bold=True)
        d.line(x, 46, x, 140 if name == "source" else 410, colour=FAINT, width=1, dash="3 4")
    d.text(345, 66, "in the triggerer", anchor="middle", colour=FAINT, size=12)
    d.box(170, 140, 180, 230, fill=AMBER, opacity=0.13)

    def message(y: float, start: str, end: str, text: str, *, colour: str = INK, dash: str = "") -> None:
        x1, x2 = lanes[start], lanes[end]
        step = 4 if x2 > x1 else -4
        d.arrow(x1 + step, y, x2 - step, y, colour=colour, dash=dash)
        d.text((x1 + x2) / 2, y - 6, text, anchor="middle", colour=colour, size=12)

    message(90, "watcher", "source", "how far are you settled?")
    message(122, "watcher", "source", "what is visible after low?")
    message(162, "watcher", "supervisor", "yield: within 1 s", colour=BLUE)
    message(196, "supervisor", "metadata database", "asset event", colour=BLUE)
    message(230, "metadata database", "supervisor", "committed", colour=GREEN)
    message(264, "supervisor", "watcher", "acknowledged", colour=GREEN)
    d.text(260, 300, "commit_delay: 5 s", anchor="middle", size=12)
    d.text(260, 318, "was the trigger cancelled?", anchor="middle", size=12, colour=FAINT)
    message(362, "watcher", "store", "save the state, if it is still the one that was loaded", colour=GREEN)
    message(396, "store", "watcher", "saved: the event cannot come again", colour=GREEN)
    d.text(20, 246, "a crash, a stop or", colour=AMBER, size=12)
    d.text(20, 262, "a pause here makes", colour=AMBER, size=12)
    d.text(20, 278, "the event come again,", colour=AMBER, size=12)
    d.text(20, 294, "with the same ids", colour=AMBER, size=12)
    d.text(20, 432, "before it: nothing was told, so nothing is lost", colour=FAINT, size=12)
    d.text(20, 448, "after it: the next sweep goes on behind it", colour=FAINT, size=12)
    return d.svg()


def barrier() -> str:
    """Draw why a clock is not enough for a database, and what a barrier waits for."""
    d = Drawing(
        820, 290, "The barrier: a bound is settled once every transaction that was open at it has ended"
    )
    t, fall = 330, 590
    d.arrow(20, 235, 800, 235)
    d.text(800, 255, "time, by the database's clock", anchor="end", colour=FAINT, size=12)
    for y, start, end, name, colour in (
        (70, 150, 590, "A: stamped with now()", RED),
        (110, 250, 470, "B", BLUE),
        (150, 400, 700, "C: begins after t", FAINT),
    ):
        d.box(start, y - 11, end - start, 22, fill=colour, opacity=0.18, edge=colour)
        d.text(start + 8, y + 4, name, colour=colour, size=12)
    for x, text in ((t, "t: read the clock, then list who is open: A, B"), (fall, "A and B have ended:")):
        d.line(x, 34, x, 235, width=2, dash="" if x == t else "5 3")
        d.text(x, 26, text, anchor="middle", bold=True)
    d.text(596, 196, "the barrier falls: nothing stamped", size=12, colour=GREEN)
    d.text(596, 212, "before t can still appear", size=12, colour=GREEN)
    d.dot(150, 70, colour=RED)
    d.text(20, 196, "a poll between t and the end of A", size=12, colour=FAINT)
    d.text(20, 212, "does not see A's row, stamped before t", size=12, colour=FAINT)
    return d.svg()


def multipart() -> str:
    """Draw an upload that is listed under the time at which it was begun."""
    d = Drawing(820, 230, "A multipart upload appears at its end with the time of its beginning")
    d.arrow(20, 170, 800, 170)
    d.text(800, 190, "time, by S3's clock", anchor="end", colour=FAINT, size=12)
    d.box(150, 78, 470, 24, fill=BLUE, opacity=0.18, edge=BLUE)
    d.text(160, 95, "big.parquet is uploaded in parts: no listing shows it", colour=BLUE, size=12)
    for x, text in ((150, "10:00"), (400, "12:00"), (620, "14:00")):
        d.line(x, 163, x, 177)
        d.text(x, 194, text, anchor="middle", size=12, colour=FAINT)
    d.dot(150, 170, colour=BLUE)
    d.line(400, 50, 400, 170, colour=RED, width=2, dash="5 3")
    d.text(400, 42, "a watermark that stands here ...", anchor="middle", colour=RED)
    d.arrow(620, 122, 160, 122, colour=RED, dash="4 3")
    d.text(630, 118, "appears at 14:00,", colour=RED, size=12)
    d.text(630, 134, "LastModified 10:00", colour=RED, size=12)
    d.text(
        20,
        218,
        "ListMultipartUploads tells of it from 10:00 on: the watcher keeps a slot for the key, and looks "
        "for it below the watermark",
        size=12,
        colour=GREEN,
    )
    return d.svg()


DIAGRAMS: dict[str, Callable[[], str]] = {
    "watermark.svg": watermark,
    "delivery.svg": delivery,
    "barrier.svg": barrier,
    "multipart.svg": multipart,
}


def main() -> None:
    """Draw all."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
