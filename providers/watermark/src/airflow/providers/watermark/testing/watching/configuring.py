"""What Airflow and the Dag's author do with a trigger, and what a consumer gets of it."""

from __future__ import annotations

import dataclasses
import json
import pkgutil
from types import SimpleNamespace
from typing import Any, Final

import pytest

from airflow.providers.watermark.events import read_changes
from airflow.providers.watermark.exceptions import InvalidArgumentError
from airflow.providers.watermark.testing.contract import SourceContract
from airflow.providers.watermark.testing.harness import Harness, revive
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

__all__ = ["ConfiguringContract", "PayloadContract"]

NONSENSE: Final[tuple[Any, ...]] = (None, "nonsense", "", -1, 0, 1.5, True, [], [None], {"a": 1}, "\ud800")


class ConfiguringContract(SourceContract):
    """Mistakes are found in the Dag file; in the triggerer nothing raises."""

    async def test_what_was_stored_makes_an_equal_trigger(self, source: WatchedSource) -> None:
        trigger = source.make_trigger(**self.arguments(source, count_limit=7, commit_delay=1.5))
        again = revive(trigger)
        assert again.serialize() == trigger.serialize()
        assert {field.name: getattr(again, field.name) for field in dataclasses.fields(again)} == {
            field.name: getattr(trigger, field.name) for field in dataclasses.fields(trigger)
        }
        assert (again.key, again.source) == (trigger.key, trigger.source)

    async def test_the_class_path_leads_to_the_class(self, source: WatchedSource) -> None:
        trigger = source.make_trigger(**self.arguments(source))
        class_path, _ = trigger.serialize()
        assert pkgutil.resolve_name(class_path) is type(trigger)

    async def test_equal_triggers_are_stored_alike(self, source: WatchedSource) -> None:
        stored = [source.make_trigger(**self.arguments(source)).serialize() for _ in range(2)]
        assert stored[0] == stored[1]

    async def test_arguments_are_json_scalars_and_flat_lists_of_them(self, source: WatchedSource) -> None:
        trigger = source.make_trigger(**self.arguments(source))
        for name in (field.name for field in dataclasses.fields(trigger)):
            value = getattr(trigger, name)
            entries = value if type(value) is list else [value]
            assert all(entry is None or type(entry) in {bool, int, float, str} for entry in entries), name

    async def test_an_unknown_argument_is_accepted_and_refused_in_the_dag_file(
        self, source: WatchedSource
    ) -> None:
        trigger = source.make_trigger(**self.arguments(source, pol_interval=5))
        with pytest.raises(InvalidArgumentError, match=r"pol_interval.*poll_interval"):
            trigger.serialize()

    async def test_an_unknown_argument_is_ignored_in_the_triggerer_with_a_warning(
        self, source: WatchedSource
    ) -> None:
        await self.put(source, "a")
        trigger = source.make_trigger(**self.arguments(source, of_a_later_release=5))
        async with self.drive(source, trigger, harness=Unchecked) as watcher:
            assert self.names(source, await watcher.deliver()) == ["a"]
            warnings = [record.getMessage() for record in watcher.records if record.levelname == "WARNING"]
            assert sum("of_a_later_release" in warning for warning in warnings) == 1

    async def test_bad_arguments_raise_neither_in_the_constructor_nor_in_the_triggerer(
        self, source: WatchedSource
    ) -> None:
        arguments = source.make_trigger(**self.arguments(source)).arguments()
        trigger_class = type(source.make_trigger())
        for field in dataclasses.fields(trigger_class):
            for value in NONSENSE:
                trigger = trigger_class(**{**arguments, field.name: value})
                trigger.trigger_id = 1
                trigger.shared_stream_key()
                _, kwargs = trigger.serialize()
                trigger_class.create_shared_stream_producer(kwargs)

    async def test_bad_arguments_do_not_end_the_watch(self, source: WatchedSource) -> None:
        arguments = source.make_trigger(**self.arguments(source)).arguments()
        trigger_class = type(source.make_trigger())
        for field in dataclasses.fields(trigger_class):
            for value in (None, "nonsense", -1, [None]):
                async with Unchecked(trigger_class(**{**arguments, field.name: value})) as watcher:
                    await watcher.sweep()

    async def test_a_bad_argument_is_refused_in_the_dag_file_by_its_name(self, source: WatchedSource) -> None:
        for name in ("asset_name", "delivery", "start_from", "poll_interval", "late_arrival", "max_seen"):
            trigger = source.make_trigger(**self.arguments(source, **{name: -1}))
            with pytest.raises(InvalidArgumentError, match=f"{name}=-1"):
                trigger.serialize()


class PayloadContract(SourceContract):
    """An event says of each change what it is."""

    async def test_payloads_are_strict_json_in_the_published_shape(self, source: WatchedSource) -> None:
        await self.put(source, "a", "b")
        async with self.watch(source) as watcher:
            (event,) = await watcher.deliver()
            payload = event.payload
            json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()
            assert payload.keys() == {"watermark", "count", "changes"}
            assert payload["count"] == len(payload["changes"]) == 2
            assert payload["watermark"].keys() == {
                *("version", "event_id", "epoch", "watcher", "source", "low", "high")
            }
            assert payload["watermark"]["watcher"] == watcher.trigger.watcher_name
            assert payload["watermark"]["source"] == watcher.trigger.source

    async def test_a_consumer_reads_what_was_delivered_each_change_once(self, source: WatchedSource) -> None:
        from airflow.sdk import Asset

        await self.put(source, "a", "b", "c")
        async with self.watch(source, count_limit=2) as watcher:
            events = await watcher.deliver()
        asset = Asset(name="contract")
        stored = [SimpleNamespace(extra={"from_trigger": True, "payload": event.payload}) for event in events]
        changes = read_changes({asset: [*reversed(stored), *stored]}, asset)
        assert sorted(change.id for change in changes) == sorted(self.ids(events))


class Unchecked(Harness):
    """Drives a trigger whose stored arguments another release has written."""

    def _revive(self, written: BaseWatermarkTrigger) -> BaseWatermarkTrigger:
        return type(written)(**written.arguments())
