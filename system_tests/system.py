"""The whole system, what is done to it, and what became of all changes."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from devtools.ledger import Interruption
from system_tests.comparison import longest_delay
from system_tests.results import Result, Results

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from devtools.tcp_proxy import TcpProxy
    from system_tests.running import RunningAirflow
    from system_tests.services import Services
    from system_tests.traffic import Source

SETTLE_WITHIN = 120.0
"""Seconds within which whatever was changed must be with a Dag run, once the harm is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """What stands between watchers and sources; the writers go straight to the servers."""

    s3: TcpProxy
    gcs: TcpProxy
    postgres: TcpProxy
    mariadb: TcpProxy


@dataclass(slots=True, kw_only=True)
class System:
    """All that a test of a fault needs.

    :param small_disk: the folder of the object store for watermarks, which only one test uses
    :ivar harms: what was done to whom, so far
    :ivar checks: the ids of what :meth:`check_that_tasks_run` put for an example Dag
    :ivar is_complete: whether all is to be compared when the writers have ended: set in the end
    """

    services: Services
    networks: Networks
    airflow: RunningAirflow
    sources: list[Source]
    small_disk: Path
    results: Results
    harms: list[Harm] = field(default_factory=list)
    checks: set[str] = field(default_factory=set)
    is_complete: bool = False
    _compared: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _former: list[Source] = field(default_factory=list)

    @contextlib.contextmanager
    def fault(self, name: str, *, settle_within: float = SETTLE_WITHIN) -> Iterator[Fault]:
        """Bring about a fault, and compare in the end what was changed with what Dag runs were given.

        Compared is whatever was changed since the comparison before: nothing lies between two.

        :param name: what the table calls it
        :param settle_within: seconds within which all must be delivered afterwards
        :raises AssertionError: something was lost, or came again without a cause
        """
        fault = Fault(self)
        try:
            yield fault
        finally:
            fault.over = time.time()
        lost, wrong = self._settle(settle_within)
        result = fault.result(name, lost)
        self.results.rows.append(result)
        print(f"{name}: {result}")
        assert not wrong, f"{name}: {wrong}"

    def check(self) -> None:
        """Compare once more, when no harm was done since.

        :raises AssertionError: something was lost, or came again
        """
        _, wrong = self._settle(SETTLE_WITHIN)
        assert not wrong, f"without a fault: {wrong}"

    @contextlib.contextmanager
    def also(self, source: Source) -> Iterator[None]:
        """Compare one more source meanwhile."""
        self.sources.append(source)
        try:
            yield
        finally:
            self.sources.remove(source)
            self._former.append(source)

    def _settle(self, within: float) -> tuple[int, dict[str, dict[str, list[str]]]]:
        """Wait until nothing is wrong, and return what is lost, and all that is wrong all the same.

        A writer may learn later than a watcher that its change was made: what was never made is waited for.
        """
        last = {source.name: source.changes for source in self.sources}
        deadline = time.monotonic() + within
        while True:
            self.airflow.check()
            for source in self.sources:
                source.check()
                source.collect(self.airflow)
            lost = {s.name: self._lost(s, self._first(s), last[s.name]) for s in self.sources}
            wrong = {s.name: self._wrong(lost[s.name], s) for s in self.sources}
            wrong = {name: found for name, found in wrong.items() if found}
            if not wrong or time.monotonic() > deadline:
                self._compared |= last
                self._told |= {name for found in wrong.values() for names in found.values() for name in names}
                few = {
                    name: {fault: names[:5] for fault, names in found.items()}
                    for name, found in wrong.items()
                }
                return sum(map(len, lost.values())), few
            time.sleep(1)

    def _first(self, source: Source) -> int:
        """Return the first change of a source that no comparison has looked at."""
        return self._compared.get(source.name, 0)

    def _lost(self, source: Source, first: int, last: int) -> list[str]:
        now = time.time()
        periods = [(each.began, each.fault.over or now) for each in self.harms if each.concerns(source)]
        return source.lost(first, last, sorted(periods))

    def _wrong(self, lost: list[str], source: Source) -> dict[str, list[str]]:
        """Return what is wrong, and was not told before: one test's failure is not to fail the next."""
        interruptions = [each.interruption for each in self.harms if each.concerns(source)]
        explained = [*(each for each in interruptions if each is not None), *self.airflow.ends]
        found = {"lost": lost, **source.faults(explained)}
        new = {fault: [name for name in names if name not in self._told] for fault, names in found.items()}
        return {fault: names for fault, names in new.items() if names}

    def summarize(self) -> None:
        """Add the row of the table that tells of the whole run, up to the last comparison.

        :raises AssertionError: something was lost
        """
        sources = [*self.sources, *self._former]
        lost = [name for source in sources for name in self._lost(source, 0, self._first(source))]
        self.results.rows.append(
            Result(
                fault="from the first change to the last",
                interruptions=sum(row.interruptions for row in self.results.rows),
                changes=sum(map(self._first, sources)),
                lost=len(lost),
                repeated=sum(len(source.repeats()) for source in sources),
                longest_delay=longest_delay(
                    life for source in sources for life in source.lives(0, self._first(source))
                ),
                restarts=self.airflow.restarts.total(),
            )
        )
        assert not lost, f"in all: {lost[:5]}"

    def wait_for_news(self, *names: str, timeout: float = 120) -> None:
        """Wait until Dag runs were given something of each source that was changed after this call.

        :param names: of the sources; all if none is named
        """
        wanted = [source for source in self.sources if not names or source.name in names]
        first = {source.name: source.changes for source in wanted}

        def have_news() -> bool:
            for source in wanted:
                source.check()
                source.collect(self.airflow)
            return all(source.has_news(first[source.name]) for source in wanted)

        self.airflow.wait_until(f"news of each of {', '.join(first)}", have_news, timeout)

    def wait_for_events(self, timeout: float = 60) -> None:
        """Wait until all watchers had something stored after this call, whether Dag runs begin or not."""
        began = datetime.now(UTC)
        names = [source.name for source in self.sources]
        query = f"""SELECT count(DISTINCT asset.name) FROM asset_event AS event
                    JOIN asset ON asset.id = event.asset_id
                    WHERE event.timestamp > ? AND asset.name IN ({", ".join("?" * len(names))})"""  # noqa: S608
        self.airflow.wait_until(
            f"event of each of {', '.join(names)}",
            lambda: self.airflow.metadata.rows(query, began, *names)[0][0] == len(names),
            timeout,
        )

    def check_that_tasks_run(self) -> None:
        """See an object through all of Airflow: its event, a run, and a task in a process of its own."""
        metadata, key = self.airflow.metadata, f"orders/check-{len(self.checks)}.csv"
        self.services.s3.client().put_object(Bucket="lake", Key=key, Body=b"order")

        def is_loaded() -> bool:
            events = metadata.asset_events("orders")
            ids = {change["id"] for event in events for change in event.changes if change["key"] == key}
            self.checks.update(ids)
            loaded = {each for found in metadata.returned("load_new_objects", "load") for each in found.value}
            states = {run.state for run in metadata.dag_runs("load_new_objects")}
            return bool(ids & loaded) and not states & {"queued", "running"}

        self.airflow.wait_until(f"task that loaded {key}", is_loaded)


