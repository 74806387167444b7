"""What a harness hands over: an event on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow.providers.watermark.delivery import Emission
from airflow.providers.watermark.position import Position, decode_position

__all__ = ["Delivery"]


@dataclass(slots=True, eq=False)
class Delivery:
    """
    An event that a watcher has yielded.

    :param payload: Its payload, after a round trip through JSON.
    :param emission: What its producer wants to hear of.
    """

    payload: dict[str, Any]
    emission: Emission

    @property
    def ids(self) -> list[str]:
        """The ids of its changes, in their order."""
        return [change["id"] for change in self.payload["changes"]]

    @property
    def event_id(self) -> str:
        """What the event is told by."""
        return str(self.payload["watermark"]["event_id"])

    @property
    def epoch(self) -> int:
        """The watermark's epoch in which it was made."""
        return int(self.payload["watermark"]["epoch"])

    @property
    def low(self) -> Position:
        """The lower bound, exclusive."""
        return decode_position(self.payload["watermark"]["low"])

    @property
    def high(self) -> Position:
        """The upper bound, inclusive."""
        return decode_position(self.payload["watermark"]["high"])
