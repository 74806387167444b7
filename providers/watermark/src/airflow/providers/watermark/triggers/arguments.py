"""Trigger arguments: what may stand in them, and how a mistake is told."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator

__all__ = ["choice", "flat_list", "number", "sql", "suggest", "text", "whole"]

Problem = str

_MOST_SECONDS = 1e9  # a date long before now does not exist
_BLANK_SQL = re.compile(r"\s|;|--[^\n]*|/\*.*?\*/", re.DOTALL)


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float = 0.0,
    at_most: float = _MOST_SECONDS,
) -> Iterator[Problem]:
    """Find what is wrong with a number, such as a duration in seconds."""
    allowed = f"a number above {above:g}" if above is not None else f"a number of at least {at_least:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        yield f"{name}={value!r}: must be {allowed}; durations are seconds (timedelta.total_seconds())"
    elif value < at_least or (above is not None and value <= above):
        yield f"{name}={value!r}: must be {allowed}"
    elif value > at_most:
        yield f"{name}={value!r}: must be {allowed} and at most {at_most:g}"


def whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> Iterator[Problem]:
    """Find what is wrong with a whole number."""
    upper = "" if at_most is None else f" and at most {at_most}"
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < at_least
        or (at_most is not None and value > at_most)
    ):
        yield f"{name}={value!r}: must be a whole number of at least {at_least}{upper}"


def choice(name: str, value: object, allowed: Iterable[str]) -> Iterator[Problem]:
    """Find what is wrong with one of several words."""
    words = list(allowed)
    if value not in words:
        yield f"{name}={value!r}: must be one of {', '.join(map(repr, words))}"


def text(name: str, value: object, *, empty: bool = False, optional: bool = False) -> Iterator[Problem]:
    """Find what is wrong with a text."""
    if value is None and optional:
        return
    if not isinstance(value, str):
        yield f"{name}={value!r}: must be a string"
    elif not value and not empty:
        yield f"{name}={value!r}: must not be empty"
    elif not value.strip() and not empty:
        yield f"{name}={value!r}: must not be blank"
    elif "\0" in value:
        yield f"{name}={value!r}: must have no NUL character"
    elif ("{{" in value and "}}" in value) or ("{%" in value and "%}" in value):
        yield f"{name}={value!r}: Airflow renders no templates in asset watchers; write the value itself"
    else:
        try:
            value.encode()
        except UnicodeEncodeError:
            yield f"{name}={value!r}: must be valid Unicode"


def sql(name: str, value: object) -> Iterator[Problem]:
    """Find what is wrong with a piece of SQL, which may be left out."""
    problems = list(text(name, value, optional=True))
    if not problems and isinstance(value, str) and not _BLANK_SQL.sub("", value):
        problems = [f"{name}={value!r}: must be more than semicolons and comments"]
    yield from problems


def flat_list(name: str, value: object, *, single: bool = False) -> Iterator[Problem]:
    """
    Find what is wrong with a list of texts.

    :param single: Whether one text will do, as it is.
    """
    if not isinstance(value, list) and not (single and isinstance(value, str)):
        yield f"{name}={value!r}: must be {'a string or ' if single else ''}a list of strings"
        return
    for entry in value if isinstance(value, list) else [value]:
        yield from text(name, entry)


def suggest(unknown: Iterable[str], known: Iterable[str]) -> Iterator[Problem]:
    """Tell unknown options, each with the nearest known one."""
    names = sorted(known)
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(names)}"
        yield f"{name}: unknown option; {hint}"
