"""The second story that ``make demo`` tells: rows of a table, and a transaction that commits late."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from devtools.ledger import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from devtools.airflow_home import AirflowHome
    from devtools.databases import Postgres

ASSET = "sales"
DAG_ID = "copy_sales"
HOLD = 8.0
"""Seconds for which the late transaction stays open: longer than the ``late_arrival`` of the watcher."""


class SqlStory:
    """Writes rows, and follows them through windows into the copy that the example Dag makes.

    :param airflow: with the example Dags in its Dags folder
    :param database: the server that the connection ``postgres_default`` names
    :param say: prints a line of two columns
    """

    def __init__(self, airflow: AirflowHome, database: Postgres, say: Callable[[str, str], None]) -> None:
        self._airflow = airflow
        self._database = database
        self._say = say
        self._last_event = 0
        self._windows = 0

    def prepare(self) -> None:
        """Make the tables of the example Dags."""
        self._database.execute("""
            CREATE TABLE sales (
                id bigint PRIMARY KEY, amount numeric NOT NULL,
                updated_at timestamptz NOT NULL DEFAULT now());
            CREATE INDEX ON sales (updated_at);
            CREATE TABLE sales_copy (
                id bigint PRIMARY KEY, amount numeric NOT NULL, updated_at timestamptz NOT NULL);
            CREATE TABLE tickets (
                id bigint PRIMARY KEY, state text NOT NULL, amount numeric,
                updated_at timestamptz NOT NULL DEFAULT now());
            CREATE INDEX ON tickets (updated_at, id);
        """)

    def run(self) -> None:
        """Tell the story."""
        self._wait("live SQL watcher", lambda: self._airflow.metadata.variable_names("watermark:sql:sales:"))
        with self._database.connect() as late:
            late.execute("BEGIN")
            late.execute("INSERT INTO sales (id, amount) VALUES (1, 1.50)")
            self._say("rows", "a transaction inserts row 1, and stays open")
            self._insert(2, 21)
            self._after(HOLD)
            self._insert(22, 41)
            late.execute("COMMIT")
            self._say(
                "rows", f"row 1 is committed, {HOLD:.0f} s later, with the time at which it was inserted"
            )
        self._wait("copy of all rows", lambda: not self._missing())

    def _insert(self, first: int, last: int) -> None:
        self._database.execute(
            "INSERT INTO sales (id, amount) SELECT n, n / 2.0 FROM generate_series(%s::int, %s::int) AS n",
            (first, last),
        )
        self._say("rows", f"rows {first} to {last} are committed")

    def _missing(self) -> list[Any]:
        return [
            row[0] for row in self._database.execute("SELECT id FROM sales EXCEPT SELECT id FROM sales_copy")
        ]

    def _after(self, seconds: float) -> None:
        moment = time.monotonic() + seconds
        self._wait("moment", lambda: time.monotonic() >= moment)

    def _wait(self, what: str, done: Callable[[], object]) -> None:
        def observe_and_ask() -> object:
            for event in self._airflow.metadata.asset_events(ASSET, after=self._last_event):
                self._last_event = event.id
                self._windows += 1
                watermark = event.payload["watermark"]
                low, high = (str(watermark[bound]["value"])[11:23] for bound in ("low", "high"))
                count = event.payload["count"]
                self._say(
                    "window", f"#{event.id} says that {low} < updated_at <= {high} is final: {count} rows"
                )
            return done()

        self._airflow.wait_until(what, observe_and_ask, 150)

    def tell_result(self) -> bool:
        """Print the final table, and return whether every row was copied."""
        committed = self._database.execute("SELECT count(*) FROM sales")[0][0]
        missing = self._missing()
        rows = [
            ("committed", committed, "rows, one of them late"),
            ("windows", self._windows, "each copied with one INSERT ... SELECT"),
            ("missing in the copy", len(missing), str(missing or "")),
        ]
        print(f"\n{table(rows)}\n", flush=True)
        return not missing
