"""Rows of a table in MariaDB."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG

trigger = SQLUpdatedAtTrigger(
    conn_id="mariadb_source",
    table="events",
    payload="rows",
    primary_key="id",
    columns=["payload"],
    cursor_timezone="UTC",
    poll_interval=2,
    late_arrival=3,
)
with DAG("mariadb_rows", schedule=watch("mariadb_rows", trigger), max_active_runs=16):
    EmptyOperator(task_id="done")
