"""
The questions that the SQL watcher asks, as SQLAlchemy statements: no I/O, and any dialect.

A poll asks the same few questions again and again, with other values; so statements are built once a shape
and kept, and what compiles them may keep the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.providers.watermark.position import BEGINNING, Position

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.engine import Dialect
    from sqlalchemy.sql.expression import FromClause

__all__ = ["BOUND", "Question", "WatchedQuery", "split_name"]

BOUND: Final = "airflow_watermark_"
"""
What the names of bound values begin with.

SQLAlchemy replaces ``%(name)s`` wherever it stands, in the author's own SQL as well, and we ``:name``.
"""

_KEYWORDS: Final = frozenset({"collation", "concurrently", "lateral", "system_user", "tablesample"})
"""Those of Postgres that SQLAlchemy does not know: a name that is one must be quoted."""

_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def split_name(name: str) -> list[str]:
    """
    Split a table's name at its dots; a part in double quotes is taken as it is, dots and all.

    :param name: ``table`` or ``schema.table``.
    :return: One or two parts, unquoted.
    :raises ValueError: It is no such name.
    """
    parts = []
    rest = "." + name
    while rest.startswith(".") and (match := _PART.match(rest, 1)):
        parts.append(match[1].replace('""', '"') if match[1] else match[2])
        rest = rest[match.end() :]
    if rest or not 1 <= len(parts) <= 2:
        msg = f"{name!r} is no table name"
        raise ValueError(msg)
    return parts


class Question(NamedTuple):
    """
    A statement, and the values for its bound parameters.

    :param statement: The same object for each question of one shape.
    :param values: By name.
    """

    statement: Select[Any]
    values: Mapping[str, Any]


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
    :param oldest: The first time that can be read, as a SQL literal, where the database has older ones.
    """

    table: str | None
    query: str | None
    cursor_column: str
    primary_key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str | None = None
    collation: str | None = None
    oldest: str | None = None

    def window(self, low: Position, bound: Position, limit: int) -> Question:
        """
        Ask for the first rows of ``(low, bound]``: how many there are, and the last position; no row if none.

        :param limit: How many rows are looked at, at least 1.
        """
        values = {**_bounds(low, bound), "limit": limit}
        return _ask(_window(self, "low" in values), values)

    def count(self, low: Position, high: Position) -> Question:
        """Ask how many rows ``(low, high]`` has."""
        values = _bounds(low, high)
        return _ask(_count(self, "low" in values), values)

    def page(
        self, low: Position, *, after: Sequence[Position] | None, before: Position | None, limit: int
    ) -> Question:
        """
        Ask for rows after ``low``, in the order of (position, primary key): position, key, columns.

        :param after: The position and key of the row to go on behind, exclusive.
        :param before: An exclusive upper bound.
        """
        values: dict[str, Any] = {"limit": limit}
        if after is not None:
            values |= {f"after_{index}": value for index, value in enumerate(after)}
        elif low is not BEGINNING:
            values["low"] = low
        if before is not None:
            values["before"] = before
        return _ask(_page(self, after is not None, "low" in values, before is not None), values)

    def ancient(self, *, after: Sequence[Any] | None, limit: int) -> Question:
        """
        Ask for rows before ``oldest``, in the order of their keys: key, columns.

        :param after: The key of the row to go on behind, exclusive.
        """
        values = {f"after_{index}": value for index, value in enumerate(after or (), start=1)}
        return _ask(_ancient(self, after is not None), {"limit": limit, **values})

    def keyless(self, position: Position | None) -> Question:
        """
        Ask for one row of which a part of the key is NULL; a page may have left it out.

        :param position: At which; ``None``: before ``oldest``.
        """
        return _ask(_keyless(self, position is None), {} if position is None else {"low": position})

    def highest(self, before: Position | None = None, *, low: Position = BEGINNING) -> Question:
        """
        Ask for the highest position, or NULL.

        :param before: An exclusive upper bound.
        :param low: An exclusive lower bound.
        """
        values = {} if before is None else {"before": before}
        if low is not BEGINNING:
            values["low"] = low
        return _ask(_highest(self, before is not None, "low" in values), values)

    def nulls(self, limit: int) -> Question:
        """Ask how many rows have no position, counting up to ``limit``."""
        return _ask(_nulls(self), {"limit": limit})

    def ahead(self, position: Position, limit: int) -> Question:
        """Ask how many rows are at or after a position, counting up to ``limit``."""
        return _ask(_ahead(self), {"low": position, "limit": limit})

    def shape(self) -> Question:
        """Ask for no rows at all: only for their types."""
        import sqlalchemy as sa

        names = (self.cursor_column, *self.primary_key, *self.columns)
        return Question(self.select(*map(_column, names)).limit(sa.literal_column("0")), {})

    def quoted_cursor(self, dialect: Dialect) -> str:
        """Give the cursor column as SQL text, percent signs as they are."""
        name = _quoted(self.cursor_column) if self.cursor_column in _KEYWORDS else self.cursor_column
        quoted = str(dialect.identifier_preparer.quote(name))
        return quoted.replace("%%", "%") if dialect.paramstyle in {"format", "pyformat"} else quoted

    @property
    def cursor(self) -> ColumnElement[Any]:
        """The cursor column, in the order that it has here."""
        import sqlalchemy as sa

        column = _column(self.cursor_column)
        return column if self.collation is None else sa.collate(column, self.collation)

    def select(self, *columns: Any) -> Select[Any]:
        """Begin a statement over what is watched."""
        import sqlalchemy as sa

        statement = sa.select(*columns).select_from(self._source())
        return statement if self.where is None else statement.where(sa.text(_literal(f"({self.where}\n)")))

    def _source(self) -> FromClause:
        import sqlalchemy as sa

        if self.query is not None:
            text = _literal(self.query.rstrip().rstrip(";") + "\n")  # it may end in a comment
            return sa.text(text).columns().subquery("watched")
        *schema, name = map(_quoted, split_name(self.table or ""))
        return sa.table(name, schema=schema[0] if schema else None)


