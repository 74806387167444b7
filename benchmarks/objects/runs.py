"""Runs every client of every scenario, interleaved, each time in a fresh process."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.objects import servers
from benchmarks.objects.scenarios import Contender, Scenario, Sizes
from benchmarks.objects.target import Target

TIMEOUT = 1200.0

Results = dict[str, dict[str, list[dict[str, Any]]]]
"""By scenario and client: one result a run."""


def run_all(
    scenarios: Sequence[Scenario], sizes: Sizes, peers_python: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """
    Run, and give what is written down.

    :param peers_python: The interpreter of the environment for what does not fit beside Airflow.
    """
    pythons = {"airflow": sys.executable, "peers": str(peers_python)}
    results: Results = {scenario.name: {name: [] for name in scenario.contenders} for scenario in scenarios}
    shuffled = random.Random(1)
    load = [os.getloadavg()[0]]
    say("starting and filling the servers")
    with servers.targets(scenarios) as targets:
        for repeat in range(sizes.repeats):
            for scenario in scenarios:
                names = list(scenario.contenders)
                shuffled.shuffle(names)
                for name in names:
                    contender = scenario.contenders[name]
                    result = run_one(scenario, contender, targets[scenario.name], pythons[contender.venv])
                    results[scenario.name][name].append(result)
                    say(f"{repeat + 1}/{sizes.repeats}  {scenario.name:<16} {name:<38} {_short(result)}")
            load.append(os.getloadavg()[0])
    return {"sizes": dataclasses.asdict(sizes), "machine": machine(load), "results": results}


def run_one(scenario: Scenario, contender: Contender, target: Target, python: str) -> dict[str, Any]:
    """Run a client once; what goes wrong is a result as well."""
    job = {
        "client": f"benchmarks.objects.{contender.path}",
        "options": contender.options,
        "target": target.to_wire(),
        "warm": scenario.warm,
        "control": scenario.control if scenario.server == "stub" else None,
    }
    if not Path(python).exists():
        return {"unavailable": f"there is no {python}"}
    # What the user has set for real clouds must not count here.
    foreign = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    try:
        done = subprocess.run(
            [python, "-m", "benchmarks.objects.worker", json.dumps(job)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {TIMEOUT:.0f} s"}
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
    if done.returncode:
        return {"failed": lines[-1]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _short(result: dict[str, Any]) -> str:
    if "seconds" not in result:
        return "; ".join(f"{name}: {why}" for name, why in result.items())
    return (
        f"{result['seconds']:8.2f} s  CPU {result['cpu']:7.2f} s  hold {result['hold'] * 1000:7.1f} ms  "
        f"memory +{result['memory'] / 2**20:.0f} MiB"
    )


def machine(load: list[float]) -> dict[str, Any]:
    """Say where it was measured, and how busy that was."""
    model = "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "model": model,
        "python": platform.python_version(),
        "load": [round(value, 1) for value in load],
    }
