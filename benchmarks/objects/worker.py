"""
One run: ``python -m benchmarks.objects.worker '<JSON>'``, in a fresh process, whose last line is the result.

Imports nothing but the standard library before it knows which client to run: each may need another
environment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import importlib.metadata
import json
import logging
import sys
import urllib.request
import warnings
from typing import Any

from benchmarks.objects.figures import measure
from benchmarks.objects.target import Client, NotAvailableError, Target


async def run(job: dict[str, Any]) -> dict[str, Any]:
    """
    Run a client: connect, warm up, measure one sweep.

    :param job: ``client`` (a class path), ``options`` (its arguments), ``target``, ``warm`` (``whole`` for a
        whole sweep before the measured one), and how the server is to answer that one (``control``, a query;
        ``None`` if it cannot be told).
    """
    target = Target.from_wire(job["target"])
    module, name = job["client"].split(":")
    client: Client = getattr(importlib.import_module(module), name)(target, **job["options"])
    control = job["control"]
    if control is not None:
        ask(target, "/_control")
    await client.open()
    await (client.sweep() if job["warm"] == "whole" else client.warm_up())
    if control is not None:
        ask(target, f"/_control?{control}")
    news, figures = await measure(client.sweep())
    counts = None if control is None else ask(target, "/_counts")
    await client.close()
    check(client, target, news, counts)
    return {
        **dataclasses.asdict(figures),
        "requests": counts and {name: count for name, count in counts.items() if name != "objects"},
        "listed": counts and counts["objects"],
        "versions": {package: importlib.metadata.version(package) for package in client.packages},
    }


def check(client: Client, target: Target, news: int, counts: dict[str, int] | None) -> None:
    """Refuse the figures of a client that did not find everything, and nothing else."""
    expected = target.news if client.tells_news else target.objects
    if news != expected:
        raise AssertionError(f"it found {news} objects where there are {expected}")
    if counts is not None and (odd := [name for name in counts if name.startswith("unknown")]):
        raise AssertionError(f"it asked what the server does not know: {odd}")


def ask(target: Target, path: str) -> dict[str, int]:
    """Ask the benchmark's server."""
    with urllib.request.urlopen(target.endpoint + path, timeout=60) as answer:
        counts: dict[str, int] = json.load(answer)
    return counts


def main() -> None:
    """Run, and print the result as one line of JSON."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    try:
        result = asyncio.run(run(json.loads(sys.argv[1])))
    except (NotAvailableError, ImportError) as error:
        result = {"unavailable": f"{error}"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
