"""A source of each kind, and an Airflow, as a release left them: see :mod:`system_tests.upgrade`.

All is there to the microsecond, so that the stored positions lie between what is there. No server of object
storage lets anybody choose the time of an object, so these are our own.
"""

from __future__ import annotations

import contextlib
import json
from bisect import insort
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.watermark.events import ObjectChange, RowChange
from airflow.providers.watermark.position import format_timestamp
from devtools.gcs_stub import StubGCS
from devtools.gcs_wire import Stored as StoredInGCS
from devtools.s3_store import StoredObject
from devtools.s3_stub import StubS3
from system_tests.running import RunningAirflow
from system_tests.upgrade import fernet_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from devtools.databases import Database
    from system_tests.services import Services
    from system_tests.upgrade import Stored

BUCKET = "system-test"


@contextlib.contextmanager
def upgraded_airflow(path: Path, services: Services, stored: Stored, name: str) -> Iterator[RunningAirflow]:
    """Make the sources, and an Airflow that finds the release's rows when its triggerer starts.

    :param name: of databases of our own
    """
    services.metadata.execute(f"create database {name}")
    with S3(BUCKET) as s3, GCS(BUCKET) as gcs:
        _put_objects(stored, s3, gcs)
        airflow = RunningAirflow(
            path,
            replace(services.metadata, dbname=name),
            connections={
                "s3_source": s3.airflow_connection_json(),
                "gcs_source": gcs.server.airflow_connection_json(),
                "pg_source": _make_postgres(services, stored, name).airflow_connection_json(),
                "mariadb_source": _make_mariadb(services, stored, name).airflow_connection_json(),
            },
            environment={"STORAGE_EMULATOR_HOST": gcs.server.endpoint_url},
            dags=(),
        )
        with airflow:
            _insert(airflow, stored)
            yield airflow


def _insert(airflow: RunningAirflow, stored: Stored) -> None:
    """Write the rows of watchers and watermarks as Airflow does, encrypted by its key."""
    fernet = fernet_of(airflow)

    def execute(statement: str, *parameters: object) -> None:
        assert airflow.metadata.execute(statement, *parameters) == 1

    def encrypted(document: object) -> str:
        return fernet.encrypt(json.dumps(document).encode()).decode()

    for number, row in enumerate(stored.triggers, 1):
        asset = row["kwargs"]["asset_name"]
        execute(
            """INSERT INTO asset (id, name, uri, "group", extra, created_at, updated_at)
               VALUES (?, ?, ?, 'asset', '{}', now(), now())""",
            *(number, asset, asset),
        )
        execute("INSERT INTO asset_active (name, uri) VALUES (?, ?)", asset, asset)
        execute(
            "INSERT INTO trigger (id, classpath, kwargs, created_date) VALUES (?, ?, ?, now())",
            *(number, row["classpath"], encrypted(row["kwargs"])),
        )
        execute(
            "INSERT INTO asset_watcher (name, asset_id, trigger_id) VALUES (?, ?, ?)", asset, number, number
        )
    for row in stored.watermarks:
        execute(
            "INSERT INTO variable (key, val, is_encrypted) VALUES (?, ?, true)",
            *(row["key"], encrypted(row["val"])),
        )


def _make_postgres(services: Services, stored: Stored, name: str) -> Database:
    """Make the table of rows and windows."""
    services.postgres.execute(f"create database {name}")
    database = replace(services.postgres, dbname=name)
    database.execute(
        """create table events (
               id bigint primary key, version integer not null, payload text not null,
               updated_at timestamptz not null
           )"""
    )
    _insert_rows(database, stored.there("rows"))
    return database


def _make_mariadb(services: Services, stored: Stored, name: str) -> Database:
    """Make the table in MariaDB."""
    services.mariadb.execute(f"create database {name}")
    database = replace(services.mariadb, dbname=name)
    database.execute("create table events (id bigint primary key, payload text, updated_at datetime(6))")
    _insert_rows(database, stored.there("mariadb_rows"))
    return database


def _insert_rows(database: Database, changes: list[ObjectChange | RowChange]) -> None:
    for change in changes:
        assert isinstance(change, RowChange)
        assert change.row is not None
        values = {**change.key, **change.row, "updated_at": change.cursor}
        marks = ", ".join(["%s"] * len(values))
        statement = f"insert into events ({', '.join(values)}) values ({marks})"  # noqa: S608 - our own names
        database.execute(statement, [*values.values()])


def _put_objects(stored: Stored, s3: S3, gcs: GCS) -> None:
    for change in stored.there("s3_objects"):
        assert isinstance(change, ObjectChange)
        s3.restore(change)
    for change in stored.there("gcs_objects"):
        assert isinstance(change, ObjectChange)
        gcs.restore(change)


class S3(StubS3):
    """Objects of which nothing is known but what an event told."""

    def restore(self, change: ObjectChange) -> None:
        """Put an object as it was."""
        stamp = int(change.last_modified.timestamp())
        self._store(change.key, StoredObject(change.etag, stamp, bytes(change.size)))


class GCS(StubGCS):
    """Likewise in Google Cloud Storage."""

    def restore(self, change: ObjectChange) -> None:
        """Put an object as it was."""
        insort(self._names, change.key)
        created = change.last_modified.timestamp()
        self._objects[change.key] = _Created(created, int(change.generation), change.size)


class _Created(StoredInGCS):
    """An object with a time in microseconds, as fake-gcs-server gives it."""

    def describe(self, name: str) -> dict[str, Any]:
        """Describe it as that does."""
        created = format_timestamp(datetime.fromtimestamp(self.created, UTC))
        return {**super().describe(name), "timeCreated": created}
