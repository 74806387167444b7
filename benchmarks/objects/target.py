"""What is measured: a client of an object store, and what it has to find."""

from __future__ import annotations

import asyncio
import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

ACCESS_KEY = SECRET_KEY = "test"
REGION = "us-east-1"


class NotAvailableError(Exception):
    """A client that cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    A prefix of a bucket.

    :param endpoint: The server's address.
    :param bucket: The bucket.
    :param prefix: What its keys begin with.
    :param small_prefix: A prefix within it with few objects, for a client's first steps.
    :param since: Objects written after it are new; ``None``: all are.
    :param objects: How many objects there are.
    :param news: How many of them are new.
    """

    endpoint: str
    bucket: str
    prefix: str
    small_prefix: str
    since: datetime | None
    objects: int
    news: int

    def to_wire(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {**dataclasses.asdict(self), "since": self.since and self.since.isoformat()}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """Read the JSON form."""
        return cls(**{**wire, "since": wire["since"] and datetime.fromisoformat(wire["since"])})

    @property
    def cut(self) -> datetime:
        """The time after which an object is new, if all are a very early one."""
        return self.since or datetime(1970, 1, 1, tzinfo=UTC)


class Client:
    """
    A way to find what is new under a prefix, as the author of a trigger would use it.

    :param target: Where.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    """The distributions whose versions matter."""

    tells_news: ClassVar[bool] = True
    """Whether it can tell what is new."""

    def __init__(self, target: Target) -> None:
        self.target = target

    async def open(self) -> None:
        """Connect, if that is not what is measured."""

    @abstractmethod
    async def sweep(self) -> int:
        """
        List the prefix once; measured.

        :return: How many new objects were found.
        """

    async def warm_up(self) -> None:
        """Take the first steps, which cost more than later ones; not measured."""
        whole, self.target = self.target, dataclasses.replace(self.target, prefix=self.target.small_prefix)
        await self.sweep()
        self.target = whole

    async def close(self) -> None:
        """Disconnect."""


class BlockingClient(Client):
    """A client without ``async``: a trigger has to run it in a thread."""

    async def sweep(self) -> int:
        """List in a thread."""
        return await asyncio.to_thread(self.find)

    @abstractmethod
    def find(self) -> int:
        """List the prefix once; see :meth:`sweep`."""


def row(key: str, size: int, version: str, modified: datetime) -> dict[str, Any]:
    """Give what an event tells of an object: every client that can has to make it for each new one."""
    return {"key": key, "size": size, "etag": version.strip('"'), "last_modified": modified.isoformat()}
