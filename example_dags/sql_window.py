"""Copy each new window of a table with one INSERT ... SELECT: exactly its rows, however many they are.

To make it yours: write your connection and tables below. The window's rows are complete and final: nothing
more can appear in it, so it needs to be read only once.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.watermark import watch
from airflow.providers.watermark.events import read_window
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG, task

CONNECTION = os.environ.get("EXAMPLE_SQL_CONN_ID", "postgres_default")
POLL_INTERVAL = float(os.environ.get("EXAMPLE_POLL_INTERVAL", "30"))

# An index that begins with updated_at keeps each poll to a few pages, however large the table is.
sales = watch(
    "sales",
    SQLUpdatedAtTrigger(
        conn_id=CONNECTION,
        table="sales",
        cursor_column="updated_at",
        poll_interval=POLL_INTERVAL,
        start_from="now",  # "beginning" also copies what is there already, window by window
    ),
)

with DAG("copy_sales", schedule=sales, tags=["example", "watermark"]):

    @task(max_active_tis_per_dag=1)  # one copy at a time; at a limit of runs, windows would wait
    def copy_window(triggering_asset_events: dict[Any, Any] | None = None) -> int:
        """Copy the run's window; a run that you start by hand has none.

        After a crash a window may come again, the very same one: so the copy is written in a way that may be
        repeated.
        """
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        window = read_window(triggering_asset_events, sales)
        if window is None:
            return 0
        with PostgresHook(CONNECTION).get_conn() as connection, connection.cursor() as cursor:
            # The predicate names a quoted column and two parameters: nothing is pasted into the SQL.
            cursor.execute(
                f"""
                INSERT INTO sales_copy (id, amount, updated_at)
                SELECT id, amount, updated_at FROM sales WHERE {window.where()}
                ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, updated_at = excluded.updated_at
                """,  # noqa: S608
                window.parameters,
            )
            print(f"{window.low!r} < updated_at <= {window.high!r}: {cursor.rowcount} of {window.count} rows")
            return int(cursor.rowcount)

    copy_window()
