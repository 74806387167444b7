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
``object``    :class:`dict` with string keys                  an object of values
``range``     a range with ``lower``, ``upper`` and bounds    ``[lower, upper, bounds]``
``text``      anything else                                   :class:`str` of it
============  ==============================================  =====================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from airflow.providers.watermark.exceptions import EventError, StateError
from airflow.providers.watermark.position import decode_position, encode_position, format_timestamp

__all__ = ["Interval", "Range", "decode_value", "encode_column", "encode_value", "write_column"]

_TYPE: Final = "$type"
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


def encode_value(value: object) -> Any:  # noqa: C901, PLR0912 - a table, spelled as a match
    """
    Give the JSON form of a value.

    :param value: What a driver gave for a column.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return value.encode(errors="backslashreplace").decode()
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
            wire_bounds = [encode_value(value.lower), encode_value(value.upper), value.bounds]
            return {_TYPE: "range", "value": wire_bounds}
        case list() | tuple():
            return {_TYPE: "array", "value": [encode_value(each) for each in value]}
        case dict():
            return {_TYPE: "object", "value": {str(name): encode_value(each) for name, each in value.items()}}
    if all(hasattr(value, name) for name in ("lower", "upper", "lower_inc", "upper_inc", "isempty")):
        return encode_value(_range(value))
    if hasattr(value, "as_string"):  # asyncpg's bit strings, in groups of four
        return {_TYPE: "text", "value": value.as_string().replace(" ", "")}
    return {_TYPE: "text", "value": str(value)}


def encode_column(values: Sequence[object]) -> list[Any]:
    """
    Give the JSON forms of many values, most of them of one type: as :func:`encode_value`, and faster.

    :param values: Those of one column, say.
    """
    kinds = set(map(type, values))
    if kinds <= _STAND_AS_THEY_ARE or (kinds == {str} and all(map(str.isascii, values))):  # type: ignore[arg-type]
        return list(values)
    return [
        encoder(value) if (encoder := _ENCODERS.get(type(value))) is not None else encode_value(value)
        for value in values
    ]


def write_column(wires: Sequence[Any]) -> list[str]:
    """
    Give the JSON texts of many values' JSON forms: as :func:`json.dumps`, and faster.

    :param wires: What :func:`encode_column` gave.
    """
    kinds = set(map(type, wires))
    if kinds == {int}:
        return list(map(str, wires))
    if kinds == {dict}:
        return [
            f'{{"$type": "{wire[_TYPE]}", "value": {_write(wire["value"])}}}'
            if wire["value"].__class__ is str
            else _write(wire)
            for wire in wires
        ]
    return list(map(_write, wires))


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