class Fault:
    """A fault under way.

    :ivar over: when the test was done with it, and watchers went on, in seconds since the epoch; None before
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._restarts = system.airflow.restarts.total()
        self._began = datetime.now(UTC)
        self._changes = {source.name: source.changes for source in system.sources}
        self._count = 0
        self.over: float | None = None

    @contextlib.contextmanager
    def interruption(
        self, kind: str, *, of: Collection[str] | None = None, ends_watchers: bool = True, lasts: float = 0
    ) -> Iterator[None]:
        """Say that harm is done meanwhile, from which watchers recover by the end of the fault.

        :param kind: what it is
        :param of: the names of the sources whose watchers it is done to; by default all
        :param ends_watchers: whether they may end by it, so that what they had not committed comes again;
            else nothing may
        :param lasts: for how many seconds after it they may still end
        """
        self._count += 1
        began = datetime.now(UTC)
        harm = Harm(self, began.timestamp(), of)
        self._system.harms.append(harm)
        try:
            yield
        finally:
            if ends_watchers:
                ended = datetime.now(UTC) + timedelta(seconds=lasts)
                harm.interruption = Interruption(kind, began, ended)

    def result(self, name: str, lost: int) -> Result:
        """Return the row of the table: what was changed, and came again, since the fault began."""
        system, first = self._system, self._changes
        lives = (source.lives(first.get(source.name, 0), source.changes) for source in system.sources)
        repeats = [each for source in system.sources for each in source.repeats()]
        return Result(
            fault=name,
            interruptions=self._count,
            changes=sum(source.changes - first.get(source.name, 0) for source in system.sources),
            lost=lost,
            repeated=sum(each.at >= self._began for each in repeats),
            longest_delay=longest_delay(itertools.chain.from_iterable(lives)),
            restarts=system.airflow.restarts.total() - self._restarts,
        )


@dataclass(slots=True)
class Harm:
    """What an interruption did.

    :param fault: whose interruption it is; watchers read their sources again by its end
    :param began: in seconds since the epoch
    :param of: the names of the sources whose watchers it is done to; None for all
    :ivar interruption: which explains what comes again; None if watchers do not end by it, or have not yet
    """

    fault: Fault
    began: float
    of: Collection[str] | None
    interruption: Interruption | None = None

    def concerns(self, source: Source) -> bool:
        """Tell whether it is done to the watcher of a source."""
        return self.of is None or source.name in self.of
