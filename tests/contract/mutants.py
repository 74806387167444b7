"""
Watchers and stores that are broken, each in one way.

Not collected by itself: ``test_mutants.py`` runs it, and compares what fails with what each mutant declares.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import field, replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from airflow.providers.watermark.change import HighWatermark, Page
from airflow.providers.watermark.delivery import AckModeProducer
from airflow.providers.watermark.exceptions import SourceError, StoreError
from airflow.providers.watermark.position import Position, floor_timestamp
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.testing import WatcherContract
from airflow.providers.watermark.testing.doubles import STEP, ListSource, ListTrigger, WatchedList
from airflow.providers.watermark.testing.store import StoreBackend, StoreContract
from airflow.providers.watermark.watermark import Sweep

Pages = AsyncGenerator[Page, None]
_COUNTER = itertools.count()


# --- Watchers that read wrongly -----------------------------------------------------------------------------


class TakesOnlyWhatIsNewerThanTheNewest(ListTrigger):
    """``WHERE stamp > (the newest stamp delivered)``: the classic."""

    async def read_changes(self, sweep: Sweep) -> Pages:
        newest = max(sweep._seen.values(), default=None)
        async for page in super().read_changes(sweep):
            changes = [change for change in page.changes if newest is None or change.position > newest]
            yield Page(changes=changes, cursor=page.changes[-1].cursor)


class ReadsBeforeItTakesTheBound(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        after, self._entries = "", []
        while entries := await ListSource.named(self.list_name).page(after):
            self._entries += entries
            after = entries[-1][0]
        return await super().get_high_watermark()

    async def read_changes(self, sweep: Sweep) -> Pages:
        after = sweep.cursor if isinstance(sweep.cursor, str) else ""
        async for page in super().read_changes(sweep):
            known = [change for change in page.changes if change.identity in dict(self._entries)]
            yield Page(changes=[change for change in known if change.identity > after], cursor=page.cursor)


class LimitsBeforeItDrops(ListTrigger):
    """``LIMIT n``, of which nothing may be news."""

    async def read_changes(self, sweep: Sweep) -> Pages:
        left = self.max_entries_per_event
        async for page in super().read_changes(sweep):
            yield Page(changes=page.changes[:left])
            left -= len(page.changes)
            if left <= 0:
                return


class ReadsBackwards(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        pages = [page async for page in super().read_changes(sweep)]
        for page in reversed(pages):
            yield Page(changes=page.changes[::-1])


class IgnoresTheCursor(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        cursor, sweep.cursor = sweep.cursor, None
        del cursor
        async for page in super().read_changes(sweep):
            yield page


class TellsItsCursorTooEarly(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        async for page in super().read_changes(sweep):
            for change in page.changes:
                yield Page(changes=[replace(change, place="~")], cursor="~")


class GivesAnotherIdEachTime(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        async for page in super().read_changes(sweep):
            yield Page(changes=[replace(change, version=str(next(_COUNTER))) for change in page.changes])


class ForgetsWhatItHasSeen(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        sweep._seen.clear()
        async for page in super().read_changes(sweep):
            yield page


# --- Watchers that are wrong about the bound ----------------------------------------------------------------


class LeavesNoMargin(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        bounds = await super().get_high_watermark()
        assert bounds.due is not None
        return replace(bounds, bound=bounds.due - STEP)


class ForgetsWhatIsUnderWay(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        return replace(await super().get_high_watermark(), late={})


class DeliversWhatIsNotDue(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        return replace(await super().get_high_watermark(), due=None, future=None)


class StartsBehindTheInstant(ListTrigger):
    def start_position(self, start: str) -> Position:
        return floor_timestamp(super().start_position(start), STEP) + timedelta(seconds=1)


# --- Watchers that fail wrongly -----------------------------------------------------------------------------


class TakesAnErrorForAnEmptyList(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        now = ListSource.named(self.list_name).clock
        return HighWatermark.from_clock(now, late_arrival=self.late_arrival, step=STEP)

    async def read_changes(self, sweep: Sweep) -> Pages:
        try:
            async for page in super().read_changes(sweep):
                yield page
        except SourceError:
            return


class EndsOnAnError(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        try:
            return await super().get_high_watermark()
        except SourceError as error:
            raise asyncio.CancelledError from error


class TellsTheSameErrorInOtherWords(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        try:
            return await super().get_high_watermark()
        except SourceError as error:
            msg = f"{error}, request {next(_COUNTER)}"
            raise SourceError(msg) from error


class LeavesATaskBehind(ListTrigger):
    async def open(self) -> None:
        self._task = asyncio.create_task(asyncio.sleep(20))


# --- Watchers that commit wrongly ---------------------------------------------------------------------------


class CommitsWhatIsNotAcknowledged(ListTrigger):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)
        committer = producer._committer
        admit = committer.admit

        async def admit_as_acknowledged(emission: Any) -> None:
            emission.acknowledged = -100
            await admit(emission)

        vars(committer)["admit"] = admit_as_acknowledged
        return producer


class CommitsWithoutDelay(ListTrigger):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)

        def acknowledge(emission: Any) -> None:
            emission.acknowledged = -100

        vars(producer._committer)["acknowledge"] = acknowledge
        return producer


class TakesAFailureForAnAcknowledgement(ListTrigger):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)
        vars(producer._committer)["fail"] = producer._committer.acknowledge
        return producer


class SavesWhenItIsStopped(ListTrigger):
    async def close(self) -> None:
        if self._committer is not None and self._committer.head is not None:
            await self._committer._save(self._committer.head)


# --- Watchers that are configured wrongly -------------------------------------------------------------------


class RaisesInItsConstructor(ListTrigger):
    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.list_name, str):
            msg = "list_name must be a string"
            raise ValueError(msg)


class IsStoredDifferentlyEachTime(ListTrigger):
    token: int = field(default_factory=lambda: next(_COUNTER))


class HasAnArgumentThatIsNoScalar(ListTrigger):
    pause: tuple[int, ...] = (1, 2)


class AcceptsAnything(ListTrigger):
    def problems(self) -> Iterator[str]:
        yield from ()


class IgnoresTheCountLimit(ListTrigger):
    @property
    def max_changes_per_event(self) -> int:
        return 500


class IgnoresTheByteLimit(ListTrigger):
    async def open(self) -> None:
        self.max_event_bytes = 10**9


class TakesAllListsForOne(ListTrigger):
    source_fields: ClassVar[tuple[str, ...]] = ()


class TakesTuningForTheSource(ListTrigger):
    source_fields: ClassVar[tuple[str, ...]] = ("list_name", "poll_interval")


# --- A store without a fault, and stores with one -----------------------------------------------------------


class TextStore(BaseWatermarkStore):
    """Keeps texts in a dictionary that others can reach, and that can fail."""

    compare_and_set: ClassVar[bool] = True

    def __init__(self, texts: dict[Any, Any]) -> None:
        self.texts = texts

    def name(self, key: WatermarkKey) -> Any:
        return key

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        await asyncio.sleep(0)
        return self.read(key)

    def read(self, key: WatermarkKey) -> dict[str, Any] | None:
        self.check(key)
        text = self.texts.get(self.name(key))
        return None if text is None else self.decode(key, text)

    def check(self, key: WatermarkKey) -> None:
        if "broken" in self.texts:
            msg = f"the texts of {key} cannot be reached"
            raise StoreError(msg)

    def decode(self, key: WatermarkKey, text: str) -> dict[str, Any] | None:
        try:
            value = json.loads(text)
        except ValueError as error:
            msg = f"the text of {key} is no JSON"
            raise StoreError(msg) from error
        if not isinstance(value, dict):
            msg = f"the text of {key} is no JSON object"
            raise StoreError(msg)
        return value

    def encode(self, value: dict[str, Any]) -> Any:
        return json.dumps(value, allow_nan=False)

    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        text = self.encode(value)
        await asyncio.sleep(0)
        self.compare(key, self.read(key), expected)
        self.texts[self.name(key)] = text


class DoesNotCompare(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        await super().save(key, value, expected=(self.read(key) or {}).get("revision"))


class ComparesTooEarly(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        self.compare(key, self.read(key), expected)
        await asyncio.sleep(0)
        self.texts[self.name(key)] = self.encode(value)


class TakesAFailureForAbsence(TextStore):
    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        try:
            return await super().load(key)
        except StoreError:
            return None


class TakesDamageForAbsence(TextStore):
    def decode(self, key: WatermarkKey, text: str) -> dict[str, Any] | None:
        try:
            return super().decode(key, text)
        except StoreError:
            return None


class TakesAbsenceForAConflict(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        self.compare(key, self.read(key) or {"revision": None}, expected)
        await super().save(key, value, expected=expected)


class StoresTheVeryObject(TextStore):
    def encode(self, value: dict[str, Any]) -> Any:
        super().encode(value)
        return value

    def decode(self, key: WatermarkKey, text: Any) -> dict[str, Any] | None:
        return text if isinstance(text, dict) else super().decode(key, text)


class JoinsItsKeys(TextStore):
    def name(self, key: WatermarkKey) -> Any:
        return ":".join(key)


class CutsItsKeys(TextStore):
    def name(self, key: WatermarkKey) -> Any:
        return tuple(part[:250] for part in key)


class IsLaxAboutJson(TextStore):
    def encode(self, value: dict[str, Any]) -> Any:
        return json.dumps(value, default=str)


class DeletesBeforeItWrites(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        text = self.encode(value)
        self.compare(key, self.read(key), expected)
        self.texts.pop(self.name(key), None)
        await asyncio.sleep(0)
        self.texts[self.name(key)] = text


class GoesOnWhenItIsInterrupted(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        async def write() -> None:
            text = self.encode(value)
            self.compare(key, self.read(key), expected)
            await asyncio.sleep(0.004 * (1 - value["revision"] % 2))
            self.texts[self.name(key)] = text

        await asyncio.shield(asyncio.create_task(write()))


class Texts(StoreBackend):
    def __init__(self, store_class: type[TextStore]) -> None:
        self.store_class = store_class
        self.texts: dict[Any, Any] = {}

    def make_store(self) -> TextStore:
        return self.store_class(self.texts)

    async def break_down(self) -> None:
        self.texts["broken"] = ""

    async def mend(self) -> None:
        del self.texts["broken"]

    async def plant(self, key: WatermarkKey, text: str) -> None:
        self.texts[self.make_store().name(key)] = text


# --- Their contracts ----------------------------------------------------------------------------------------


def _watcher_contract(trigger: type[ListTrigger]) -> type:
    @pytest.fixture
    def source(self: Any) -> WatchedList:
        watched = WatchedList()
        vars(watched)["trigger_class"] = trigger
        return watched

    return type(f"Test{trigger.__name__}", (WatcherContract,), {"source": source})


def _store_contract(store_class: type[TextStore]) -> type:
    @pytest.fixture
    def backend(self: Any) -> Texts:
        return Texts(store_class)

    return type(f"Test{store_class.__name__}", (StoreContract,), {"backend": backend})


WATCHERS = [mutant for mutant in ListTrigger.__subclasses__() if mutant.__module__ == __name__]
STORES = [TextStore, *TextStore.__subclasses__()]
for _watcher in WATCHERS:
    globals()[f"Test{_watcher.__name__}"] = _watcher_contract(_watcher)
for _store in STORES:
    globals()[f"Test{_store.__name__}"] = _store_contract(_store)
