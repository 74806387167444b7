"""Handle each changed row of a table as soon as it is committed: each version once, many at a time.

To make it yours: write your connection, table and columns below, and your own work into ``handle``.
"""

from __future__ import annotations

import os
from decimal import Decimal
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


def values(state: str, amount: Decimal | None) -> dict[str, Any]:
    """Give the columns as what one task hands to the next, which must be JSON."""
    return {"state": state, "amount": None if amount is None else str(amount)}


def read(ticket: int) -> dict[str, Any] | None:
    """Read a ticket that is too large for an event; by now it may have changed again, or be gone."""
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    query = "SELECT state, amount FROM tickets WHERE id = %s"
    found = PostgresHook(CONNECTION).get_first(query, parameters=[ticket])
    return found and values(*found)


with DAG("handle_tickets", schedule=tickets, max_active_runs=16, tags=["example", "watermark"]):

    @task
    def split(triggering_asset_events: dict[Any, Any] | None = None) -> list[list[dict[str, Any]]]:
        """Return the changed rows in chunks."""
        # change.row holds the values as the database has them: a Decimal, a datetime, a UUID. A row that is
        # larger than an event may be comes with its key only.
        rows = [
            {
                "epoch": change.epoch,
                "change": change.id,
                "id": change.key["id"],
                "updated_at": str(change.cursor),
                "row": change.row and values(**change.row),
            }
            for change in read_changes(triggering_asset_events, tickets)
        ]
        return [rows[start : start + CHUNK_SIZE] for start in range(0, len(rows), CHUNK_SIZE)]

    @task(max_active_tis_per_dag=4)
    def handle(chunk: list[dict[str, Any]]) -> list[str]:
        """Handle one chunk, and return the ids of its changes.

        After a crash a change may come again, with the same epoch and id: store both with what you do, or do
        it in a way that may be repeated. After a rewind it comes again on purpose, in a higher epoch.

        Runs and chunks may overtake each other, and so may two versions of a ticket: where you overwrite one,
        do so only if what is there has no higher ``updated_at``.
        """
        for change in chunk:
            row = change["row"] or read(change["id"])
            version = f"{change['epoch']}-{change['change']}"  # of a repeat the same as the first time
            print(f"ticket {change['id']}: {row}, {change['updated_at']}, {version}")  # your work goes here
        return [change["change"] for change in chunk]

    handle.expand(chunk=split())
