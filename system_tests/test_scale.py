"""Hundreds of watchers in one triggerer, with changes that arrive: ``SYSTEM_TEST_MINUTES``, by default 10."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from devtools.airflow_home import AirflowHome
from devtools.airflow_postgres import PostgresMetadata
from system_tests import scale
from system_tests.conftest import BUILD
from system_tests.plot import Panel, svg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from system_tests.services import Services

WATCHERS = int(os.environ.get("SYSTEM_TEST_WATCHERS", "500"))
MINUTES = float(os.environ.get("SYSTEM_TEST_MINUTES", "10"))
POLL_INTERVAL = 30.0
RATE = 5.0
LONGEST_HOLD = 0.1
"""Seconds for which the event loop may be held at once."""


@pytest.mark.scale
@pytest.mark.timeout(MINUTES * 60 + 900)
def test_hundreds_of_watchers_in_one_triggerer(services: Services, tmp_path: Path) -> None:
    """The event loop is never held for long, memory is flat, there is no warning, and nothing is missed."""
    services.metadata.execute("create database scale")
    metadata = PostgresMetadata(replace(services.metadata, dbname="scale"))
    probe = tmp_path / "probe.jsonl"
    scale.write_dags(tmp_path / "dags", WATCHERS, POLL_INTERVAL, probe)
    scale.make_sources(services)
    airflow = AirflowHome(
        tmp_path / "airflow",
        dags_folder=tmp_path / "dags",
        connections={
            "s3_source": services.s3.airflow_connection_json(),
            "google_cloud_default": services.gcs.airflow_connection_json(),
            "pg_source": services.postgres.airflow_connection_json(),
        },
        environment={
            "STORAGE_EMULATOR_HOST": services.gcs.endpoint_url,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            # Ten Dag files need not be read again all the time.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        },
        metadata=metadata,
    )
    with airflow, contextlib.closing(metadata):
        airflow.start("dag-processor", "triggerer")
        airflow.wait_until(
            "watermark of each watcher",
            lambda: len(metadata.variable_names("watermark:")) >= WATCHERS,
            timeout=600,
        )
        began = time.time()
        with scale.Changes(services, WATCHERS, RATE) as changes:
            while time.time() < began + MINUTES * 60:
                airflow.check()
                changes.check()
                time.sleep(2)
        ended = time.time()
        changes.check()

        def missed() -> dict[str, set[object]]:
            found = scale.delivered(metadata)
            return {name: gone for name, made in changes.made.items() if (gone := made - set(found[name]))}

        deadline = time.monotonic() + 4 * POLL_INTERVAL
        while missed() and time.monotonic() < deadline:
            time.sleep(2)
        lost, found = missed(), scale.delivered(metadata)
        log = (airflow.path / "triggerer.log").read_text(errors="replace")
    lines = [json.loads(line) for line in probe.read_text().splitlines()]
    during = [line for line in lines if began <= line["at"] <= ended]
    warnings = [line for line in log.splitlines() if _is_warning(line)]
    result = {
        "watchers": WATCHERS,
        "minutes": MINUTES,
        "changes": sum(map(len, changes.made.values())),
        "missed": sum(map(len, lost.values())),
        "repeated": sum(len(keys) - len(set(keys)) for keys in found.values()),
        "longest hold (ms)": max(line["held"] for line in during) * 1000,
        "longest hold, but for the garbage collector (ms)": max(map(_own, during)) * 1000,
        "longest run of the garbage collector (ms)": max(line["collected"] for line in during) * 1000,
        "longest hold, with what other processes took (ms)": max(line["late"] for line in during) * 1000,
        "memory in the beginning (MB)": _memory(during[: len(during) // 5]),
        "memory at the end (MB)": _memory(during[-len(during) // 5 :]),
        "warnings": [line for line in warnings if _time(line) >= began and not _is_of_loop(line)],
        "warnings of a busy loop": [line for line in warnings if _time(line) >= began and _is_of_loop(line)],
        "while starting: longest hold (ms)": _longest(lines, before=began),
        "while starting: warnings": [line for line in warnings if _time(line) < began],
    }
    _write(result, during, began)
    assert not lost
    assert not result["repeated"]
    # Python collects the garbage of the whole process at once: that is Airflow's and the SDKs', too.
    assert result["longest hold, but for the garbage collector (ms)"] <= LONGEST_HOLD * 1000
    assert result["memory at the end (MB)"] <= 1.05 * result["memory in the beginning (MB)"]
    assert not result["warnings"]


def _table(result: dict[str, Any]) -> Iterator[str]:
    """Write the figures as Markdown."""
    yield "| figure | |"
    yield "| --- | ---: |"
    for name, value in result.items():
        shown = f"{len(value)}" if isinstance(value, list) else f"{value:,.0f}"
        yield f"| {name} | {shown} |"
    yield ""


def _is_warning(line: str) -> bool:
    """Tell whether the triggerer warned of watchers: of a made-up password of four letters it may."""
    if _is_of_loop(line):
        return True
    known = ("Skipping masking for a secret", "ASGI app factory")
    return bool(re.search(r"\[(warning|error|critical) *\]", line)) and not any(
        each in line for each in known
    )


def _is_of_loop(line: str) -> bool:
    """Tell whether it is the triggerer's own watchdog: whatever keeps the processors busy sets it off."""
    return "thread was blocked" in line


def _own(line: dict[str, float]) -> float:
    return max(0.0, line["held"] - line["collected"])


def _longest(lines: list[dict[str, float]], *, before: float) -> float:
    return max(line["held"] for line in lines if line["at"] < before) * 1000


def _time(line: str) -> float:
    return datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()


def _memory(lines: list[dict[str, float]]) -> float:
    return max(line["memory"] for line in lines) / 1e6


def _write(result: dict[str, Any], lines: list[dict[str, float]], began: float) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    print(json.dumps(result, indent=1))
    (BUILD / "scale.md").write_text("\n".join(_table(result)))
    minutes = [(line["at"] - began) / 60 for line in lines]

    def panel(title: str, name: str, factor: float, limit: float | None = None) -> Panel:
        points = [(x, line[name] * factor) for x, line in zip(minutes, lines, strict=True)]
        return Panel(title=title, points=points, limit=limit)

    title = f"{WATCHERS} watchers: longest hold of the event loop in each second (ms)"
    panels = [
        panel(title, "held", 1000, LONGEST_HOLD * 1000),
        panel("The same with the time for which other processes had the processors (ms)", "late", 1000),
        panel("Memory of the triggerer's runner (MB)", "memory", 1e-6),
    ]
    (BUILD / "scale.svg").write_text(svg(panels))
