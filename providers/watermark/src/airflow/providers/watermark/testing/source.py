"""What the contract suite needs of a source: to change it by its own means, past the watcher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from airflow.providers.watermark.position import Position
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

__all__ = ["CAPABILITIES", "WatchedSource"]

CAPABILITIES: Final[Mapping[str, str]] = {
    "accesses": "something can happen between two accesses of one sweep (between_accesses)",
    "clock": "positions are timestamps, and the source tells its time (now)",
    "errors": "the source can be made to fail, and mended (break_down, mend)",
    "late": "the source knows of things begun and not finished, which appear as of their beginning (begin)",
    "overwrites": "a thing can be put again in another version",
    "stamps": "a thing can be put with an earlier or a later position than the source's present one",
    "turns": "time can be moved at will (advance costs no time)",
}
"""What a source may be able to do. What yours cannot is to be declared, with the reason."""


class WatchedSource(ABC):
    """
    A source under test, with a watcher to match.

    Implement the abstract methods, and those others for which the source has the capability; name the
    capabilities that it has not in :attr:`lacks`. Nothing here may use the watcher's own code.
    """

    lacks: ClassVar[Mapping[str, str]] = {}
    """Capabilities that the source has not, each with the reason; their tests are skipped, and say so."""

    step: ClassVar[float] = 1.0
    """Seconds between two neighbouring positions; one that is a step old can no longer change."""

    @property
    def grain(self) -> float:
        """Seconds by which the settled bound may be rounded down: ``step``, unless positions are coarser."""
        return self.step

    late_arrival: ClassVar[float] = 60.0
    """Seconds of ``late_arrival`` for the tests; keep it short where ``advance`` has to wait."""

    count_limit: ClassVar[str]
    """The name of the trigger's argument that limits the changes in one event."""

    @property
    def secrets(self) -> Sequence[str]:
        """What must never be told: the passwords and keys that the watcher connects with, if any."""
        return ()

    @abstractmethod
    def make_trigger(self, **arguments: Any) -> BaseWatermarkTrigger:
        """Make a trigger that watches this source, with some arguments set."""

    @abstractmethod
    def make_stranger(self, **arguments: Any) -> BaseWatermarkTrigger:
        """Make a trigger of the same class that watches something else, which is there."""

    @abstractmethod
    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        """
        Put things, all at one position.

        :param names: Their names: ASCII letters, digits and hyphens.
        :param ago: Seconds by which the position lies before the present one. Other than 0 only with the
            capability ``stamps``.
        :param version: Another version is another content. Putting a name again needs ``overwrites``.
        """

    @abstractmethod
    def name_of(self, change: Mapping[str, Any]) -> str:
        """
        Tell the name under which a delivered thing was put.

        :param change: An entry of a payload's ``changes``.
        """

    def between(self, low: Position | None, high: Position) -> list[str]:
        """
        Tell what is in a window now: each name with ``low < position <= high``, in any order.

        Needed for watchers that deliver windows.

        :param low: Exclusive; ``None``: from the first position on.
        :param high: Inclusive.
        """
        raise NotImplementedError

    @abstractmethod
    async def advance(self, seconds: float) -> None:
        """Let the source's time go on; without the capability ``turns``, by waiting."""

    async def settle(self) -> None:
        """Let the source's time go on until nothing more can appear at the positions of what was put."""
        await self.advance(self.late_arrival + 2 * self.step)

    def now(self) -> datetime:
        """Tell the source's time: aware, as precise as ``step``. Capability ``clock``."""
        raise NotImplementedError

    async def begin(self, name: str) -> Callable[[], Awaitable[None]]:
        """
        Begin a thing that will appear with the present position. Capability ``late``.

        :return: To be called to finish it.
        """
        raise NotImplementedError

    def between_accesses(self, action: Callable[[], Awaitable[None]]) -> None:
        """
        Have something happen after the watcher's next access to the source, and before the one after.

        Once; the watcher waits meanwhile. Capability ``accesses``.
        """
        raise NotImplementedError

    async def break_down(self) -> None:
        """
        Let each access of the watcher fail from now on, always in the same way. Capability ``errors``.

        The other hooks must go on working meanwhile: tests put things into a source that is broken.
        """
        raise NotImplementedError

    async def mend(self) -> None:
        """Undo :meth:`break_down`."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := cls.lacks.keys() - CAPABILITIES.keys():
            msg = f"{cls.__name__}.lacks names {sorted(unknown)}; there are {sorted(CAPABILITIES)}"
            raise TypeError(msg)
        if unexplained := [name for name, reason in cls.lacks.items() if not reason]:
            msg = f"{cls.__name__}.lacks gives no reason for {unexplained}"
            raise TypeError(msg)
