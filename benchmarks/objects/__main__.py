"""
Compare listings of object stores: ours beside its peers, on the same servers and in one run.

``python -m benchmarks.objects`` (or ``make bench``) prints a table of ratios, and writes it as Markdown, the
plot as SVG, and what was measured as JSON, from which both can be made again with ``--from``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.objects.plot import svg
from benchmarks.objects.report import goal_rows, markdown, ratio_rows
from benchmarks.objects.runs import run_all
from benchmarks.objects.scenarios import FULL, QUICK, Scenario, Sizes, scenarios


def say(text: str) -> None:
    """Tell how far it is, beside the output."""
    print(f"{datetime.now().astimezone():%H:%M:%S}  {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Read the arguments, measure, and write the report."""
    options = arguments()
    if options.source is not None:
        written = json.loads(options.source.read_text(encoding="utf-8"))
        sizes, day = Sizes(**written["sizes"]), datetime.fromisoformat(written["day"])
        chosen = [each for each in scenarios(sizes, day) if each.name in written["results"]]
    else:
        sizes = sizes_of(options)
        day = (datetime.now(UTC) - timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        chosen = choose(scenarios(sizes, day), options.only)
        began = time.monotonic()
        written = {"day": day.isoformat(), **run_all(chosen, sizes, options.peers_python, say)}
        say(f"done in {(time.monotonic() - began) / 60:.1f} minutes")
    write(chosen, written, options.out)
    show(chosen, written)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the objects: some minutes")
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, help=f"{getattr(FULL, field.name):,}, unless given")
    parser.add_argument("--only", nargs="+", default=[], metavar="SCENARIO", help="some scenarios only")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="a folder")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-bench/bin/python"))
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="only make the report again")
    return parser.parse_args()


def sizes_of(options: argparse.Namespace) -> Sizes:
    """Take the sizes that were asked for."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)}
    changes = {name: value for name, value in given.items() if value is not None}
    sizes = QUICK if options.quick else FULL
    if options.objects is not None:  # the rest in proportion, unless it is given as well
        changes.setdefault("peers", max(1, options.objects * sizes.peers // sizes.objects))
        changes.setdefault("real", min(sizes.real, options.objects))
    return dataclasses.replace(sizes, **changes)


def choose(known: list[Scenario], names: list[str]) -> list[Scenario]:
    """Take the scenarios that were asked for."""
    if unknown := set(names) - {scenario.name for scenario in known}:
        there = ", ".join(scenario.name for scenario in known)
        sys.exit(f"no such scenario: {', '.join(unknown)}; there are {there}")
    return [scenario for scenario in known if not names or scenario.name in names]


def write(chosen: list[Scenario], written: dict[str, Any], folder: Path) -> None:
    """Write all three files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    (folder / "results.svg").write_text(svg(chosen, written), encoding="utf-8")
    (folder / "RESULTS.md").write_text(markdown(chosen, written, "results.svg"), encoding="utf-8")
    say(f"written: {folder}/RESULTS.md, results.svg and results.json")


def show(chosen: list[Scenario], written: dict[str, Any]) -> None:
    """Print the ratios."""
    for scenario in chosen:
        print(f"\n{scenario.title}\n(compared with: {scenario.baseline})")
        print_table(list(ratio_rows(scenario, written["results"][scenario.name])))
    print("\nGoals")
    print_table([row[1:] for row in goal_rows(chosen, written["results"])])


def print_table(rows: list[list[str]]) -> None:
    """Print rows in columns; the reason why a client has no figures may run on."""
    widths = [max(len(row[column]) for row in rows if all(row)) for column in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
