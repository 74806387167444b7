"""
The SQL watcher beside its peer, ``DbApiHook.get_records`` in a thread, on one Postgres and in one run.

``python -m benchmarks.sql [--rows N]`` makes a table of N rows (5,000,000 unless said otherwise), and
measures, each several times in turn, with medians: an empty poll (latency, CPU); changed rows read (rows a
second, longest hold of the event loop, memory); the buffers that an empty poll reads.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.watermark.change import HighWatermark
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.providers.watermark.watermark import Sweep, WatermarkState
from devtools.databases import Postgres, postgres

BASE = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = ["name", "amount", "note"]
EMPTY_POLLS = {
    "window": """SELECT count(*), max(updated_at) FROM (
        SELECT updated_at FROM big WHERE updated_at > '{0}'
        AND updated_at <= '{0}'::timestamptz + interval '1 h' ORDER BY updated_at LIMIT 500) AS s""",
    "keys": "SELECT updated_at, id FROM big WHERE updated_at > '{0}' ORDER BY updated_at, id LIMIT 1000",
}


def fill(database: Postgres, rows: int) -> None:
    """Make the table: one row a second."""
    database.execute("""CREATE TABLE big (id bigint PRIMARY KEY, name text, amount numeric, note text,
                        updated_at timestamptz NOT NULL)""")
    database.execute(f"""INSERT INTO big SELECT n, 'name ' || n, n / 7.0, repeat('x', 40),
                         '{BASE.isoformat()}'::timestamptz + n * interval '1 second'
                         FROM generate_series(1, {rows}) AS n""")  # noqa: S608 - numbers of our own
    database.execute("CREATE INDEX ON big (updated_at, id)")
    database.execute("VACUUM ANALYZE big")


class Hold:
    """Finds the longest time that the loop did not run this task."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        """Nap for ever."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.monotonic() - before - 0.001)


async def timed(function: Callable[[], Awaitable[Any]]) -> tuple[float, float, float, int]:
    """Run once: seconds, CPU seconds, longest hold in seconds, growth of the peak memory in KiB."""
    hold = Hold()
    watching = asyncio.create_task(hold.watch())
    await asyncio.sleep(0.01)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    await function()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    await asyncio.sleep(0.005)
    watching.cancel()
    return seconds, cpu_seconds, hold.longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory


class Peers:
    """
    Both ways of asking.

    :param rows: How many rows the table has.
    """

    query = "SELECT updated_at, id, name, amount, note FROM big WHERE updated_at > %s ORDER BY updated_at, id"

    def __init__(self, rows: int) -> None:
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        self.hook = PostgresHook(postgres_conn_id="pg")
        self.last = BASE + timedelta(seconds=rows)
        self.trigger = SQLUpdatedAtTrigger(
            asset_name="big", conn_id="pg", table="big", primary_key="id", payload="rows", columns=COLUMNS
        )

    async def get_records(self, after: datetime) -> None:
        """Ask as an operator would, in a thread."""
        await asyncio.to_thread(self.hook.get_records, self.query, (after,))

    async def ours(self, after: datetime) -> None:
        """Read the changes of one sweep, ready for events."""
        sweep = Sweep(WatermarkState(source={}, low=after), HighWatermark(bound=BEGINNING), 0)
        async for _ in self.trigger.read_changes(sweep):
            pass

    async def poll(self) -> None:
        """Ask all that a sweep asks: the clock, the open transactions, and the rows."""
        await self.trigger.get_high_watermark()
        await self.ours(self.last)


async def measure(database: Postgres, rows: int, changed: int, rounds: int) -> None:
    """Print the figures."""
    peers = Peers(rows)
    await peers.trigger.open()
    await measure_empty_polls(peers, rows, rounds * 20)
    await measure_changed_rows(peers, changed, rounds)
    await peers.trigger.close()
    last = peers.last.isoformat()
    for title, sql in EMPTY_POLLS.items():
        plan = database.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.format(last)}")[0][0]
        top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        print(f"  buffers of an empty {title} poll: {top['Shared Hit Blocks'] + top['Shared Read Blocks']}")


async def measure_empty_polls(peers: Peers, rows: int, rounds: int) -> None:
    """Compare polls that find nothing."""
    last = peers.last
    polls: dict[str, Callable[[], Awaitable[None]]] = {
        "get_records": lambda: peers.get_records(last),
        "query": lambda: peers.ours(last),
        "whole poll": peers.poll,
    }
    runs: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in polls}
    for _ in range(rounds):
        for name, poll in polls.items():
            runs[name].append(await timed(poll))
    base = [statistics.median(run[index] for run in runs["get_records"]) for index in range(2)]
    print(f"\nempty poll, {rows} rows, {rounds} rounds (medians)")
    for name, figures in runs.items():
        latency, cpu = (statistics.median(run[index] for run in figures) for index in range(2))
        print(
            f"  {name:<12} {latency * 1000:8.3f} ms (1/{base[0] / latency:.0f})   "
            f"CPU {cpu * 1000:7.3f} ms (1/{base[1] / cpu:.0f})"
        )


async def measure_changed_rows(peers: Peers, changed: int, rounds: int) -> None:
    """Compare reading many rows; ours goes first, since the peak of memory never falls."""
    low = peers.last - timedelta(seconds=changed)
    print(f"\n{changed} changed rows, {rounds} rounds (medians)")
    for name, read in {"ours": peers.ours, "get_records": peers.get_records}.items():
        runs = [await timed(functools.partial(read, low)) for _ in range(rounds)]
        seconds, cpu, hold = (statistics.median(run[index] for run in runs) for index in range(3))
        print(
            f"  {name:<12} {changed / seconds:10.0f} rows/s   CPU {cpu:6.2f} s   "
            f"longest hold {hold * 1000:7.1f} ms   memory +{max(run[3] for run in runs) / 1024:.0f} MiB"
        )


def main() -> None:
    """Read the arguments, start the server, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changed", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with postgres() as database:
        fill(database, options.rows)
        os.environ["AIRFLOW_CONN_PG"] = database.airflow_connection_json()
        asyncio.run(measure(database, options.rows, options.changed, options.rounds))


if __name__ == "__main__":
    main()
