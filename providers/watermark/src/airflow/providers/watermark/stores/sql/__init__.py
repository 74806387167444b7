"""Watermarks in a table of a database: for production, and many watchers."""

from __future__ import annotations

from airflow.providers.watermark.stores.sql.schema import migrate
from airflow.providers.watermark.stores.sql.store import SqlStore

__all__ = ["SqlStore", "migrate"]
