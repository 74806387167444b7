"""Rows that are inserted into MariaDB, whether it crashes meanwhile or not."""

from __future__ import annotations

import time
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pymysql  # type: ignore[import-untyped, unused-ignore]

from devtools.background import Background
from devtools.row_ledger import Committed, Version

if TYPE_CHECKING:
    from devtools.databases import MariaDB

_LONGEST_OUTAGE = 120.0
"""Seconds for which the server may be away; an error thereafter is raised."""


class Inserter(Background):
    """Inserts rows into a table of MariaDB's, one a transaction: a context manager.

    :param database: with the table ``events``, empty, which nobody else writes
    :param rate: rows a second, on average
    :ivar committed: what was committed so far
    """

    def __init__(self, database: MariaDB, rate: float) -> None:
        super().__init__("inserter")
        self.committed = Committed()
        self._database = database
        self._pause = 1 / rate
        self._last = 0

    def work(self) -> None:
        """Insert rows until told that it is enough."""
        while not self.enough.wait(self._pause):
            sent = time.monotonic()
            for row, stamp in self._insert():
                version = Version(row, 1, stamp.replace(tzinfo=UTC), sent, time.monotonic())
                self.committed.versions.append(version)
                self._last = row

    def _insert(self) -> list[tuple[Any, ...]]:
        """Return the row that was inserted; none if the server was gone before."""
        try:
            return self._database.execute(
                "insert into events (payload) values ('new') returning id, updated_at"
            )
        except pymysql.err.OperationalError:
            return self._find()

    def _find(self) -> list[tuple[Any, ...]]:
        """Wait for the server, and return the row that was inserted without an answer, if one was."""
        deadline = time.monotonic() + _LONGEST_OUTAGE
        while True:
            try:
                return self._database.execute(
                    "select id, updated_at from events where id > %s", (self._last,)
                )
            except pymysql.err.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
