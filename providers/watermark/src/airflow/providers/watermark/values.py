"""
Values of rows in events: what JSON cannot hold is written with its type, and comes back as it was.

Strings, booleans, ``None`` and whole numbers stand as they are; whatever else is an object with one key,
``{"$type": ..., "value": ...}``. Positions use the names of
:mod:`airflow.providers.watermark.position`; beside them there are:

============  ==============================================  =====================================
type          Python value                                    wire value
============  ==============================================  =====================================
``float``     :class:`float`, NaN and infinities included     :func:`repr`
``decimal``   :class:`~decimal.Decimal`, likewise             its exact text
``time``      :class:`datetime.time`                          ISO 8601
``interval``  :class:`datetime.timedelta`                     ``[days, seconds, microseconds]``
``months``    :class:`Interval`: no fixed time                ``[months, days, microseconds]``
``array``     :class:`list` and :class:`tuple`                a list of values
``object``    a mapping or a composite, with names            an object of values
``range``     a range with ``lower``, ``upper`` and bounds    ``[lower, upper, bounds]``
``text``      anything else that has a lasting text           :class:`str` of it
============  ==============================================  =====================================

Geometric values of Postgres are arrays of their coordinates: a point is ``[x, y]``, a box or a line segment
two points, a line its three coefficients, a circle ``[center, radius]``. A path or a polygon is an object of
its ``points`` and whether it is ``closed``.

Postgres' ``infinity`` and ``-infinity`` come back as ``datetime.max`` and ``datetime.min``, or those of
:class:`~datetime.date`. asyncpg gives infinite times no zone: they have UTC where a finite time beside them
in the same page, array or range has a zone, and none otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from airflow.providers.watermark.exceptions import EventError, StateError
from airflow.providers.watermark.position import decode_position, encode_position, format_timestamp

__all__ = ["INFINITE", "Interval", "Range", "decode_value", "encode_column", "encode_value", "write_column"]

_TYPE: Final = "$type"
INFINITE: Final = (datetime.min, datetime.max)  # noqa: DTZ901
"""Infinite times, as asyncpg gives them: without a zone."""

_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+>")
"""Of a text that is another one each time, as :meth:`object.__repr__` makes it."""

_write: Final = json.JSONEncoder().encode


class Range(NamedTuple):
    """
    A range of values.

    :param lower: ``None``: without a lower bound.
    :param upper: ``None``: without an upper bound.
    :param bounds: ``"[)"``, ``"[]"``, ``"()"``, ``"(]"``, or ``"empty"``.
    """

    lower: Any
    upper: Any
    bounds: str


class Interval(NamedTuple):
    """
    A span of time that no :class:`~datetime.timedelta` can hold, since months and days differ in length.

    :param months: Twelve to a year.
    :param days: Beside the months; a day may have 23 or 25 hours.
    :param microseconds: Beside the days; a day or more of them is not the same as a day.
    """

    months: int
    days: int
    microseconds: int


def encode_value(value: object) -> Any:  # noqa: C901 - a table, spelled as a match
    """
    Give the JSON form of a value.

    :param value: What a driver gave for a column.
    :raises EventError: Its type has no form that is the same each time it is read.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return _unicode(value)
        case float() if not math.isfinite(value):
            return {_TYPE: "float", "value": str(value)}
        case Decimal() if not value.is_finite():
            return {_TYPE: "decimal", "value": str(value)}
        case datetime() | date() | float() | Decimal() | UUID() | bytes():
            wire = encode_position(value)
            return {_TYPE: wire["type"], "value": wire["value"]}
        case bytearray() | memoryview():
            return encode_value(bytes(value))
        case time():
            return {_TYPE: "time", "value": value.isoformat()}
        case timedelta():
            return {_TYPE: "interval", "value": [value.days, value.seconds, value.microseconds]}
        case Interval():
            return {_TYPE: "months", "value": list(value)}
        case Range():
            return {_TYPE: "range", "value": [*encode_column(value[:2]), value.bounds]}
        case list() | tuple():
            return {_TYPE: "array", "value": encode_column(value)}
        case Mapping():
            fields = {_unicode(str(name)): encode_value(each) for name, each in value.items()}
            return {_TYPE: "object", "value": fields}
    return _encode_other(value)


def _encode_other(value: Any) -> Any:
    """Give the JSON form of a driver's own type, told by what it has: the driver may not be installed."""
    if all(hasattr(value, name) for name in ("lower", "upper", "lower_inc", "upper_inc", "isempty")):
        return encode_value(_range(value))
    if hasattr(value, "as_string"):  # asyncpg's bit strings, in groups of four
        return {_TYPE: "text", "value": value.as_string().replace(" ", "")}
    if hasattr(value, "points") and hasattr(value, "is_closed"):  # asyncpg's paths and polygons
        return encode_value({"closed": value.is_closed, "points": value.points})
    if hasattr(value, "keys") and hasattr(value, "items"):  # asyncpg's composites
        return encode_value(dict(value.items()))
    text = str(value)
    if _ADDRESS.search(text):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        msg = f"a value of the type {kind} has no lasting text; cast its column to text, or leave it out"
        raise EventError(msg)
    return {_TYPE: "text", "value": _unicode(text)}


