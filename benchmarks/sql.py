"""
The SQL watcher beside its peer, ``DbApiHook.get_records`` in a thread, on one Postgres and in one run.

``python -m benchmarks.sql [--rows N]`` makes a table of N rows (5,000,000 unless said otherwise), and
measures, each several times in turn, with medians: an empty poll (latency, CPU); changed rows found as
windows, and as keys and rows, read only and made into the JSON of events (rows a second, longest hold of the
event loop, memory); rows that are read again between the settled bound and now, since they are in the state's
seen set; and the buffers that an empty poll reads.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from airflow.providers.watermark.change import HighWatermark
from airflow.providers.watermark.events import Batch
from airflow.providers.watermark.position import BEGINNING, Position
from airflow.providers.watermark.sql import open_database
from airflow.providers.watermark.sql.query import WatchedQuery
from airflow.providers.watermark.triggers.sql import PAGE_SIZE, SQLUpdatedAtTrigger
from airflow.providers.watermark.watermark import Sweep, WatermarkState
from devtools.databases import Postgres, postgres

BASE = datetime(2026, 1, 1, tzinfo=UTC)
REMEMBERED = 65536
"""The most that ``max_seen`` may be."""

POLLS = 10
"""Polls at a time: one alone takes less than what measures it."""

COLUMNS = ["name", "amount", "note"]
QUERY = "SELECT {} FROM big WHERE updated_at > %s ORDER BY updated_at, id"
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

    def __init__(self, rows: int) -> None:
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        self.hook = PostgresHook(postgres_conn_id="pg", log_sql=False)
        self.last = BASE + timedelta(seconds=rows)
        self.watch("rows")

    def watch(self, payload: str) -> None:
        """Make a watcher that is not opened yet."""
        rows = payload == "rows"
        self.query = QUERY.format("updated_at, id, name, amount, note" if rows else "updated_at, id")
        self.trigger = SQLUpdatedAtTrigger(
            asset_name="big",
            conn_id="pg",
            table="big",
            primary_key="id",
            payload=payload,
            columns=COLUMNS if rows else [],
        )

    async def get_records(self, after: datetime) -> None:
        """Ask as an operator would, in a thread."""
        await asyncio.to_thread(self.hook.get_records, self.query, (after,))

    async def get_records_as_json(self, after: datetime) -> None:
        """Likewise, and write each row as a JSON object, which is what an event carries."""

        def work() -> None:
            for row in self.hook.get_records(self.query, (after,)):
                json.dumps(dict(enumerate(row)), default=str)

        await asyncio.to_thread(work)

    async def read(self, after: datetime, seen: Mapping[str, Position] = MappingProxyType({})) -> int:
        """Read as a sweep does; what was delivered already is told by its id, and goes no further."""
        sweep = self.sweep(after, seen)
        return sum([len(page.changes) async for page in self.trigger.read_changes(sweep)])

    async def read_pages(self, after: datetime) -> int:
        """Read the rows as a sweep does, and make nothing of them, as :meth:`get_records` does."""
        columns = COLUMNS if self.trigger.payload == "rows" else []
        query = WatchedQuery(
            table="big", query=None, cursor_column="updated_at", primary_key=("id",), columns=tuple(columns)
        )
        database = await open_database(
            "pg", user="big", ignore_roles=[], max_bound_wait=None, log=logging.getLogger(__name__)
        )
        place: tuple[Any, ...] | None = None
        found = 0
        while rows := await database.fetch(query.page(after, after=place, before=None, limit=PAGE_SIZE)):
            place, found = (rows[-1][0], rows[-1][1]), found + len(rows)
            await asyncio.sleep(0)
        await database.close()
        return found

    async def count(self, after: datetime) -> int:
        """Find windows, one after another, as a sweep does."""
        low: Position = after
        found = 0
        while window := await self.trigger.find_window(low, self.last, None):
            low, found = window.high, found + window.count
        return found

    async def deliver(self, after: datetime, *, settled: bool = True) -> dict[str, Position]:
        """
        Read as a sweep does, and make events, up to their JSON text.

        :param settled: Whether the rows are settled, as a backlog is; else all are remembered.
        :return: What is remembered.
        """
        sweep, trigger = self.sweep(after, bound=self.last if settled else BEGINNING), self.trigger
        batch = Batch(
            watcher=trigger.watcher_name,
            source=trigger.source,
            low=sweep.low,
            high=sweep.high,
            epoch=1,
            max_changes=trigger.max_changes_per_event,
            max_bytes=trigger.max_event_bytes,
        )
        async for page in trigger.read_changes(sweep):
            for change in page.changes:
                if not sweep.admits(change):
                    continue
                if not batch.add(change):
                    json.dumps(batch.close())
                    batch.add(change)
                sweep.take(change)
        json.dumps(batch.close())
        return dict(sweep.snapshot().seen)

    def sweep(
        self,
        after: datetime,
        seen: Mapping[str, Position] = MappingProxyType({}),
        bound: Position = BEGINNING,
    ) -> Sweep:
        """Begin a sweep after a low watermark and a seen set; without a bound nothing is settled yet."""
        state = WatermarkState(source={}, low=after, seen=seen)
        return Sweep(state, HighWatermark(bound=bound), max_seen=REMEMBERED)

    async def poll(self) -> None:
        """Ask all that a sweep asks: the clock, the open transactions, and the rows."""
        await self.trigger.get_high_watermark()
        await self.read(self.last)


async def measure(database: Postgres, rows: int, changed: int, rounds: int) -> None:
    """Print the figures."""
    peers = Peers(rows)
    began = time.perf_counter()
    gc.collect()
    collection = (time.perf_counter() - began) * 1000
    print(f"a full garbage collection holds the loop for {collection:.0f} ms; what follows leaves it out")
    await peers.trigger.open()
    await measure_empty_polls(peers, rows, rounds * 20)
    await peers.trigger.close()
    for payload in ("window", "rows", "keys"):
        peers.watch(payload)
        await peers.trigger.open()
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
    polls: dict[str, Callable[[], Awaitable[Any]]] = {
        "get_records": lambda: peers.get_records(last),
        "query": lambda: peers.read(last),
        "whole poll": peers.poll,
    }
    print(f"\nempty poll, {rows} rows, {rounds} rounds of {POLLS} polls (medians)")
    runs = await rounds_of({name: repeat(poll, POLLS) for name, poll in polls.items()}, rounds)
    base = [statistics.median(run[index] for run in runs["get_records"]) for index in range(2)]
    for name, figures in runs.items():
        latency, cpu = (statistics.median(run[index] for run in figures) for index in range(2))
        print(
            f"  {name:<12} {latency / POLLS * 1000:8.3f} ms (1/{base[0] / latency:.1f})   "
            f"CPU {cpu / POLLS * 1000:7.3f} ms (1/{base[1] / cpu:.1f})"
        )


def repeat(function: Callable[[], Awaitable[Any]], times: int) -> Callable[[], Awaitable[None]]:
    """Do the same some times."""

    async def work() -> None:
        for _ in range(times):
            await function()

    return work


async def rounds_of(
    ways: Mapping[str, Callable[[], Awaitable[Any]]], rounds: int
) -> dict[str, list[tuple[float, float, float, int]]]:
    """
    Take turns.

    What is in memory before is taken out of Python's garbage collection, as watchers do when a triggerer
    starts (:mod:`airflow.providers.watermark.heap`): a full one would be most of each hold, for the peer as
    for ours. How long it takes is told apart.
    """
    runs: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            gc.collect()
            gc.freeze()
            runs[name].append(await timed(way))
            gc.unfreeze()
    return runs


async def measure_changed_rows(peers: Peers, changed: int, rounds: int) -> None:
    """Compare what becomes of many rows; ours goes first, since the peak of memory never falls."""
    low = peers.last - timedelta(seconds=changed)
    payload = peers.trigger.payload
    print(f"\n{changed} changed rows, payload={payload!r}, {rounds} rounds (medians)")
    ways: dict[str, Callable[[], Awaitable[Any]]]
    if payload == "window":
        assert await peers.count(low) == changed
        ways = {"ours, found as windows": lambda: peers.count(low)}
    else:
        assert await peers.read_pages(low) == changed
        ways = {
            "ours, made into events": lambda: peers.deliver(low),
            "ours, rows read": lambda: peers.read_pages(low),
        }
    ways["get_records, tuples"] = lambda: peers.get_records(low)
    if payload != "window":
        ways["get_records, as JSON"] = lambda: peers.get_records_as_json(low)
    show(await rounds_of(ways, rounds), changed)
    if payload != "window":
        again = min(changed, REMEMBERED)
        print(f"{again} rows read again")
        low = peers.last - timedelta(seconds=again)
        seen = await peers.deliver(low, settled=False)
        assert len(seen) == again
        assert await peers.read(low, seen) == 0
        ways = {
            "ours, all delivered already": lambda: peers.read(low, seen),
            "get_records, tuples": lambda: peers.get_records(low),
        }
        show(await rounds_of(ways, rounds * 3), again)


def show(runs: Mapping[str, list[tuple[float, float, float, int]]], changed: int) -> None:
    """Print a line for each way."""
    base = statistics.median(run[0] for run in runs["get_records, tuples"])
    for name, figures in runs.items():
        seconds, cpu, hold = (statistics.median(run[index] for run in figures) for index in range(3))
        print(
            f"  {name:<28} {changed / seconds:8.0f} rows/s ({base / seconds:.2f}x)   CPU {cpu:6.2f} s   "
            f"longest hold {hold * 1000:7.1f} ms   memory +{figures[0][3] / 1024:.0f} MiB"
        )


def main() -> None:
    """Read the arguments, start the server, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changed", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("airflow.task").setLevel(logging.WARNING)  # the hook tells of each query
    with postgres() as database:
        fill(database, options.rows)
        os.environ["AIRFLOW_CONN_PG"] = database.airflow_connection_json()
        asyncio.run(measure(database, options.rows, options.changed, options.rounds))


if __name__ == "__main__":
    main()
