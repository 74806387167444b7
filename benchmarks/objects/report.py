"""The report: Markdown, made of nothing but the scenarios and the written results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.objects.scenarios import Figure, Goal, Scenario
from benchmarks.objects.summary import judge, ratio, spread, why_not

INTRODUCTION: Final = """\
# Benchmarks of listings

Made by `make bench`; do not edit. Ours and the peers ran interleaved, in one go, each run in a fresh
process, against servers on the same machine. **The ratios are what counts**: absolute figures depend on the
machine and on what else it does, and nothing is claimed about them. A ratio compares two runs of the same
round; shown is the median of the rounds, with the least and the greatest in brackets.

How it is measured:

* CPU is that of the client's whole process, user and system, all threads, per million objects. The server's
  does not count.
* *Hold* is the longest time that a task in the client's loop, which naps for 1 ms, was not run. *CPU hold*
  is the CPU time of the loop's own thread between two naps: it leaves out other processes, but also threads
  that keep the interpreter's lock, so a client in a thread is only judged by its hold.
* Memory is the growth of the resident memory from just before the sweep to its peak; in a ratio, less than
  1 MiB counts as 1 MiB.
* Clients are connected and have done their first steps: a small listing. Ours has swept the prefix once,
  since a watcher polls. Where a backlog is delivered ours has not, and where watchers start together, the
  start itself is measured, connecting included.
* Where all is delivered, ours makes events, keeps its state and commits it, in memory; the peers make a row
  of each object. Events are acknowledged at once: there is no Airflow that stores them.
* With a prefix template, the poll that is measured is one like most: once in `reconcile_interval` one of
  them lists the whole prefix.
* Every run is checked to have found every new object and no other. Those that give names alone are checked
  to have found all.

Its limits: the benchmark's own server answers from memory, on loopback, without TLS, without throttling and
without checking signatures; 50 ms of latency are a sleep. The real servers are emulators, and slow: there the
figures show that the clients agree, and little more. GCS compresses for every client here, while the real
one does so only for those whose `User-Agent` asks for it too.
"""

GOALS: Final = """\
The goals are set for the full sizes: what every sweep costs once weighs more in a short one.
"""

HEADINGS: Final[dict[Figure, str]] = {
    "speed": "objects/s, times more",
    "cpu": "CPU, times less",
    "hold": "hold, times less",
    "cpu_hold": "CPU hold, times less",
    "memory": "memory, times less",
    "requests": "requests, times fewer",
}
UNITS: Final[dict[Figure, str]] = {
    "speed": "objects/s",
    "cpu": "CPU s per million",
    "hold": "hold, ms",
    "cpu_hold": "CPU hold, ms",
    "memory": "memory, MiB",
    "requests": "requests",
}


def markdown(scenarios: Sequence[Scenario], written: dict[str, Any], plot: str) -> str:
    """
    Write the report.

    :param written: What :func:`benchmarks.objects.runs.run_all` gave.
    :param plot: The file name of the plot.
    """
    results = written["results"]
    parts = [
        INTRODUCTION,
        "## Goals\n",
        table(goal_rows(scenarios, results)),
        GOALS,
        f"![CPU and speed]({plot})\n",
    ]
    for scenario in scenarios:
        runs = results[scenario.name]
        parts += [
            f"## {scenario.title}\n",
            f"Compared with: {scenario.baseline}.\n",
            table(ratio_rows(scenario, runs)),
            "<details><summary>As measured here</summary>\n",
            table(raw_rows(scenario, runs)),
            "</details>\n",
        ]
    parts += ["## Measured with\n", *circumstances(written)]
    return "\n".join(parts)


def table(rows: Iterator[list[str]]) -> str:
    """Write a table, the first row of which is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def goal_rows(scenarios: Sequence[Scenario], results: dict[str, Any]) -> Iterator[list[str]]:
    """Say which goals were reached."""
    yield ["scenario", "goal", "measured", "outcome"]
    for scenario in scenarios:
        for goal in scenario.goals:
            verdict = judge(goal, scenario, results[scenario.name])
            yield [scenario.title, goal_text(goal), verdict.measured, verdict.outcome]


def goal_text(goal: Goal) -> str:
    """Say what a goal is."""

    def limit(value: float) -> str:
        return f"{value:g}"

    stretch = f" (stretch {limit(goal.stretch)})" if goal.stretch is not None else ""
    of = f"{goal.client}: " if goal.client != "ours" else ""
    match goal.kind:
        case "times":
            return f"{of}{HEADINGS[goal.figure]}: at least {limit(goal.value)}{stretch}"
        case "share":
            return f"{of}{goal.figure}, as a part of the baseline's: at most {limit(goal.value)}{stretch}"
        case "most":
            return f"{of}{UNITS[goal.figure]}: at most {limit(goal.value)}{stretch}"
        case "never":
            return f"{of}{UNITS[goal.figure]}, in every run: at most {limit(goal.value)}"


def ratio_rows(scenario: Scenario, results: dict[str, Any]) -> Iterator[list[str]]:
    """Compare all clients with the baseline."""
    yield ["client", *HEADINGS.values()]
    baseline = results[scenario.baseline]
    for client, runs in results.items():
        if reason := why_not(runs):
            yield [client, reason, *[""] * (len(HEADINGS) - 1)]
            continue
        if why_not(baseline):
            yield [client, *["-"] * len(HEADINGS)]
            continue
        ratios = (ratio(name, runs, baseline, scenario.target.objects) for name in HEADINGS)
        yield [client, *("not counted" if each is None else each.show() for each in ratios)]


def raw_rows(scenario: Scenario, results: dict[str, Any]) -> Iterator[list[str]]:
    """Show all clients' figures themselves."""
    yield ["client", *UNITS.values()]
    for client, runs in results.items():
        if reason := why_not(runs):
            yield [client, reason, *[""] * (len(UNITS) - 1)]
            continue
        spreads = (spread(name, runs, scenario.target.objects) for name in UNITS)
        yield [client, *("not counted" if each is None else each.show() for each in spreads)]


def circumstances(written: dict[str, Any]) -> Iterator[str]:
    """Say with what, where, and how busy that was."""
    machine, sizes = written["machine"], written["sizes"]
    load = ", ".join(map(str, machine["load"]))
    processors = f"{machine['processors']} processors ({machine['model']})"
    yield f"* {machine['system']}, {processors}, Python {machine['python']}"
    yield f"* load average before, and after each round: {load}"
    yield "* " + ", ".join(f"{name} {value:,}" for name, value in sizes.items())
    versions: dict[str, str] = {}
    for clients in written["results"].values():
        for runs in clients.values():
            for run in runs:
                versions |= run.get("versions", {})
    yield "* " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + "\n"