def _unicode(text: str) -> str:
    """Escape what no JSON can hold: lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def encode_column(values: Sequence[object]) -> list[Any]:
    """
    Give the JSON forms of many values, most of them of one type: as :func:`encode_value`, and faster.

    Infinite times get the zone that others beside them have.

    :param values: Those of one column, say.
    :raises EventError: As :func:`encode_value`.
    """
    kinds = set(map(type, values))
    if kinds <= _STAND_AS_THEY_ARE or (kinds == {str} and all(map(str.isascii, values))):  # type: ignore[arg-type]
        return list(values)
    if datetime in kinds:
        values = _with_zone(values)
    return [
        encoder(value) if (encoder := _ENCODERS.get(type(value))) is not None else encode_value(value)
        for value in values
    ]


def _with_zone(values: Sequence[object]) -> Sequence[object]:
    if not any(each in values for each in INFINITE):
        return values
    if not any(isinstance(each, datetime) and each.tzinfo is not None for each in values):
        return values
    return [
        each.replace(tzinfo=UTC) if isinstance(each, datetime) and each in INFINITE else each
        for each in values
    ]


def write_column(wires: Sequence[Any]) -> list[str]:
    """
    Give the JSON texts of many values' JSON forms: as :func:`json.dumps`, and faster.

    Infinite times are written without a zone. Whether they have one depends on the other rows of a page, on
    which the digest of a row must not depend.

    :param wires: What :func:`encode_column` gave.
    """
    kinds = set(map(type, wires))
    if kinds == {int}:
        return list(map(str, wires))
    if kinds == {dict}:
        texts = [
            f'{{"$type": "{wire[_TYPE]}", "value": {_write(wire["value"])}}}'
            if wire["value"].__class__ is str
            else _write(wire)
            for wire in wires
        ]
    else:
        texts = list(map(_write, wires))
    if _WITHOUT_ZONE.keys().isdisjoint(texts):
        return texts
    return [_WITHOUT_ZONE.get(text, text) for text in texts]


def decode_value(wire: object) -> Any:
    """
    Read a value from its JSON form.

    :raises EventError: It is none.
    """
    try:
        return _decode(wire)
    except (StateError, ValueError, ArithmeticError) as error:
        msg = f"{wire!r} is no value"
        raise EventError(msg) from error


def _decode(wire: object) -> Any:  # noqa: C901 - likewise
    match wire:
        case None | bool() | int() | str():
            return wire
        case {"$type": "float", "value": str(text)}:
            return float(text)
        case {"$type": "decimal", "value": str(text)}:
            return Decimal(text)
        case {"$type": "text", "value": str(text)}:
            return text
        case {"$type": "time", "value": str(text)}:
            return time.fromisoformat(text)
        case {"$type": "interval", "value": [int(days), int(seconds), int(microseconds)]}:
            return timedelta(days=days, seconds=seconds, microseconds=microseconds)
        case {"$type": "months", "value": [int(months), int(days), int(microseconds)]}:
            return Interval(months, days, microseconds)
        case {"$type": "range", "value": [lower, upper, str(bounds)]}:
            return Range(_decode(lower), _decode(upper), bounds)
        case {"$type": "array", "value": list(values)}:
            return [_decode(each) for each in values]
        case {"$type": "object", "value": dict(values)}:
            return {name: _decode(each) for name, each in values.items()}
        case {"$type": str(kind), "value": str(text)}:
            return decode_position({"type": kind, "value": text})
    raise ValueError


def _range(value: Any) -> Range:
    """Take a driver's own range type for ours."""
    if value.isempty:
        return Range(None, None, "empty")
    return Range(
        value.lower, value.upper, ("[" if value.lower_inc else "(") + ("]" if value.upper_inc else ")")
    )


_STAND_AS_THEY_ARE: Final = frozenset({int, bool, type(None)})

_ENCODERS: Final[Mapping[type, Callable[[Any], Any]]] = {
    int: lambda value: value,
    bool: lambda value: value,
    type(None): lambda value: value,
    str: lambda value: value if value.isascii() else encode_value(value),
    float: lambda value: {_TYPE: "float", "value": repr(value)},
    Decimal: lambda value: {_TYPE: "decimal", "value": str(value)},
    datetime: lambda value: {
        _TYPE: "timestamp" if value.tzinfo is not None else "naive-timestamp",
        "value": format_timestamp(value),
    },
    UUID: lambda value: {_TYPE: "uuid", "value": str(value)},
}
"""Of the types that most columns have, as :func:`encode_value` would."""

_WITHOUT_ZONE: Final = {
    _write(encode_value(each.replace(tzinfo=UTC))): _write(encode_value(each)) for each in INFINITE
}
