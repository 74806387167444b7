"""What all contract suites have in common: tests that cannot be replaced, and skips that are declared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import pytest

from airflow.providers.watermark.stores import BaseWatermarkStore
from airflow.providers.watermark.testing.delivered import Delivery
from airflow.providers.watermark.testing.harness import Harness
from airflow.providers.watermark.testing.source import CAPABILITIES, WatchedSource
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

__all__ = ["Contract", "SourceContract", "needs"]

_Test = TypeVar("_Test", bound=Callable[..., Any])


def needs(*capabilities: str) -> Callable[[_Test], _Test]:
    """Mark a test as one for sources with some capabilities only."""
    assert CAPABILITIES.keys() >= set(capabilities), capabilities

    def mark(test: _Test) -> _Test:
        vars(test)["needs"] = capabilities
        return test

    return mark


class Contract:
    """Tests to inherit. A subclass may add tests; it cannot replace one."""

    pytestmark: ClassVar[Any] = pytest.mark.asyncio

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = {name for base in cls.__mro__[1:] for name in vars(base) if name.startswith("test")}
        if replaced := inherited & vars(cls).keys():
            msg = f"{cls.__name__} replaces {sorted(replaced)}: a contract is kept, or it is not"
            raise TypeError(msg)


class SourceContract(Contract):
    """Tests of a watcher and its source."""

    @pytest.fixture
    def source(self) -> Iterator[WatchedSource]:
        """Give a new, empty source; to be overridden."""
        msg = "override the fixture 'source', and give a WatchedSource"
        raise NotImplementedError(msg)

    @pytest.fixture(autouse=True)
    def _capable(self, request: pytest.FixtureRequest, source: WatchedSource) -> None:
        """Skip what the source declares that it cannot do."""
        for capability in getattr(request.function, "needs", ()):
            if reason := source.lacks.get(capability):
                pytest.skip(f"{type(source).__name__} lacks {capability!r}: {reason}")

    def watch(self, source: WatchedSource, **arguments: Any) -> Harness:
        """Drive a watcher of the source, with some arguments set."""
        return self.drive(source, source.make_trigger(**self.arguments(source, **arguments)))

    def drive(
        self,
        source: WatchedSource,  # noqa: ARG002 - of use where things have to settle
        trigger: BaseWatermarkTrigger,
        store: BaseWatermarkStore | None = None,
        harness: type[Harness] = Harness,
    ) -> Harness:
        """Drive a trigger."""
        return harness(trigger, store)

    def arguments(self, source: WatchedSource, **arguments: Any) -> dict[str, Any]:
        """Give the arguments of a watcher under test."""
        if "count_limit" in arguments:
            arguments[source.count_limit] = arguments.pop("count_limit")
        return {
            "asset_name": "contract",
            "delivery": "eager",
            "start_from": "beginning",
            "late_arrival": source.late_arrival,
            **arguments,
        }

    async def soon(self, event: asyncio.Event) -> None:
        """Wait until something has happened; a watcher that never does it fails the test."""
        async with asyncio.timeout(10):
            await event.wait()

    async def put(self, source: WatchedSource, *names: str, version: int = 1) -> None:
        """Put things, and let the step pass in which they can still change."""
        await source.put(*names, version=version)
        await source.advance(source.step)

    def names(self, source: WatchedSource, deliveries: Iterable[Delivery]) -> list[str]:
        """Tell what was delivered, in the order of delivery."""
        return [source.name_of(change) for delivery in deliveries for change in delivery.payload["changes"]]

    def ids(self, deliveries: Iterable[Delivery]) -> list[str]:
        """Tell the ids of what was delivered, in the order of delivery."""
        return [change_id for delivery in deliveries for change_id in delivery.ids]
