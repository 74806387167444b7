"""
Positions: where a change stands in its source's own order, and how that is stored without loss.

A position is a plain Python value of one of the types below. Positions of one type are totally ordered;
positions of two types have no order, and comparing them is an error that names both. On the wire a
position is ``{"type": ..., "value": ...}``.

===================  ==========================================  ==============================
type                 Python value                                wire value
===================  ==========================================  ==============================
``beginning``        :data:`BEGINNING`, before everything        ``null``
``timestamp``        aware :class:`datetime.datetime`            ISO 8601 in UTC, ``...Z``
``naive-timestamp``  naive :class:`datetime.datetime`            ISO 8601 without an offset
``date``             :class:`datetime.date`                      ISO 8601
``integer``          :class:`int`                                decimal digits
``decimal``          finite :class:`decimal.Decimal`             its exact text, scale kept
``float``            finite :class:`float`                       :func:`repr`, which round-trips
``string``           :class:`str`, code-point order              the text
``bytes``            :class:`bytes`                              base64
``uuid``             :class:`uuid.UUID`, order of its integer    the canonical text
``tuple``            :class:`tuple` of these, in their order     a list of wire positions
===================  ==========================================  ==============================
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from airflow.providers.watermark.exceptions import PositionTypeError, StateError

__all__ = [
    "BEGINNING",
    "Position",
    "decode_position",
    "encode_position",
    "floor_timestamp",
    "format_timestamp",
    "format_timestamps",
    "is_after",
    "parse_timestamp",
    "position_type",
]


class _Beginning:
    """The position before every other one, of whatever type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "BEGINNING"

    def __reduce__(self) -> str:
        return "BEGINNING"


BEGINNING: Final = _Beginning()

Scalar = datetime | date | int | float | Decimal | str | bytes | UUID | _Beginning
Position = Scalar | tuple[Scalar, ...]


def position_type(value: object) -> str:  # noqa: C901 - a table, spelled as a match
    """
    Name the wire type of a position.

    :param value: Any value.
    :raises PositionTypeError: The value is no position: another type, NaN or infinity, or a string that is
        no valid Unicode.
    """
    match value:
        case _Beginning():
            return "beginning"
        case datetime():  # before date: a datetime is a date, too
            return "naive-timestamp" if value.utcoffset() is None else "timestamp"
        case date():
            return "date"
        case bool():  # before int: a bool is an int, too
            pass
        case int():
            return "integer"
        case Decimal() if value.is_finite():
            return "decimal"
        case float() if math.isfinite(value):
            return "float"
        case str() if value.isascii() or _is_unicode(value):
            return "string"
        case bytes():
            return "bytes"
        case UUID():
            return "uuid"
        case tuple() if value and not {"tuple", "beginning"}.intersection(map(position_type, value)):
            return "tuple"
    msg = f"{value!r} ({type(value).__name__}) is no position: it has no place in a total order"
    raise PositionTypeError(msg)


def is_after(position: Position, other: Position) -> bool:
    """
    Tell whether ``position`` comes after ``other``, strictly.

    :raises PositionTypeError: The two are of different types; the message names both.
    """
    if other is BEGINNING:
        return position is not BEGINNING
    if position is BEGINNING:
        return False
    if type(position) is not type(other):
        require_same_type(position, other)
    try:
        return position > other  # type: ignore[operator]
    except TypeError:  # an aware and a naive datetime
        require_same_type(position, other)
        raise


def require_same_type(position: Position, other: Position) -> None:
    """
    Check that two positions have a common order.

    :raises PositionTypeError: They have none; the message names both.
    """
    one, two = _describe(position), _describe(other)
    if one != two:
        msg = (
            f"position {position!r} is a {one}, but {other!r} is a {two}: they have no common order. If the "
            "source's type changed, reset the stored watermark"
        )
        raise PositionTypeError(msg)


