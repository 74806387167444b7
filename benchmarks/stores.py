"""
How many loads and saves per second each store does, and how long one takes.

``python -m benchmarks.stores [--watchers 200] [--rounds 5] [sqlite postgres mariadb disk ministack]``. All
watchers go at once, as after the start of a triggerer; each saves a state of 2 KB, then loads it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.stores.object_storage import ObjectStorageStore
from airflow.providers.watermark.stores.sql import SqlStore, migrate
from devtools.databases import mariadb, postgres
from devtools.s3_servers import ministack

_SEEN = ["0123456789abcdef" * 8] * 15
_STORES = ("sqlite", "postgres", "mariadb", "disk", "ministack")


@contextlib.contextmanager
def _configured(name: str, folder: Path) -> Iterator[Callable[[], BaseWatermarkStore]]:
    os.environ["AIRFLOW__WATERMARK__SQL_CONN_ID"] = "watermarks"
    with contextlib.ExitStack() as stack:
        if name in {"disk", "ministack"}:
            url = folder.as_uri()
            if name == "ministack":
                server = stack.enter_context(ministack())
                server.client().create_bucket(Bucket="lake")
                os.environ["AIRFLOW_CONN_MARKS"] = server.airflow_connection_json()
                url = "s3://marks@lake/marks"
            os.environ["AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH"] = url
            yield ObjectStorageStore
            return
        if name == "sqlite":
            connection = json.dumps({"conn_type": "sqlite", "host": str(folder / "watermarks.db")})
        else:
            database = stack.enter_context(postgres() if name == "postgres" else mariadb())
            connection = database.airflow_connection_json()
        os.environ["AIRFLOW_CONN_WATERMARKS"] = connection
        migrate()
        yield SqlStore


async def _timed(works: Iterable[Awaitable[Any]]) -> tuple[float, list[float]]:
    """Do all at once; give the seconds in all, and those of each."""

    async def timed(work: Awaitable[Any]) -> float:
        started = time.perf_counter()
        await work
        return time.perf_counter() - started

    started = time.perf_counter()
    each = await asyncio.gather(*map(timed, works))
    return time.perf_counter() - started, list(each)


async def _measure(
    name: str, make_store: Callable[[], BaseWatermarkStore], watchers: int, rounds: int
) -> None:
    stores = [make_store() for _ in range(watchers)]
    keys = [WatermarkKey(f"asset-{number}", "s3", "key") for number in range(watchers)]
    await stores[0].load(keys[0])  # connects
    values: list[dict[str, Any] | None] = [None] * watchers
    figures: dict[str, list[tuple[float, list[float]]]] = {"save": [], "load": []}
    for number in range(1, rounds + 1):
        new = {"revision": number, "seen": _SEEN}
        saves = (
            store.save(key, new, expected=value)
            for store, key, value in zip(stores, keys, values, strict=True)
        )
        figures["save"].append(await _timed(saves))
        figures["load"].append(await _timed(store.load(key) for store, key in zip(stores, keys, strict=True)))
        values = [new] * watchers
    for what, measured in figures.items():
        rates = [watchers / seconds for seconds, _ in measured]
        alone, _ = await _timed([stores[0].load(keys[0])]) if what == "load" else (0.0, [])
        each = [latency for _, latencies in measured for latency in latencies]
        line = f"{name:10} {what}: {statistics.median(rates):7.0f} a second; {watchers} at once, each within "
        line += f"{max(each) * 1000:.0f} ms (median {statistics.median(each) * 1000:.0f} ms)"
        print(line + (f"; alone {alone * 1000:.1f} ms" if alone else ""))
    await stores[0].close()


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stores", nargs="*", choices=[*_STORES, []], default=[])
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for name in given.stores or _STORES:
        with tempfile.TemporaryDirectory() as folder, _configured(name, Path(folder)) as make_store:
            asyncio.run(_measure(name, make_store, given.watchers, given.rounds))


if __name__ == "__main__":
    main()
