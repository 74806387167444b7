"""
How many loads and saves per second each store does in a real triggerer, and how long one takes.

``python -m benchmarks.stores [--watchers 200] [--rounds 5] [variable asset_state sqlite postgres ...]``.
For each store a real Airflow is started, with a Dag processor and a triggerer, and a Dag with so many
watchers. All of them save at once, again and again; all load at once; then, as polls do, each loads and saves
once at a time of its own within :data:`PACED` seconds. A state has 2 KB. Meanwhile one of them looks how long
the event loop, which all triggers share, is held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey, configured_store
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from devtools.airflow_home import AirflowHome
from devtools.databases import mariadb, postgres
from devtools.s3_servers import ministack

PACED: Final = 20.0
_SEEN = ["0123456789abcdef" * 8] * 15
_MODULE = "airflow.providers.watermark.stores"
_CLASSES = {"variable": "variable.VariableStore", "asset_state": "asset_state.AssetStateStore"}
_SQL, _OBJECTS = ("sqlite", "postgres", "mariadb"), ("disk", "ministack")
_STORES = (*_CLASSES, *_SQL, *_OBJECTS)
_DAG = """
from airflow.sdk import DAG, Asset, AssetWatcher
from benchmarks.stores import StoreTrigger

def asset(number):
    name = f"asset-{{number}}"
    trigger = StoreTrigger(asset_name=name, **{arguments})
    return Asset(name, watchers=[AssetWatcher(name="bench", trigger=trigger)])

with DAG("bench", schedule=[asset(number) for number in range({watchers})]):
    pass
"""


class _Run:
    """What the watchers of a triggerer have in common."""

    def __init__(self, watchers: int) -> None:
        self.barrier = asyncio.Barrier(watchers)
        self.turns: dict[str, list[tuple[float, float]]] = {}
        self.held = [0.0]
        self.error = ""

    async def watch_loop(self) -> None:
        """Find out for how long the loop is held at the most, in each phase."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            self.held[-1] = max(self.held[-1], time.perf_counter() - began - 0.005)


_run: _Run | None = None


