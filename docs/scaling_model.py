"""
What watchers cost: the model behind ``explanation/scaling.md``, and the tables made from it.

``python docs/scaling_model.py`` writes the tables into the page; a test makes them again, and compares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent / "explanation" / "scaling.md"

# -- Given by others ---------------------------------------------------------------------------------------
KEYS_PER_PAGE = 1000
"""Objects in an answer of S3 or GCS."""
PRICE_PER_REQUEST = 0.005 / 1000
"""US dollars for a LIST: S3 Standard in us-east-1; a class A operation of GCS in a region costs the same."""
SECONDS_A_MONTH = 30 * 86400
ROUND_TRIP = 0.05
"""Seconds for a page over the network."""
TRIGGERER_CAPACITY = 1000
"""Airflow's default of ``[triggerer] capacity``."""

# -- Ours --------------------------------------------------------------------------------------------------
POLL_INTERVAL = 60.0
LATE_ARRIVAL_WINDOWS = 5.0
LIST_CONCURRENCY = 8
DATED_PARTITIONS = 4
"""Days that a prefix with the day in it lists: two back, today, and one ahead."""
ORDERED_PAGES = 2
RECONCILE_INTERVAL = 86400.0
STATUS_INTERVAL = 300.0

# -- Measured ----------------------------------------------------------------------------------------------
CPU_PER_POLL = 0.0035
"""Seconds of the triggerer's CPU for the poll of a small prefix: two requests, nothing new."""
CPU_PER_PAGE = 0.0025
"""Likewise for each further page, nothing new on it: `make bench`, on a quiet machine."""
CPU_PER_SQL_POLL = 0.0005
"""Likewise for a poll of Postgres with an index: three questions over a connection that is kept."""
STORE_LOAD = {"variable": 1 / 48, "sql": 1 / 160}
STORE_SAVE = {"variable": 1 / 31, "sql": 1 / 220}
"""Seconds for one when many ask at once; with Variables they are those of the triggerer's supervisor, of
which there is one. See ``benchmarks/stores.py``."""
HAND_OVER = 2.0
"""Seconds from the yield of an event to the start of its run."""
USABLE = 0.5
"""The part of a core, and of the supervisor's time, that watchers may take: events need the rest."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """
    Watchers of S3, polled each minute, of which each finds something new at each poll.

    :param watchers: How many.
    :param objects: Under the prefix of each.
    :param layout: ``"full"``, ``"dated"`` (a year of days, evenly) or ``"ordered"``.
    """

    watchers: int
    objects: int
    layout: str = "full"

    @property
    def pages(self) -> float:
        """Pages that a poll lists."""
        whole = max(1, math.ceil(self.objects / KEYS_PER_PAGE))
        if self.layout == "ordered":
            return min(whole, ORDERED_PAGES)
        if self.layout == "dated":
            day = max(1, math.ceil(self.objects / 365 / KEYS_PER_PAGE))
            return (
                min(DATED_PARTITIONS * day, whole + DATED_PARTITIONS)
                + whole * POLL_INTERVAL / RECONCILE_INTERVAL
            )
        return whole

    @property
    def requests(self) -> float:
        """Requests of a poll: the pages, and one for the uploads in progress and the clock."""
        return self.pages + 1

    @property
    def polls_a_second(self) -> float:
        """Polls of all watchers."""
        return self.watchers / self.interval

    @property
    def interval(self) -> float:
        """Seconds from one poll to the next: a watcher rests for ``poll_interval`` after a listing."""
        return POLL_INTERVAL + self.listing

    @property
    def listing(self) -> float:
        """Seconds that a listing takes: it is read in parts at the same time, and parsed in one loop."""
        return max(self.pages * ROUND_TRIP / min(LIST_CONCURRENCY, max(1, self.pages / 4)), self.cpu)

    @property
    def cpu(self) -> float:
        """Seconds of CPU for a poll."""
        return CPU_PER_POLL + CPU_PER_PAGE * (self.pages - 1)

    @property
    def price(self) -> float:
        """Dollars a month."""
        return self.watchers * self.requests * SECONDS_A_MONTH / self.interval * PRICE_PER_REQUEST

    @property
    def saves_a_second(self) -> float:
        """States that are written: one for each poll that found something, and the status."""
        return self.watchers / self.interval + self.watchers / STATUS_INTERVAL

    def triggerers(self, store: str) -> int:
        """Give the triggerers that are needed: for the capacity, the loop's CPU, and the supervisor."""
        calls = self.polls_a_second * STORE_LOAD[store] + self.saves_a_second * STORE_SAVE[store]
        loop = self.polls_a_second * self.cpu + (0 if store == "variable" else calls)
        supervisor = calls if store == "variable" else 0.0
        return max(
            math.ceil(self.watchers / TRIGGERER_CAPACITY),
            math.ceil(loop / USABLE),
            math.ceil(supervisor / USABLE),
            1,
        )

    @property
    def latency(self) -> float:
        """Seconds from visible to run, on average: half a poll and listing, half a second, the hand-over."""
        return self.interval / 2 + 0.5 + self.listing / 2 + HAND_OVER


