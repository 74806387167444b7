"""What the faults did: one table, printed at the end of the run and written as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEADINGS = ("fault", "interruptions", "changes", "lost", "repeated", "longest delay (s)", "restarts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one fault did.

    :param fault: its name
    :param interruptions: how often it was brought about
    :param changes: how many changes were made since it began, in all sources
    :param lost: how many of them, and of those made since the fault before, no Dag run was given
    :param repeated: how many were delivered again, each with the same id
    :param longest_delay: seconds from a change to the storing of its event
    :param restarts: how many components of Airflow ended by themselves, and were started again
    """

    fault: str
    interruptions: int
    changes: int
    lost: int
    repeated: int
    longest_delay: float
    restarts: int = 0

    def __str__(self) -> str:
        counts = f"{self.changes} changes, {self.lost} lost, {self.repeated} repeated"
        return f"{counts}, at most {self.longest_delay:.1f} s late"

    @property
    def cells(self) -> list[str]:
        """Return the row of the table."""
        numbers = (self.interruptions, self.changes, self.lost, self.repeated)
        return [
            self.fault,
            *(f"{number:,}" for number in numbers),
            f"{self.longest_delay:.1f}",
            str(self.restarts),
        ]


@dataclass(slots=True)
class Results:
    """All results of a run."""

    rows: list[Result] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the table as Markdown, in aligned columns."""
        table = [list(HEADINGS), *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [_line(cells, widths) for cells in table]
        return [
            lines[0],
            _line(["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])], widths),
            *lines[1:],
        ]

    def write(self, path: Path, services: list[str]) -> None:
        """Write the table, and below it what it was measured with."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*self.lines(), "", *(f"{line}  " for line in services), ""]))


def _line(cells: list[str], widths: list[int]) -> str:
    first, *numbers = [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join([first, *numbers]) + " |"
