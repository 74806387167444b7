"""Hundreds of watchers in one triggerer, with changes that arrive: ``SYSTEM_TEST_MINUTES``, by default 10.

Their watermarks are in the ``sql`` store, as the documentation recommends it for so many.

``SYSTEM_TEST_WATCHERS`` and ``SYSTEM_TEST_POLL_INTERVAL`` (seconds) make a short run of fewer meaningful.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from devtools.airflow_home import AirflowHome
from devtools.airflow_postgres import PostgresMetadata
from system_tests import scale
from system_tests.conftest import BUILD
from system_tests.plot import Panel, svg
from system_tests.probe import TICK, coverage, growth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devtools.databases import Postgres
    from system_tests.probe import Line
    from system_tests.scale import Key
    from system_tests.services import Services

WATCHERS = int(os.environ.get("SYSTEM_TEST_WATCHERS", "500"))
MINUTES = float(os.environ.get("SYSTEM_TEST_MINUTES", "10"))
POLL_INTERVAL = float(os.environ.get("SYSTEM_TEST_POLL_INTERVAL", "30"))
RATE = WATCHERS / 100
"""Changes a second: one in each place within 100 seconds."""

LONGEST_HOLD = 0.1
"""Seconds for which the event loop may be held at once."""
LONGEST_DELAY = 2 * POLL_INTERVAL + 5
"""Seconds from a change to its event.

What one poll just misses the next finds, 1.1 intervals later. The rest is for the poll itself, and for the
triggerer, which stores events in turn.
"""

_FORGIVEN = "of these, while other processes had the processors"


@pytest.mark.scale
@pytest.mark.timeout(MINUTES * 60 + 2 * LONGEST_DELAY + 900)
def test_hundreds_of_watchers_in_one_triggerer(
    services: Services, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop is never held for long, memory is flat, nothing is warned of, and all is delivered in time."""
    run = _run(services, tmp_path)
    result = _figures(run)
    with capsys.disabled():
        print(f"\n{json.dumps(result, indent=1)}")
    _write(result, run)
    assert not result["missed"]
    assert not result["repeated"]
    assert result["watchers that delivered a last change"] == WATCHERS
    assert min(run.paced[kind] for kind in scale.KINDS) >= 0.8 * RATE * MINUTES * 60 / len(scale.KINDS)
    assert result["longest delay (s)"] <= LONGEST_DELAY
    assert result["seconds measured (%)"] >= 95
    # The collector's runs count: whoever waits does not care why. A hold may look shorter by a tick.
    assert result["longest hold (ms)"] <= (LONGEST_HOLD - TICK) * 1000
    assert result["memory growth in the second half (MB a minute)"] <= scale.LARGEST_GROWTH
    assert not result["warnings"]
    assert result["warnings of a busy loop"] == result[_FORGIVEN]


def _run(services: Services, path: Path) -> scale.Run:
    """Start everything, make changes until all is delivered, and say what happened."""
    probe = path / "probe.jsonl"
    scale.make_sources(services)
    services.metadata.execute("create database watermarks")
    store = replace(services.metadata, dbname="watermarks")
    airflow, metadata = _airflow(services, store, path, probe)
    with airflow, contextlib.closing(metadata):
        airflow.command_line("migrate")
        airflow.start("dag-processor", "triggerer")
        airflow.wait_until("line of the probe", lambda: probe.exists() and probe.read_text(), timeout=600)
        airflow.wait_until(
            "watermark of each watcher",
            lambda: store.execute("select count(*) from asset_watermarks")[0][0] >= WATCHERS,
            timeout=600,
        )
        began = time.time()
        ended, made = _make_changes(services, airflow)
        return scale.Run(
            began=began,
            ended=ended,
            stopped=time.time(),
            made=made,
            delivered=scale.delivered(metadata),
            measured=scale.measured(probe),
            log=(airflow.path / "triggerer.log").read_text(errors="replace"),
        )


def _make_changes(services: Services, airflow: AirflowHome) -> tuple[float, dict[Key, float]]:
    """Make changes for some minutes and one more in each place, and wait for the last.

    :return: when one more in each place began, and all changes
    """
    with scale.Changes(services, WATCHERS, RATE) as changes:
        enough = time.monotonic() + MINUTES * 60
        while time.monotonic() < enough:
            airflow.check()
            changes.check()
            time.sleep(2)
    changes.check()
    ended = time.time()
    changes.change_all()
    deadline = time.monotonic() + 2 * LONGEST_DELAY
    while changes.made.keys() - scale.delivered(airflow.metadata).keys() and time.monotonic() < deadline:
        time.sleep(2)
    return ended, changes.made


