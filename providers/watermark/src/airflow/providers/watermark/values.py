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
``array``     :class:`list` and :class:`tuple`                a list of values
``object``    :class:`dict` with string keys                  an object of values
``range``     a range with ``lower``, ``upper`` and bounds    ``[lower, upper, bounds]``
``text``      anything else                                   :class:`str` of it
============  ==============================================  =====================================
"""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from airflow.providers.watermark.exceptions import EventError, StateError
from airflow.providers.watermark.position import decode_position, encode_position

__all__ = ["Range", "decode_value", "encode_value"]

_TYPE: Final = "$type"


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