def encode_position(value: Position) -> dict[str, Any]:
    """
    Give the JSON form of a position.

    :param value: A position.
    :return: ``{"type": str, "value": str | list | None}``; equal positions of one type give equal forms,
        except for decimals, which keep their scale.
    :raises PositionTypeError: The value is no position.
    """
    if isinstance(value, datetime):  # as most are
        kind = "naive-timestamp" if value.utcoffset() is None else "timestamp"
        return {"type": kind, "value": format_timestamp(value)}
    kind = position_type(value)
    text: str | list[dict[str, Any]] | None
    match value:
        case _Beginning():
            text = None
        case tuple():
            text = [encode_position(each) for each in value]
        case date():
            text = value.isoformat()
        case bytes():
            text = base64.b64encode(value).decode("ascii")
        case float():
            text = repr(value)
        case _:
            text = str(value)
    return {"type": kind, "value": text}


def decode_position(wire: object) -> Position:
    """
    Read a position from its JSON form.

    :param wire: What :func:`encode_position` gave.
    :raises StateError: It is something else.
    """
    match wire:
        case {"type": "beginning"}:
            return BEGINNING
        case {"type": "tuple", "value": [_, *_] as parts}:
            return tuple(_scalar(decode_position(part)) for part in parts)
        case {"type": str(kind), "value": str(text)} if kind in _DECODERS:
            try:
                value = _DECODERS[kind](text)
                if position_type(value) == kind:
                    return value
            except (
                ValueError,
                ArithmeticError,
                binascii.Error,
                InvalidOperation,
                PositionTypeError,
            ) as error:
                msg = f"{text!r} is no {kind} position"
                raise StateError(msg) from error
    msg = f"{wire!r} is no stored position"
    raise StateError(msg)


def format_timestamp(value: datetime) -> str:
    """Write a timestamp as ISO 8601: an aware one in UTC with a ``Z``, a naive one without an offset."""
    if value.tzinfo is UTC:  # as most are: at half the price
        return value.isoformat()[: -len("+00:00")] + "Z"
    if value.utcoffset() is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_timestamps(values: Sequence[datetime]) -> list[str]:
    """Write many timestamps as :func:`format_timestamp` writes each: if all are in UTC, at half the price."""
    if not values or not all(value.tzinfo is UTC for value in values):
        return list(map(format_timestamp, values))
    return "\n".join(map(datetime.isoformat, values)).replace("+00:00", "Z").split("\n")


def parse_timestamp(text: str) -> datetime:
    """
    Read an aware timestamp from ISO 8601 text.

    :param text: With an offset or ``Z``; naive text is refused rather than guessed.
    :return: The instant in UTC.
    :raises ValueError: It is not such a text.
    """
    value = datetime.fromisoformat(text)
    if value.utcoffset() is None:
        msg = f"{text!r} has no UTC offset"
        raise ValueError(msg)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        msg = f"{text!r} is out of range in UTC"
        raise ValueError(msg) from error


def floor_timestamp(value: datetime, step: timedelta) -> datetime:
    """
    Round an aware timestamp down to a multiple of ``step`` since the epoch.

    :param value: An aware timestamp.
    :param step: The precision to round to, above 0.
    :return: The greatest multiple at or before ``value``, in UTC.
    """
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (value - epoch) // step * step


def _describe(position: Position) -> str:
    kind = position_type(position)
    if isinstance(position, tuple):
        return f"{kind} of {', '.join(map(position_type, position))}"
    return kind


def _scalar(position: Position) -> Scalar:
    if isinstance(position, tuple | _Beginning):
        msg = f"{position!r} is no part of a stored position"
        raise StateError(msg)
    return position


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate: no JSON, no database and no bucket can hold it
        return False
    return True


_DECODERS: Final[Mapping[str, Callable[[str], Scalar]]] = {
    "timestamp": parse_timestamp,
    "naive-timestamp": datetime.fromisoformat,
    "date": date.fromisoformat,
    "integer": int,
    "decimal": Decimal,
    "float": float,
    "string": str,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "uuid": UUID,
}
