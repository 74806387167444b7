"""
Prefixes with a date in them: which partitions to list, and which changes that finds.

A poll lists the partitions around now alone. What lands in others, *strays*, is found by a full listing now
and then. Whether a change is a stray is a pure function of its key and its time, so that each belongs to one
of the two for good, and is delivered once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

__all__ = ["AHEAD", "PrefixTemplate"]

_FIELDS: Final = {
    "Y": (r"\d{4}", 4),
    "m": (r"\d{2}", 2),
    "d": (r"\d{2}", 2),
    "H": (r"\d{2}", 2),
    "j": (r"\d{3}", 3),
}
"""What may stand behind a percent sign: of fixed width, so that no partition's prefix begins another's."""

_STEPS: Final = {"Y": timedelta(366), "m": timedelta(31), "d": timedelta(1), "H": timedelta(hours=1)}
"""From the beginning of a partition into the next one."""

_GRAINS: Final = (
    frozenset("Y"),
    frozenset("Ym"),
    frozenset("Ymd"),
    frozenset("Yj"),
    frozenset("YmdH"),
    frozenset("YjH"),
)
_BRACES: Final = re.compile(r"\{([^{}]*%[^{}]*)\}")
_BARE: Final = re.compile(r"%([YmdHj])(?![A-Za-z0-9])")
_DIRECTIVE: Final = re.compile(r"%(.?)", re.DOTALL)

AHEAD: Final = timedelta(days=1)
"""How far ahead of its time a partition may be without being a stray: clocks and time zones differ."""


@dataclass(frozen=True)
class PrefixTemplate:
    """
    A prefix whose parts in braces are dates in the manner of ``strftime``, in UTC: ``events/{%Y/%m/%d}/``.

    Braces without a percent sign are plain text. Known are ``%Y %m %d %H %j``.

    :param text: The prefix.
    """

    text: str

    @property
    def is_dated(self) -> bool:
        """Whether there is a date in it."""
        return _BRACES.search(self.text) is not None

    @property
    def head(self) -> str:
        """The plain text that all partitions begin with."""
        found = _BRACES.search(self.text)
        return self.text if found is None else self.text[: found.start()]

    def problem(self) -> str | None:
        """Say what is wrong with the dates in it, if anything is."""
        unknown = sorted({name for name in self._names if name not in _FIELDS})
        if unknown:
            return f"%{unknown[0]} is not known; use %Y, %m, %d, %H and %j"
        if self.is_dated and frozenset(self._names) not in _GRAINS:
            return (
                "its parts make no date; use %Y, %Y and %m, %Y %m %d, or %Y and %j, the last two also with %H"
            )
        if self._has_bare_date:
            return "dates stand in braces, as in 'events/{%Y/%m/%d}/'; what is not in braces is plain text"
        return None

    def partitions(self, first: datetime, last: datetime, limit: int) -> list[str] | None:
        """
        Give the prefixes of the partitions that hold any time of a span, in key order.

        :param first: Where the span begins, inclusive; aware.
        :param last: Where it ends, inclusive; aware.
        :param limit: The most there may be.
        :return: ``None`` if there are more.
        """
        found: set[str] = set()
        moment: datetime | None = self._floor(first)
        while moment is not None and moment <= last:
            if len(found) == limit:
                return None
            found.add(self._expand(moment))
            moment = self._next(moment)
        return sorted(found)

    def partition(self, key: str) -> datetime | None:
        """Give the beginning of the partition that a key is in; aware. ``None``: the key is in none."""
        match = self._pattern.match(key)
        if match is None:
            return None
        part = {name: int(text) for name, text in match.groupdict().items()}
        try:
            moment = datetime(part["Y"], part.get("m", 1), part.get("d", 1), part.get("H", 0), tzinfo=UTC)
            if "j" in part:
                day = moment + timedelta(days=part["j"] - 1)
                return day if day.year == moment.year else None
        except (ValueError, OverflowError):
            return None
        return moment

    def is_stray(self, key: str, modified: datetime, lookback: timedelta) -> bool:
        """
        Tell whether a change is outside the partitions that polls list around its time.

        :param key: In one of the partitions.
        :param modified: The time of the change; aware.
        :param lookback: How far back partitions are listed from the low watermark.
        """
        partition = self.partition(key)
        if partition is None:
            return True
        return partition < self.earliest(modified, lookback) or partition - modified > AHEAD

    def earliest(self, moment: datetime, lookback: timedelta) -> datetime:
        """Give the beginning of the first partition that polls list for changes at or after a moment."""
        try:
            return self._floor(moment - lookback)
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)

    # -- How it is made -------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> list[str]:
        return [name for part in _BRACES.findall(self.text) for name in _DIRECTIVE.findall(part)]

    @property
    def _has_bare_date(self) -> bool:
        """Whether a date stands outside of braces, or in some that are not closed: it would match nothing."""
        bare = set(_BARE.findall(_BRACES.sub("", self.text)))
        return bool(bare) if self.is_dated else "Y" in bare and not bare.isdisjoint("mj")

    @cached_property
    def _grain(self) -> str:
        """The finest unit: ``H``, ``d``, ``m`` or ``Y``."""
        names = "d" if "j" in self._names else ""
        return next(unit for unit in "HdmY" if unit in {*self._names, *names})

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        known: set[str] = set()

        def directive(match: re.Match[str]) -> str:
            name = match[1]
            if name in known:
                return f"(?P={name})"
            known.add(name)
            return f"(?P<{name}>{_FIELDS[name][0]})"

        # Every other part of the split is what stands between braces.
        pieces = _BRACES.split(self.text)
        dated = (_DIRECTIVE.sub(directive, re.escape(piece)) for piece in pieces[1::2])
        regex = "".join(
            part for pair in zip(map(re.escape, pieces[::2]), [*dated, ""], strict=True) for part in pair
        )
        return re.compile(regex, re.ASCII | re.DOTALL)

    def _expand(self, moment: datetime) -> str:
        values = {
            "Y": moment.year,
            "m": moment.month,
            "d": moment.day,
            "H": moment.hour,
            "j": moment.timetuple().tm_yday,
        }

        def directive(match: re.Match[str]) -> str:
            return f"{values[match[1]]:0{_FIELDS[match[1]][1]}}"

        return _BRACES.sub(lambda match: _DIRECTIVE.sub(directive, match[1]), self.text)

    def _floor(self, moment: datetime) -> datetime:
        moment = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        match self._grain:
            case "Y":
                return moment.replace(month=1, day=1, hour=0)
            case "m":
                return moment.replace(day=1, hour=0)
            case "d":
                return moment.replace(hour=0)
        return moment

    def _next(self, moment: datetime) -> datetime | None:
        """Give the beginning of the next partition; ``None`` after the last year that there is."""
        try:
            return self._floor(moment + _STEPS[self._grain])
        except OverflowError:
            return None