def _bounds(low: Position, high: Position) -> dict[str, Any]:
    return {"high": high} if low is BEGINNING else {"low": low, "high": high}


@lru_cache(maxsize=1024)
def _window(query: WatchedQuery, has_low: bool) -> Select[Any]:  # noqa: FBT001
    import sqlalchemy as sa

    cursor = query.cursor
    first = _between(query.select(cursor.label("position")), query, has_low)
    rows = first.order_by(cursor).limit(_limit()).subquery("rows_found")
    # Not with max(), which Postgres has for texts, numbers and times only.
    position: Any = rows.c.position
    if query.oldest is not None and not has_low:
        position = sa.func.greatest(position, sa.literal_column(query.oldest))
    found: Any = sa.select(sa.func.count().over(), position)
    statement: Select[Any] = found.order_by(rows.c.position.desc()).limit(sa.literal_column("1"))
    return statement


@lru_cache(maxsize=1024)
def _count(query: WatchedQuery, has_low: bool) -> Select[Any]:  # noqa: FBT001
    import sqlalchemy as sa

    return _between(query.select(sa.func.count()), query, has_low)


@lru_cache(maxsize=1024)
def _page(query: WatchedQuery, has_after: bool, has_low: bool, has_before: bool) -> Select[Any]:  # noqa: FBT001
    import sqlalchemy as sa

    cursor = query.cursor
    keys: list[ColumnElement[Any]] = list(map(_column, query.primary_key))
    wanted: list[ColumnElement[Any]] = list(map(_column, query.columns))
    statement = query.select(cursor, *keys, *wanted)
    if has_after:
        # A row value: with OR the index would be read from its start.
        row = sa.tuple_(*(_value(f"after_{index}") for index in range(1 + len(keys))))
        statement = statement.where(sa.tuple_(cursor, *keys) > row)
    elif has_low:
        statement = statement.where(cursor > _value("low"))
    elif query.oldest is not None:
        statement = statement.where(cursor >= sa.literal_column(query.oldest))
    if has_before:
        statement = statement.where(cursor < _value("before"))
    return statement.where(cursor.is_not(None)).order_by(cursor, *keys).limit(_limit())