class StoreTrigger(BaseEventTrigger):
    """
    One watcher: loads and saves when all others do.

    :param asset_name: Its asset.
    :param store: The class path of its store.
    :param watchers: How many there are.
    :param rounds: Saves, and loads, of each.
    :param result: The file for what was measured.
    """

    def __init__(self, *, asset_name: str, store: str, watchers: int, rounds: int, result: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset_name, self.store, self.watchers = asset_name, store, watchers
        self.rounds, self.result = rounds, result

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Give the arguments."""
        names = ("asset_name", "store", "watchers", "rounds", "result")
        return "benchmarks.stores.StoreTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure, and wait for the end."""
        global _run  # noqa: PLW0603 - one for all of this process
        _run = _run or _Run(self.watchers)
        store = configured_store(self.store)
        store.bind(self)
        try:
            await self._measure(_run, store)
        except Exception as error:
            _run.error = repr(error)
            self._write(_run)
            raise
        await asyncio.Event().wait()
        yield TriggerEvent(None)  # never

    async def _measure(self, run: _Run, store: BaseWatermarkStore) -> None:
        key, value = WatermarkKey(self.asset_name, "bench", "key"), {"revision": 0, "seen": _SEEN}
        await store.save(key, value, expected=await store.load(key))  # connects
        is_first = await run.barrier.wait() == 0
        looking = asyncio.create_task(run.watch_loop()) if is_first else None

        async def save() -> None:
            nonlocal value
            new = {**value, "revision": int(str(value["revision"])) + 1}
            await store.save(key, new, expected=value)
            value = new

        async def load() -> None:
            await store.load(key)

        for name, action in (("save", save), ("load", load)):
            await run.barrier.wait()
            for _ in range(self.rounds):
                await self._timed(run, name, action)
        if await run.barrier.wait() == 0:
            run.held.append(0.0)
        await asyncio.sleep(random.uniform(0, PACED))
        for name, action in (("paced load", load), ("paced save", save)):
            await self._timed(run, name, action)
        if await run.barrier.wait() == 0:
            self._write(run)
        if looking:
            looking.cancel()

    @staticmethod
    async def _timed(run: _Run, name: str, action: Callable[[], Awaitable[None]]) -> None:
        began = time.perf_counter()
        await action()
        run.turns.setdefault(name, []).append((began, time.perf_counter()))

    def _write(self, run: _Run) -> None:
        new = Path(f"{self.result}.new")
        new.write_text(json.dumps({"turns": run.turns, "held": run.held, "error": run.error}))
        new.replace(self.result)


@contextlib.contextmanager
def _configured(name: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Start what a store needs; give its class path, and the settings that lead there."""
    if name in _CLASSES:
        yield f"{_MODULE}.{_CLASSES[name]}", {}
    elif name == "disk":
        (folder / "marks").mkdir()
        path = {"AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH": (folder / "marks").as_uri()}
        yield f"{_MODULE}.object_storage.ObjectStorageStore", path
    elif name == "ministack":
        with ministack() as server:
            server.client().create_bucket(Bucket="lake")
            settings = {
                "AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH": "s3://marks@lake/marks",
                "AIRFLOW_CONN_MARKS": server.airflow_connection_json(),
            }
            yield f"{_MODULE}.object_storage.ObjectStorageStore", settings
    else:
        with contextlib.ExitStack() as stack:
            connection = json.dumps({"conn_type": "sqlite", "host": str(folder / "watermarks.db")})
            if name != "sqlite":
                database = stack.enter_context(postgres() if name == "postgres" else mariadb())
                connection = database.airflow_connection_json()
            settings = {
                "AIRFLOW__WATERMARK__SQL_CONN_ID": "watermarks",
                "AIRFLOW_CONN_WATERMARKS": connection,
            }
            yield f"{_MODULE}.sql.SqlStore", settings


def _in_a_triggerer(name: str, watchers: int, rounds: int) -> dict[str, Any]:
    """Measure a store; give what its watchers have written."""
    with tempfile.TemporaryDirectory() as scratch, _configured(name, Path(scratch)) as (store, settings):
        folder, result = Path(scratch), Path(scratch, "result.json")
        arguments = {"store": store, "watchers": watchers, "rounds": rounds, "result": str(result)}
        (folder / "dags").mkdir()
        (folder / "dags" / "bench.py").write_text(_DAG.format(arguments=arguments, watchers=watchers))
        environment = {
            **settings,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        }
        with AirflowHome(folder / "home", dags_folder=folder / "dags", environment=environment) as airflow:
            if "SqlStore" in store:
                migrate = [sys.executable, "-m", "airflow.providers.watermark", "migrate"]
                subprocess.run(migrate, env=airflow.environment, check=True, capture_output=True)
            airflow.start("dag-processor", "triggerer")
            airflow.wait_until("result", result.exists, timeout=300)
            found: dict[str, Any] = json.loads(result.read_text())
    if found["error"]:
        raise RuntimeError(found["error"])
    return found


def _row(name: str, found: dict[str, Any]) -> list[str]:
    def rate(what: str) -> str:
        turns = found["turns"][what]
        return f"{len(turns) / (max(end for _, end in turns) - min(began for began, _ in turns)):.0f}"

    def latency(what: str) -> str:
        each = sorted((end - began) * 1000 for began, end in found["turns"][what])
        return f"{statistics.median(each):.1f} / {each[int(len(each) * 0.99)]:.0f}"

    return [
        name,
        *(
            cell
            for what in ("load", "save")
            for cell in (rate(what), latency(what), latency(f"paced {what}"))
        ),
        " / ".join(f"{seconds * 1000:.0f}" for seconds in found["held"]),
    ]


_HEAD = [
    "store",
    *("loads/s", "all at once, ms", "paced, ms"),
    *("saves/s", "all at once, ms", "paced, ms"),
    "loop held at most, at once / paced, ms",
]


def main() -> None:
    """Measure what the command line asks for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stores", nargs="*", choices=[*_STORES, []], default=[])
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{given.watchers} watchers, latencies as median / 99th percentile; {os.cpu_count()} CPUs")
    print(f"| {' | '.join(_HEAD)} | load before |\n|{'---|' * (len(_HEAD) + 1)}")
    for name in given.stores or _STORES:
        load = f"{os.getloadavg()[0]:.1f}"
        row = _row(name, _in_a_triggerer(name, given.watchers, given.rounds))
        print(f"| {' | '.join([*row, load])} |", flush=True)


if __name__ == "__main__":
    main()
