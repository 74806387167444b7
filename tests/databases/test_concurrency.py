"""
The proof: whatever 16 writers do at a time, no committed row is missed and none comes twice.

Random transaction lengths, pauses before the first write, savepoints, two-phase commits, rollbacks,
updates, stamps by ``now()`` and by ``clock_timestamp()``. Six watchers run at the same time, each mode as
the owner and as a role that may do nothing but ``SELECT``; beside them the poller that everybody writes
first, which must lose rows: else the proof proves nothing.

``WATERMARK_STRESS_SECONDS=60 make test TESTS=tests/databases/test_concurrency.py`` is the long run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow.providers.watermark.events import ReadWindow, read_window
from airflow.providers.watermark.position import BEGINNING
from airflow.sdk import Asset
from devtools.databases import postgres
from devtools.postgres_stress import Habits, NaivePoller, create_table, stress
from devtools.row_ledger import Committed, Comparison, Delivery, compare
from tests.databases.running import Running, connection, eventually, make_trigger, typed

SECONDS = float(os.environ.get("WATERMARK_STRESS_SECONDS", "20"))
"""For how long the writers write."""

POLL = 0.25
"""Seconds between two polls of each watcher."""

LATE_ARRIVAL = 0.25
"""Seconds; far less than a transaction takes, so that it is the barrier that keeps rows from being missed."""


HABITS = Habits(two_phase=0.4)
"""So many that some prepared transactions are all that holds the barrier for a while."""


class WindowReader:
    """What a Dag does: as soon as a window comes it reads exactly that window's rows."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.reads: list[tuple[ReadWindow, set[tuple[Any, ...]]]] = []

    async def __aenter__(self):
        self._connection = await psycopg.AsyncConnection.connect(self._uri, autocommit=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def __call__(self, payload: dict[str, Any]) -> None:
        asset = Asset(name="rows")
        extra = {"from_trigger": True, "payload": payload}
        window = read_window({asset: [SimpleNamespace(extra=extra)]}, asset)
        self.reads.append((window, await self.select(window)))

    async def select(self, window: ReadWindow) -> set[tuple[Any, ...]]:
        statement = f"select id, updated_at from events where {window.where()}"  # noqa: S608
        return set(await (await self._connection.execute(statement, window.parameters)).fetchall())


@dataclass
class Watched:
    """One of the watchers, and what became of it."""

    role: str
    mode: str
    watcher: Running
    reader: WindowReader | None = None
    entered: list[Any] = field(default_factory=list)

    def deliveries(self) -> list[Delivery]:
        if self.reader is not None:
            return [
                Delivery(*row, at)
                for (_, rows), (_, at) in zip(self.reader.reads, self.watcher.events, strict=True)
                for row in rows
            ]
        return [
            Delivery(change.key["id"], change.cursor, at)
            for payload, at in self.watcher.events
            for change in typed(payload)
        ]

    @property
    def two_polls(self) -> float:
        """Twice the longest time between two polls that there was."""
        return 2 * max(POLL, *(later - earlier for earlier, later in pairwise(self.watcher.polls)))

    def compare(self, committed: Committed) -> Comparison:
        if self.reader is not None:
            return compare(committed, self.deliveries())
        return compare(committed, self.deliveries(), outlives=self.two_polls)


@dataclass
class Outcome:
    """Everything that came of the run."""

    committed: Committed
    naive: Comparison
    watched: dict[tuple[str, str], Watched]
    comparisons: dict[tuple[str, str], Comparison]


EVERY_ROLE = pytest.mark.parametrize("role", ["owner", "select only"])
EVERY_MODE = pytest.mark.parametrize("mode", ["window", "keys", "rows"])


# No classes here: each would be run by another worker, with a run of its own.
@pytest.fixture(scope="module")
def outcome():
    with postgres() as owner:
        create_table(owner)
        reader = owner.create_role("reader")
        owner.execute("grant select on events to reader")
        with connection(owner) as owner_id, connection(reader) as reader_id:
            yield asyncio.run(run(owner, {"owner": owner_id, "select only": reader_id}))


async def run(owner, roles: dict[str, str]) -> Outcome:
    async with contextlib.AsyncExitStack() as stack:
        watched = {}
        for role, conn_id in roles.items():
            for mode in ("window", "keys", "rows"):
                reader = None
                if mode == "window":
                    reader = await stack.enter_async_context(WindowReader(owner.uri))
                trigger = make_trigger(
                    conn_id,
                    payload=mode,
                    poll_interval=POLL,
                    late_arrival=LATE_ARRIVAL,
                    columns=["version", "payload"] if mode == "rows" else [],
                )
                watcher = await stack.enter_async_context(Running(trigger, on_event=reader))
                watched[role, mode] = Watched(role, mode, watcher, reader)
        for each in watched.values():
            await each.watcher.sweeps(1)
        async with NaivePoller(owner) as naive:
            committed = await stress(owner, seconds=SECONDS, seed=7, habits=HABITS)
            for each in watched.values():
                if each.reader is None:
                    await each.watcher.sweeps()
                else:
                    last = max(committed.rows().values())
                    await eventually(lambda each=each, last=last: _is_behind(each.watcher, last), each.mode)
        for each in watched.values():
            for window, rows in each.reader.reads if each.reader is not None else ():
                each.entered += await each.reader.select(window) - rows
        comparisons = {key: each.compare(committed) for key, each in watched.items()}
        return Outcome(committed, compare(committed, naive.delivered), watched, comparisons)


def _is_behind(watcher: Running, last: Any) -> bool:
    windows = watcher.windows
    return bool(windows) and windows[-1].high >= last


def test_the_figures(outcome, capsys):
    versions, rows = outcome.committed.versions, outcome.committed.rows()
    lines = [
        f"{len(versions):,} versions of {len(rows):,} rows in {SECONDS:g} s",
        f"transactions: {dict(outcome.committed.transactions)}",
        f"{'role':12} {'mode':8} {'expected':>9} {'missed':>7} {'repeated':>9} {'median':>8} {'p99':>8}",
    ]
    table = {("owner", "naive"): outcome.naive, **outcome.comparisons}
    lines += [
        (
            f"{role:12} {mode:8} {found.expected:9,} {len(found.missed):7,} {sum(found.repeated.values()):9,}"
            f" {found.median_delay:7.3f}s {found.p99_delay:7.3f}s"
        )
        for (role, mode), found in table.items()
    ]
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert len(rows) > 10 * SECONDS
    assert {"ended by commit prepared", "rolled back"} < outcome.committed.transactions.keys()


def test_the_naive_poller_loses_rows(outcome):
    assert len(outcome.naive.missed) > 100


@EVERY_ROLE
@EVERY_MODE
def test_every_watcher_misses_nothing(outcome, role, mode):
    assert outcome.comparisons[role, mode].missed == []


@EVERY_ROLE
@EVERY_MODE
def test_every_watcher_repeats_nothing(outcome, role, mode):
    assert outcome.comparisons[role, mode].repeated == {}


@EVERY_ROLE
@EVERY_MODE
def test_every_watcher_delivers_nothing_that_was_not_committed(outcome, role, mode):
    assert outcome.comparisons[role, mode].unknown == []


@EVERY_ROLE
@EVERY_MODE
def test_every_watcher_meets_no_error(outcome, role, mode):
    assert outcome.watched[role, mode].watcher.errors == []


@EVERY_ROLE
def test_windows_are_contiguous_and_disjoint(outcome, role):
    windows = outcome.watched[role, "window"].watcher.windows
    assert len(windows) > 2
    assert windows[0].low is BEGINNING
    assert all(earlier.high == later.low for earlier, later in pairwise(windows))
    assert all(earlier.high < later.high for earlier, later in pairwise(windows))


@EVERY_ROLE
def test_windows_are_final_rows_may_leave_but_never_enter(outcome, role):
    assert outcome.watched[role, "window"].entered == []


@EVERY_ROLE
def test_windows_have_no_more_rows_than_their_event_says(outcome, role):
    each = outcome.watched[role, "window"]
    counts = [window.count for window in each.watcher.windows]
    assert all(len(rows) <= count for (_, rows), count in zip(each.reader.reads, counts, strict=True))


@EVERY_ROLE
@pytest.mark.parametrize("mode", ["keys", "rows"])
def test_changes_come_within_two_polls(outcome, role, mode):
    assert outcome.comparisons[role, mode].p99_delay <= outcome.watched[role, mode].two_polls
