"""The questions that the SQL watcher asks, as SQLAlchemy statements: no I/O, and any dialect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.watermark.position import BEGINNING, Position

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.engine import Dialect
    from sqlalchemy.sql.expression import FromClause

__all__ = ["WatchedQuery", "split_name"]

_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def split_name(name: str) -> list[str]:
    """
    Split a table's name at its dots; a part in double quotes is taken as it is, dots and all.

    :param name: ``table``, ``schema.table`` or ``database.schema.table``.
    :return: One to three parts, unquoted.
    :raises ValueError: It is no such name.
    """
    parts = []
    rest = name
    while True:
        match = _PART.match(rest)
        if match is None:
            break
        parts.append(match[1].replace('""', '"') if match[1] else match[2])
        rest = rest[match.end() :]
        if not rest.startswith("."):
            break
        rest = rest[1:]
    if rest or not 1 <= len(parts) <= 3:
        msg = f"{name!r} is no table name"
        raise ValueError(msg)
    return parts


@dataclass(frozen=True, kw_only=True)
class WatchedQuery:
    """
    A table, view or query with a column that grows when a row is inserted or changed.

    Identifiers are quoted by the dialect, values are bound. ``where`` and ``query`` are the author's own
    SQL and stand as they are.

    :param table: The table's name; see :func:`split_name`.
    :param query: A SELECT, instead of a table.
    :param cursor_column: The growing column.
    :param primary_key: What tells rows apart; may be empty where no rows are read.
    :param columns: Further columns to be read.
    :param where: A predicate.
    :param collation: How a cursor of texts is ordered, so that it has one order in the database and here.
    """

    table: str | None
    query: str | None
    cursor_column: str
    primary_key: Sequence[str] = ()
    columns: Sequence[str] = ()
    where: str | None = None
    collation: str | None = None

    def window(self, low: Position, bound: Position, limit: int) -> Select[Any]:
        """
        Ask for the first rows of ``(low, bound]``: how many there are, and the last position.

        :param limit: How many rows are looked at, at least 1.
        """
        import sqlalchemy as sa

        cursor = self._cursor
        first = self._select(cursor.label("position")).where(*self._between(low, bound))
        rows = first.order_by(cursor).limit(limit).subquery("rows_found")
        found: Any = sa.select(sa.func.count(), sa.func.max(rows.c.position))
        statement: Select[Any] = found.select_from(rows)
        return statement

    def count(self, low: Position, high: Position) -> Select[Any]:
        """Ask how many rows ``(low, high]`` has."""
        import sqlalchemy as sa

        return self._select(sa.func.count()).where(*self._between(low, high))

    def page(
        self, low: Position, *, after: Sequence[Position] | None, before: Position | None, limit: int
    ) -> Select[Any]:
        """
        Ask for rows after ``low``, in the order of (position, primary key): position, key, columns.

        :param after: The position and key of the row to go on behind, exclusive.
        :param before: An exclusive upper bound.
        """
        import sqlalchemy as sa

        cursor = self._cursor
        keys: list[ColumnElement[Any]] = [sa.column(name) for name in self.primary_key]
        wanted: list[ColumnElement[Any]] = [sa.column(name) for name in self.columns]
        statement = self._select(cursor, *keys, *wanted)
        if after is not None:
            # A row value: with OR the index would be read from its start.
            row = sa.tuple_(*(_value(value) for value in after))
            statement = statement.where(sa.tuple_(cursor, *keys) > row)
        elif low is not BEGINNING:
            statement = statement.where(cursor > _value(low))
        if before is not None:
            statement = statement.where(cursor < _value(before))
        return statement.where(cursor.is_not(None)).order_by(cursor, *keys).limit(limit)

    def highest(self) -> Select[Any]:
        """Ask for the highest position."""
        import sqlalchemy as sa

        return self._select(sa.func.max(self._cursor))

    def nulls(self, limit: int) -> Select[Any]:
        """Ask how many rows have no position, counting up to ``limit``."""
        import sqlalchemy as sa

        rows = self._select(sa.literal_column("1")).where(self._cursor.is_(None)).limit(limit)
        found: Select[Any] = sa.select(sa.func.count())
        return found.select_from(rows.subquery("rows_found"))

    def ahead(self, position: Position, limit: int) -> Select[Any]:
        """Ask how many rows are at or after a position, counting up to ``limit``."""
        import sqlalchemy as sa

        rows = self._select(sa.literal_column("1")).where(self._cursor >= _value(position)).limit(limit)
        found: Select[Any] = sa.select(sa.func.count())
        return found.select_from(rows.subquery("rows_found"))

    def shape(self) -> Select[Any]:
        """Ask for no rows at all: only for their types."""
        import sqlalchemy as sa

        names = (self.cursor_column, *self.primary_key, *self.columns)
        return self._select(*(sa.column(name) for name in names)).limit(0)

    def quoted_cursor(self, dialect: Dialect) -> str:
        """Give the cursor column as SQL text."""
        return str(dialect.identifier_preparer.quote(self.cursor_column))

    @property
    def _cursor(self) -> ColumnElement[Any]:
        import sqlalchemy as sa

        column: ColumnElement[Any] = sa.column(self.cursor_column)
        return column if self.collation is None else sa.collate(column, self.collation)

    def _select(self, *columns: Any) -> Select[Any]:
        import sqlalchemy as sa

        statement = sa.select(*columns).select_from(self._source())
        return statement if self.where is None else statement.where(sa.text(_literal(f"({self.where}\n)")))

    def _source(self) -> FromClause:
        import sqlalchemy as sa

        if self.query is not None:
            text = _literal(self.query.rstrip().rstrip(";") + "\n")  # it may end in a comment
            return sa.text(text).columns().subquery("watched")
        *schema, name = split_name(self.table or "")
        return sa.table(name, schema=".".join(schema) or None)

    def _between(self, low: Position, high: Position) -> list[ColumnElement[bool]]:
        predicates = [self._cursor <= _value(high)]
        if low is not BEGINNING:
            predicates.insert(0, self._cursor > _value(low))
        return predicates


def _value(value: Position) -> ColumnElement[Any]:
    """Bind a value without a type: the database takes it for the column's, whatever that is."""
    import sqlalchemy as sa

    return sa.bindparam(None, value, type_=sa.types.NullType())


def _literal(text: str) -> str:
    """Keep ``sa.text`` from taking a colon for a bound value."""
    return text.replace(":", r"\:")
