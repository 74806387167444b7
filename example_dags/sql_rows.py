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
        changes = read_changes(triggering_asset_events, tickets)
        # change.row holds the values as the database has them: a Decimal, a datetime, a UUID. A row that
        # alone is larger than an event may be comes with its key only (change.row is None): read it by key.
        rows = [
            {
                "change": change.id,
                "id": change.key["id"],
                "state": change.row and change.row["state"],
                "amount": change.row and str(change.row["amount"]),
            }
            for change in changes
        ]
        return [rows[start : start + CHUNK_SIZE] for start in range(0, len(rows), CHUNK_SIZE)]

    @task(max_active_tis_per_dag=4)
    def handle(chunk: list[dict[str, Any]]) -> list[str]:
        """Handle one chunk, and return the ids of its changes; after a crash they may come again."""
        for row in chunk:
            print(f"ticket {row['id']}: {row['state']}, {row['amount']}")  # your work goes here
        return [row["change"] for row in chunk]

    handle.expand(chunk=split())