def dollars(amount: float) -> str:
    """Write a price."""
    return f"${amount:,.2f}" if amount < 10 else f"${amount:,.0f}"


def seconds(amount: float) -> str:
    """Write a time."""
    if amount < 10:
        return f"{amount:.1f} s"
    return f"{amount:,.0f} s" if amount < 600 else f"{amount / 60:,.0f} min"


def count(amount: float) -> str:
    """Write a number, to three digits."""
    digits = max(0, 2 - math.floor(math.log10(max(amount, 1))))
    return f"{round(amount, digits):,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{amount:,.0f}"


def table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table."""
    lines = [list(headers), *map(list, rows)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], f"|{'---|' * len(lines[0])}", *text[1:]])


OBJECTS = [10**power for power in range(4, 10)]
WATCHERS = [10, 100, 1000, 10000]


def one_watcher() -> str:
    """One watcher, by the number of objects under its prefix."""
    rows = []
    for objects in OBJECTS:
        full, dated, ordered = (
            Load(watchers=1, objects=objects, layout=name) for name in ("full", "dated", "ordered")
        )
        rows.append(
            [
                f"{objects:,}",
                count(full.requests),
                seconds(full.listing),
                dollars(full.price),
                f"{100 * full.cpu / full.interval:.2g} %",
                f"{count(dated.requests)}: {dollars(dated.price)}",
                f"{count(ordered.requests)}: {dollars(ordered.price)}",
            ]
        )
    headers = ["objects", "requests a poll", "a listing takes", "a month", "of a core"]
    return table([*headers, "with the day in the prefix", '`scan="ordered"`'], rows)


def many_watchers() -> str:
    """Many watchers, each of ten thousand objects."""
    rows = []
    for watchers in WATCHERS:
        load = Load(watchers=watchers, objects=10_000)
        requests = load.requests * watchers * SECONDS_A_MONTH / load.interval
        rows.append(
            [
                f"{watchers:,}",
                count(requests / 1e6) + " million",
                dollars(load.price),
                count(load.polls_a_second),
                count(load.saves_a_second),
                str(load.triggerers("variable")),
                str(load.triggerers("sql")),
                seconds(load.latency),
            ]
        )
    headers = [
        "watchers",
        "requests a month",
        "list price a month",
        "store reads a second",
        "state writes a second",
    ]
    return table([*headers, "triggerers, Variables", "triggerers, `sql`", "visible to run"], rows)


def matrix() -> str:
    """Price, triggerers and latency by watchers and objects in all."""
    rows = []
    for objects in OBJECTS:
        cells = []
        for watchers in WATCHERS:
            load = Load(watchers=watchers, objects=objects // watchers)
            cells.append(f"{dollars(load.price)}, {load.triggerers('sql')}, {seconds(load.latency)}")
        rows.append([f"{objects:,}", *cells])
    return table(["objects in all", *(f"{watchers:,} watchers" for watchers in WATCHERS)], rows)


def sql() -> str:
    """Watchers of Postgres tables, of any size, with an index."""
    rows = []
    for watchers in WATCHERS:
        polls = watchers / POLL_INTERVAL
        cpu = polls * (CPU_PER_SQL_POLL + STORE_LOAD["sql"] + 2 * STORE_SAVE["sql"])
        triggerers = max(math.ceil(watchers / TRIGGERER_CAPACITY), math.ceil(cpu / USABLE))
        latency = POLL_INTERVAL / 2 + LATE_ARRIVAL_WINDOWS + HAND_OVER
        rows.append([f"{watchers:,}", count(3 * polls), count(2 * polls), str(triggerers), seconds(latency)])
    headers = [
        "watchers",
        "short queries a second",
        "state writes a second",
        "triggerers, `sql`",
        "visible to run, windows",
    ]
    return table(headers, rows)


TABLES = {"one-watcher": one_watcher, "many-watchers": many_watchers, "matrix": matrix, "sql": sql}


def filled(text: str) -> str:
    """Give the page with the tables of this model."""
    for name, make in TABLES.items():
        text, found = re.subn(
            rf"(<!-- table: {name} -->\n).*?(<!-- /table -->)",
            lambda match, make=make: f"{match[1]}\n{make()}\n\n{match[2]}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
        if found != 1:
            raise ValueError(name)
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
