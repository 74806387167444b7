"""The ``sql`` store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.providers.watermark.change import digest
from airflow.providers.watermark.exceptions import ConfigurationError, StoreError, WatermarkConflictError
from airflow.providers.watermark.settings import sql_conn_id
from airflow.providers.watermark.stores.base import (
    BaseWatermarkStore,
    WatermarkKey,
    finished,
    from_text,
    key_in,
    to_text,
)
from airflow.providers.watermark.stores.sql.engine import (
    MissingFileError,
    Pool,
    close_pool,
    explained,
    pool_of,
    require_sqlalchemy,
)
from airflow.providers.watermark.stores.sql.schema import MAX_PART, VERSION_TABLE, require_schema, table

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["SqlStore"]

_T = TypeVar("_T")
_TIMEOUT: Final = 30.0
"""Seconds that a call may take in all, with the wait for a free connection."""


class SqlStore(BaseWatermarkStore):
    """
    Keeps watermarks in the table ``asset_watermarks`` of the database that ``[watermark] sql_conn_id`` names.

    Postgres, MySQL or MariaDB, or SQLite. Each save compares and sets in one statement, so of two writers
    one wins and the other is told. ``airflow watermarks migrate`` creates the table and upgrades it; until
    then every call is an error that says so. All watchers of a process share at most ten connections.

    :raises ConfigurationError: ``[watermark] sql_conn_id`` is not set, or Airflow is older than 3.1.
    """

    compare_and_set = True

    def __init__(self) -> None:
        require_sqlalchemy()
        self._conn_id = sql_conn_id()

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark."""
        text = await self._call(key, lambda connection: _text(connection, key))
        return None if text is None else self._read(key, text)

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """Write a watermark, in one statement unless it is new or was edited."""
        row = {
            "value": _written(key, value),
            "revision": _revision(value),
            "updated_at": datetime.now(UTC),
        }

        async def work(connection: AsyncConnection) -> None:
            columns = table().c
            update = table().update().values(row).where(*_is(key))
            if expected is not None:
                same = (columns.revision == _revision(expected), columns.value == _written(key, expected))
                if (await connection.execute(update.where(*same))).rowcount:
                    return
            text = await _text(connection, key)
            if text is None:
                await _insert(connection, key, row)
                return
            self.compare(key, self._read(key, text), expected)
            # What is expected stands there in other words, those of an operator.
            if not (await connection.execute(update.where(columns.value == text))).rowcount:
                raise _overtaken(key)

        await self._call(key, work)

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """Remove a watermark."""

        async def work(connection: AsyncConnection) -> None:
            if (text := await _text(connection, key)) is None:
                return
            self.compare(key, self._read(key, text), expected)
            delete = table().delete().where(*_is(key), table().c.value == text)
            if not (await connection.execute(delete)).rowcount:
                raise _overtaken(key)

        await self._call(key, work)

    async def keys(self) -> list[WatermarkKey]:
        """Find all watermarks."""
        import sqlalchemy as sa

        async def work(connection: AsyncConnection) -> list[WatermarkKey]:
            columns = table().c
            # Only a text that begins like this tells a key: where a part is not stored as it is.
            text = sa.case((columns.value.startswith('{"watermark":', autoescape=True), columns.value))
            rows = await connection.execute(
                sa.select(columns.asset_name, columns.namespace, columns.key, text)
            )
            return [_key(WatermarkKey(*parts), text) for *parts, text in rows]

        return await self._call(None, work)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await close_pool(self._conn_id)

    async def _call(self, key: WatermarkKey | None, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        what = "the watermarks" if key is None else f"the watermark {'/'.join(key)}"
        where = f"{what} cannot be reached: the database of the connection {self._conn_id!r}"
        pool = await pool_of(self._conn_id)
        try:
            return await finished(self._work(pool, where, work))
        except MissingFileError as error:
            msg = (
                f"{where} is the SQLite file {str(error)!r}, which does not exist and has no table "
                f"{table().name} yet; run 'airflow watermarks migrate'. If it did exist, bring it back "
                "first: in a new one all watchers start anew"
            )
            raise StoreError(msg) from error
        except (StoreError, ConfigurationError):
            raise
        except Exception as error:
            pool.current = False
            msg = (
                f"{where} failed ({explained(error)}); see to it that it runs, that the connection is right, "
                f"and that its role may select, insert, update and delete in {table().name}, and select in "
                f"{VERSION_TABLE}. Nothing is lost: it is tried again"
            )
            raise StoreError(msg) from error

    async def _work(self, pool: Pool, where: str, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        async with asyncio.timeout(_TIMEOUT), pool.engine.connect() as connection:
            if not pool.current:
                await connection.run_sync(require_schema, where)
                pool.current = True
            return await work(connection)

    def _read(self, key: WatermarkKey, text: str) -> dict[str, Any]:
        return from_text(key, text, f"a row of {table().name} in the database of {self._conn_id!r}")


async def _text(connection: AsyncConnection, key: WatermarkKey) -> str | None:
    import sqlalchemy as sa

    text: str | None = await connection.scalar(sa.select(table().c.value).where(*_is(key)))
    return text


async def _insert(connection: AsyncConnection, key: WatermarkKey, row: dict[str, Any]) -> None:
    from sqlalchemy.exc import IntegrityError

    try:
        await connection.execute(table().insert().values(**_stored(key)._asdict(), **row))
    except IntegrityError as error:
        raise _overtaken(key) from error


def _overtaken(key: WatermarkKey) -> WatermarkConflictError:
    return WatermarkConflictError(f"the watermark {'/'.join(key)} was changed by another writer just now")


def _is(key: WatermarkKey) -> list[ColumnElement[bool]]:
    return [table().c[name] == part for name, part in _stored(key)._asdict().items()]


def _stored(key: WatermarkKey) -> WatermarkKey:
    """Give the key as the table has it: what a column cannot tell apart ends in a digest."""
    return WatermarkKey(*map(_column, key))


def _column(part: str) -> str:
    # MySQL compares without trailing spaces; Postgres stores no NUL.
    if len(part) <= MAX_PART and not part.endswith(" ") and "\0" not in part:
        return part
    name = digest(part)
    start = part.replace("\0", " ")[: MAX_PART - len(name) - 1]
    return f"{start}:{name}"


def _written(key: WatermarkKey, value: dict[str, Any]) -> str:
    return to_text(value, None if _stored(key) == key else key)


def _key(stored: WatermarkKey, text: str | None) -> WatermarkKey:
    told = key_in(text) if text else None
    return told if told is not None and _stored(told) == stored else stored


def _revision(value: dict[str, Any]) -> int:
    """Give the revision for its column; it need not be one in what an operator has edited."""
    revision = value.get("revision")
    return revision if isinstance(revision, int) and abs(revision) < 2**63 else 0