def _airflow(
    services: Services, store: Postgres, path: Path, probe: Path
) -> tuple[AirflowHome, PostgresMetadata]:
    services.metadata.execute("create database scale")
    metadata = PostgresMetadata(replace(services.metadata, dbname="scale"))
    scale.write_dags(path / "dags", WATCHERS, POLL_INTERVAL, probe)
    airflow = AirflowHome(
        path / "airflow",
        dags_folder=path / "dags",
        connections={
            "s3_source": services.s3.airflow_connection_json(),
            "google_cloud_default": services.gcs.airflow_connection_json(),
            "pg_source": services.postgres.airflow_connection_json(),
            "watermarks": store.airflow_connection_json(),
        },
        environment={
            "STORAGE_EMULATOR_HOST": services.gcs.endpoint_url,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "AIRFLOW__WATERMARK__STORE": "airflow.providers.watermark.stores.sql.SqlStore",
            "AIRFLOW__WATERMARK__SQL_CONN_ID": "watermarks",
            # Ten Dag files need not be read again all the time.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        },
        metadata=metadata,
    )
    return airflow, metadata


def _figures(run: scale.Run) -> dict[str, Any]:
    """Return what the table shows: of a list the length."""
    first = [line for line in run.measured if line["at"] < run.began]
    warnings = scale.warnings(run.log)
    return {
        "watchers": WATCHERS,
        "minutes": MINUTES,
        **_deliveries(run),
        "seconds measured (%)": coverage(run.during, run.began, run.stopped) * 100,
        "longest hold (ms)": _longest(run.during, "held"),
        "longest hold, but for the garbage collector (ms)": _longest(run.during, "own"),
        "longest run of the garbage collector (ms)": _longest(run.during, "collected"),
        "longest hold, with what other processes took (ms)": _longest(run.during, "late"),
        "memory in the beginning (MB)": _memory(run.during[: len(run.during) // 5]),
        "memory at the end (MB)": _memory(run.during[-len(run.during) // 5 :]),
        "memory growth in the second half (MB a minute)": growth(run.during) / 1e6,
        **_warnings([line for line in warnings if scale.written_at(line) >= run.began], run.during),
        "while starting: longest hold (ms)": _longest(first, "held"),
        "while starting: warnings": [line for line in warnings if scale.written_at(line) < run.began],
    }


def _deliveries(run: scale.Run) -> dict[str, Any]:
    delays = run.delays
    last = {key for key, at in run.made.items() if at >= run.ended}
    return {
        "changes": len(run.made),
        "missed": len(run.made.keys() - run.delivered.keys()),
        "repeated": sum(len(times) - 1 for times in run.delivered.values()),
        "watchers that delivered a last change": len({name for name, _ in last & run.delivered.keys()}),
        "median delay (s)": statistics.median(delays),
        "99th percentile of the delay (s)": statistics.quantiles(delays, n=100, method="inclusive")[-1],
        "longest delay (s)": max(delays),
    }


def _warnings(lines: list[str], measured: list[Line]) -> dict[str, list[str]]:
    of_loop = [line for line in lines if scale.is_of_loop(line)]
    return {
        "warnings": [line for line in lines if line not in of_loop],
        "warnings of a busy loop": of_loop,
        _FORGIVEN: [line for line in of_loop if scale.is_forgiven(line, measured)],
    }


def _table(result: dict[str, Any]) -> Iterator[str]:
    """Write the figures as Markdown."""
    yield "| figure | |"
    yield "| --- | ---: |"
    for name, value in result.items():
        shown = f"{len(value)}" if isinstance(value, list) else f"{round(value, 1):,g}"
        yield f"| {name} | {shown} |"
    yield ""


def _longest(lines: list[Line], name: str) -> float:
    return max(line[name] for line in lines) * 1000


def _memory(lines: list[Line]) -> float:
    return statistics.median(line["memory"] for line in lines) / 1e6


def _write(result: dict[str, Any], run: scale.Run) -> None:
    """Write the table, and the plot."""
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "scale.md").write_text("\n".join(_table(result)))

    def panel(title: str, name: str, factor: float, limit: float | None = None) -> Panel:
        points = [((line["at"] - run.began) / 60, line[name] * factor) for line in run.during]
        return Panel(title=title, points=points, limit=limit)

    title = f"{WATCHERS} watchers: longest hold of the event loop in each second (ms)"
    panels = [
        panel(title, "held", 1000, LONGEST_HOLD * 1000),
        panel("The same with the time for which other processes had the processors (ms)", "late", 1000),
        panel("Memory of the triggerer's runner (MB)", "memory", 1e-6),
    ]
    (BUILD / "scale.svg").write_text(svg(panels))