@lru_cache(maxsize=1024)
def _ancient(query: WatchedQuery, has_after: bool) -> Select[Any]:  # noqa: FBT001
    import sqlalchemy as sa

    keys: list[ColumnElement[Any]] = list(map(_column, query.primary_key))
    wanted: list[ColumnElement[Any]] = list(map(_column, query.columns))
    statement = query.select(*keys, *wanted).where(query.cursor < sa.literal_column(str(query.oldest)))
    if has_after:
        row = sa.tuple_(*(_value(f"after_{index}") for index in range(1, 1 + len(keys))))
        statement = statement.where(sa.tuple_(*keys) > row)
    return statement.order_by(*keys).limit(_limit())


@lru_cache(maxsize=1024)
def _keyless(query: WatchedQuery, is_ancient: bool) -> Select[Any]:  # noqa: FBT001
    import sqlalchemy as sa

    is_null = sa.or_(*(_column(name).is_(None) for name in query.primary_key))
    statement = query.select(sa.literal_column("1")).where(is_null)
    if is_ancient:
        statement = statement.where(query.cursor < sa.literal_column(str(query.oldest)))
    else:
        statement = statement.where(query.cursor == _value("low"))
    return statement.limit(sa.literal_column("1"))


@lru_cache(maxsize=1024)
def _highest(query: WatchedQuery, has_before: bool, has_low: bool) -> Select[Any]:  # noqa: FBT001
    import sqlalchemy as sa

    cursor = query.cursor
    rows = query.select(cursor).where(cursor.is_not(None)).order_by(cursor.desc())
    if has_low:
        rows = rows.where(cursor > _value("low"))
    elif query.oldest is not None:
        rows = rows.where(cursor >= sa.literal_column(query.oldest))
    if has_before:
        rows = rows.where(cursor < _value("before"))
    found: Select[Any] = sa.select(rows.limit(sa.literal_column("1")).scalar_subquery())
    return found


@lru_cache(maxsize=1024)
def _nulls(query: WatchedQuery) -> Select[Any]:
    import sqlalchemy as sa

    return _counted(query.select(sa.literal_column("1")).where(query.cursor.is_(None)))


@lru_cache(maxsize=1024)
def _ahead(query: WatchedQuery) -> Select[Any]:
    import sqlalchemy as sa

    return _counted(query.select(sa.literal_column("1")).where(query.cursor >= _value("low")))


def _counted(statement: Select[Any]) -> Select[Any]:
    import sqlalchemy as sa

    found: Select[Any] = sa.select(sa.func.count())
    return found.select_from(statement.limit(_limit()).subquery("rows_found"))


def _between(statement: Select[Any], query: WatchedQuery, has_low: bool) -> Select[Any]:  # noqa: FBT001
    if has_low:
        statement = statement.where(query.cursor > _value("low"))
    return statement.where(query.cursor <= _value("high"))


def _value(name: str) -> ColumnElement[Any]:
    """Bind a value without a type: the database takes it for the column's, whatever that is."""
    import sqlalchemy as sa

    return sa.bindparam(BOUND + name, type_=sa.types.NullType())


def _limit() -> Any:
    import sqlalchemy as sa

    return sa.bindparam(f"{BOUND}limit", type_=sa.types.Integer())


def _ask(statement: Select[Any], values: Mapping[str, Any]) -> Question:
    return Question(statement, {BOUND + name: value for name, value in values.items()})


def _column(name: str) -> ColumnElement[Any]:
    import sqlalchemy as sa

    return sa.column(_quoted(name))


def _quoted(name: str) -> str:
    """Have a name put in quotes, whatever SQLAlchemy knows of the reserved words of this server's release."""
    from sqlalchemy.sql.elements import quoted_name

    return quoted_name(name, quote=True)


def _literal(text: str) -> str:
    """Keep ``sa.text`` from taking a colon for a bound value."""
    return text.replace(":", r"\:")
