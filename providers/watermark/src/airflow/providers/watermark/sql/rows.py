"""
From rows to changes: no I/O, and a column at a time.

A backlog may have millions of rows, and a steady poll reads again what it has delivered since the settled
bound. So types are looked at once a column rather than once a value, and of a row that is old news no more is
made than its id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.providers.watermark.change import Change, change_id, digest
from airflow.providers.watermark.position import encode_position, is_after
from airflow.providers.watermark.sql.query import WatchedQuery
from airflow.providers.watermark.values import INFINITE, encode_column, write_column
from airflow.providers.watermark.watermark import Sweep

__all__ = ["RowChanges", "read_position"]

_EVENT_BYTES: Final = 1024
"""Bytes that an event takes beside its rows and its source, at the most."""

_ENTRY_BYTES: Final = len('{"id": "5KagV3R5srQ", "cursor": {"type": "", "value": }, "key": }')
"""Bytes that a row takes beside what is different in each."""

_TRUNCATED: Final = len(', "truncated": true')


def read_position(value: Any, kind: str | None) -> Any:
    """Take a value of the cursor column as a position: asyncpg gives infinite ones without their zone."""
    return value.replace(tzinfo=UTC) if kind == "timestamp" and value in INFINITE else value


class RowChanges:
    """
    Makes changes of rows: each version of a row is one.

    :param query: What the rows were asked for with: each is the cursor, the key, the columns.
    :param kind: The position type of the cursor.
    :param with_rows: Whether events carry the columns; then they are what tells versions apart.
    :param source: What is watched, as events name it.
    :param max_bytes: The most bytes that an event may have. A row that has no room in it comes with its key
        only, marked ``truncated``.
    """

    def __init__(
        self, query: WatchedQuery, *, kind: str | None, with_rows: bool, source: str, max_bytes: int
    ) -> None:
        self._query = query
        self._kind = kind
        self._with_rows = with_rows
        self._names_size = len(', "row": ') + sum(len(_opening(name)) for name in query.columns)
        self._room = max_bytes - _EVENT_BYTES - len(json.dumps(source))

    def news(self, rows: Sequence[Sequence[Any]], sweep: Sweep) -> list[Change]:
        """
        Make changes of those rows that can be news now.

        :param rows: At least one, in reading order.
        """
        query, split = self._query, 1 + len(self._query.primary_key)
        cursor, *others = zip(*rows, strict=True)
        positions: Sequence[Any] = cursor
        if any(each in cursor for each in INFINITE):
            positions = [read_position(value, self._kind) for value in cursor]
        wires = list(map(encode_position, positions))
        columns = list(map(encode_column, others))
        keys, values = columns[: split - 1], columns[split - 1 :]
        identities = _write_objects(query.primary_key, keys)
        texts = _write_arrays(values) if self._with_rows else [""] * len(rows)
        versions = list(map(digest, texts)) if self._with_rows else texts
        names = list(map(change_id, identities, versions, wires))
        unsure = _last_second(sweep)
        news = []
        for index, position in enumerate(positions):
            identity, name = identities[index], names[index]
            if not sweep.concerns(identity, position, name):
                continue
            if unsure is not None and not position.microsecond and is_after(position, unsure):
                continue
            detail: dict[str, Any] = {"cursor": wires[index], "key": _row(query.primary_key, keys, index)}
            size = _entry_size(wires[index], identity)
            if self._with_rows and size + self._names_size + len(texts[index]) > self._room:
                detail["truncated"] = True
                size += _TRUNCATED
            elif self._with_rows:
                detail["row"] = _row(query.columns, values, index)
                size += self._names_size + len(texts[index])
            change = Change(
                identity=identity,
                version=versions[index],
                position=position,
                detail=detail,
                place=(position, *rows[index][1:split]),
                id=name,
                size=size,
            )
            news.append(change)
        return news


def _row(names: Sequence[str], columns: Sequence[Sequence[Any]], index: int) -> dict[str, Any]:
    return {name: column[index] for name, column in zip(names, columns, strict=True)}


def _write_arrays(columns: Sequence[Sequence[Any]]) -> list[str]:
    """Write each row of some columns as a JSON array, as :func:`json.dumps` would."""
    return [f"[{', '.join(texts)}]" for texts in zip(*map(write_column, columns), strict=True)]


def _write_objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[str]:
    """Write each row of some columns as a JSON object, likewise."""
    opening = list(map(_opening, names))
    rows = zip(*map(write_column, columns), strict=True)
    return [f"{{{', '.join(map(str.__add__, opening, texts))}}}" for texts in rows]


def _opening(name: str) -> str:
    return f"{json.dumps(name)}: "


def _entry_size(cursor: Mapping[str, Any], identity: str) -> int:
    """Count the bytes of a change's JSON, without its row; ``identity`` is the JSON of its key."""
    value = cursor["value"]
    # Only a string has characters that JSON escapes.
    size = len(json.dumps(value)) if cursor["type"] == "string" else len(value) + len('""')
    return _ENTRY_BYTES + len(cursor["type"]) + size + len(identity)


def _last_second(sweep: Sweep) -> datetime | None:
    """
    Give the time after which a row with whole seconds may change again within its second, and waits.

    What is settled never waits: its second is over.
    """
    if not isinstance(sweep.due, datetime):
        return None
    over = sweep.due - timedelta(seconds=1)
    return sweep.high if isinstance(sweep.high, datetime) and is_after(sweep.high, over) else over
