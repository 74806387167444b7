"""Medians, spreads and ratios of runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.objects.scenarios import Figure, Goal, Scenario

MIB: Final = 2**20
LEAST_MEMORY: Final = 1.0
"""MiB. Less is taken for so much in a ratio: a page of memory more or less is no merit."""

Runs = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several runs, the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize."""
        return cls(statistics.median(values), min(values), max(values))

    def show(self, digits: int = 3) -> str:
        """Write it, to so many significant digits."""
        if self.least == self.greatest:
            return number(self.median, digits)
        median, least, greatest = (number(each, digits) for each in (self.median, self.least, self.greatest))
        return f"{median} ({least}..{greatest})"


def number(value: float, digits: int = 3) -> str:
    """Write a number, to so many significant digits but without an exponent."""
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, digits - whole) if abs(value) >= 1 else digits - 1}f}"


def figure(name: Figure, run: dict[str, Any], objects: int) -> float | None:
    """Give a figure of a run, in the unit it is shown in; ``None`` if it was not counted."""
    match name:
        case "speed":
            return objects / float(run["seconds"])
        case "cpu":
            return float(run["cpu"]) * 1e6 / objects
        case "hold" | "cpu_hold":
            return float(run[name]) * 1000
        case "memory":
            return float(run["memory"]) / MIB
        case "requests":
            return None if run["requests"] is None else float(sum(run["requests"].values()))


def why_not(runs: Runs) -> str | None:
    """Say why there are no figures of a client; a failure of one run is one of all."""
    for run in runs:
        for outcome in ("unavailable", "failed"):
            if outcome in run:
                return f"{'not run' if outcome == 'unavailable' else 'failed'}: {run[outcome]}"
    return None if runs else "not run"


def spread(name: Figure, runs: Runs, objects: int) -> Spread | None:
    """Summarize a figure."""
    values = [value for run in runs if (value := figure(name, run, objects)) is not None]
    return Spread.of(values) if values else None


def ratio(name: Figure, runs: Runs, baseline: Runs, objects: int) -> Spread | None:
    """
    Compare a client with the baseline, run by run.

    :return: How many times better: more objects a second, or less of anything else.
    """
    ratios = []
    for run, base in zip(runs, baseline, strict=True):
        ours, theirs = figure(name, run, objects), figure(name, base, objects)
        if ours is None or theirs is None:
            return None
        if name == "memory":
            ours, theirs = max(ours, LEAST_MEMORY), max(theirs, LEAST_MEMORY)
        better = (ours, theirs) if name == "speed" else (theirs, ours)
        ratios.append(better[0] / better[1] if better[1] else float("inf"))
    return Spread.of(ratios)


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Whether a goal was reached.

    :param measured: What was measured, to be shown.
    :param outcome: ``reached``, ``stretch``, ``missed``, or why it is not known.
    """

    measured: str
    outcome: str


def judge(goal: Goal, scenario: Scenario, results: dict[str, list[dict[str, Any]]]) -> Verdict:
    """Judge a goal by the median, or by the worst run if it must never be missed."""
    runs, baseline = results[goal.client], results[scenario.baseline]
    for name in (goal.client, scenario.baseline):
        if reason := why_not(results[name]):
            return Verdict("-", f"{name} {reason}")
    objects = scenario.target.objects
    if goal.kind in {"times", "share"}:
        found = ratio(goal.figure, runs, baseline, objects)
        if found is not None and goal.kind == "share":
            found = Spread(1 / found.median, 1 / found.greatest, 1 / found.least)
    else:
        found = spread(goal.figure, runs, objects)
        if found is not None and goal.figure == "memory":
            # What a sweep needs whatever its size must not be counted ten times.
            scale = 1e6 / objects if objects >= 1_000_000 else 1.0
            found = Spread(found.median * scale, found.least * scale, found.greatest * scale)
    if found is None:
        return Verdict("-", "not counted")
    value = found.greatest if goal.kind == "never" else found.median

    def passes(limit: float) -> bool:
        return value >= limit if goal.kind == "times" else value <= limit

    if goal.stretch is not None and passes(goal.stretch):
        return Verdict(found.show(), "stretch")
    return Verdict(found.show(), "reached" if passes(goal.value) else "missed")
