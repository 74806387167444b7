"""Handle each changed row of a table as soon as it is committed: each version once, many at a time.

To make it yours: write your connection, table and columns below, and your own work into ``handle``.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.watermark import watch
from airflow.providers.watermark.events import read_changes
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG, task

CONNECTION = os.environ.get("EXAMPLE_SQL_CONN_ID", "postgres_default")
POLL_INTERVAL = float(os.environ.get("EXAMPLE_POLL_INTERVAL", "30"))
CHUNK_SIZE = 200

tickets = watch(
    "tickets",
    SQLUpdatedAtTrigger(
        conn_id=CONNECTION,
        table="tickets",
        primary_key="id",
        payload="rows",
        columns=["state", "amount"],
        where="state <> 'draft'",
        poll_interval=POLL_INTERVAL,
    ),
)

with DAG("handle_tickets", schedule=tickets, max_active_runs=16, tags=["example", "watermark"]):

    @task
    def split(triggering_asset_events: dict[Any, Any] | None = None) -> list[list[dict[str, Any]]]:
        """Return the changed rows in chunks; what one task hands to the next must be JSON."""
        rows = []
        for change in read_changes(triggering_asset_events, tickets):
            # change.row holds the values as the database has them: a Decimal, a datetime, a UUID. A row that
            # alone is larger than an event may be comes with its key only (change.row is None): read it by
            # its key.
            row = change.row or {"state": None, "amount": None}
            rows.append(
                {
                    "epoch": change.epoch,
                    "change": change.id,
                    "id": change.key["id"],
                    "state": row["state"],
                    "amount": None if row["amount"] is None else str(row["amount"]),
                }
            )
        return [rows[start : start + CHUNK_SIZE] for start in range(0, len(rows), CHUNK_SIZE)]

    @task(max_active_tis_per_dag=4)
    def handle(chunk: list[dict[str, Any]]) -> list[str]:
        """Handle one chunk, and return the ids of its changes.

        After a crash a change may come again, with the same epoch and id: store both with what you do, or do
        it in a way that may be repeated. After a rewind it comes again on purpose, in a higher epoch.
        """
        for row in chunk:
            version = f"{row['epoch']}-{row['change']}"  # what a repeat has in common with the first time
            print(f"ticket {row['id']}: {row['state']}, {row['amount']}, {version}")  # your work goes here
        return [row["change"] for row in chunk]

    handle.expand(chunk=split())
