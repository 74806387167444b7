"""watch(), and a watermark read and set by hand."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark import asset_watermark, watch
from airflow.providers.watermark.asset_watermark import AssetWatermark
from airflow.providers.watermark.exceptions import (
    ConfigurationError,
    InvalidArgumentError,
    PositionTypeError,
    StateError,
    StoreError,
    WatermarkConflictError,
)
from airflow.providers.watermark.position import BEGINNING, encode_position
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.providers.watermark.watermark import Pending, WatermarkState
from airflow.sdk import Asset, AssetWatcher

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def trigger(**arguments):
    return S3PrefixTrigger(**{"bucket_name": "lake", "prefix": "orders/", **arguments})


# --- watch() ------------------------------------------------------------------------------------------------


def test_a_watched_asset_is_a_plain_asset_with_one_plain_watcher():
    orders = watch("orders", trigger())
    assert type(orders) is Asset
    assert (orders.name, orders.uri, orders.group) == ("orders", "orders", "asset")
    assert orders.extra == {"source": "s3://lake/orders/"}
    (watcher,) = orders.watchers
    assert type(watcher) is AssetWatcher
    assert watcher.name == "orders"
    assert watcher.trigger.asset_name == "orders"


def test_everything_of_an_asset_can_be_given():
    orders = watch(
        "orders",
        trigger(),
        uri="s3://lake/orders",
        group="sales",
        extra={"owner": "me"},
        watcher_name="new orders",
    )
    assert (orders.uri, orders.group, orders.watchers[0].name) == ("s3://lake/orders", "sales", "new orders")
    assert orders.extra == {"owner": "me", "source": "s3://lake/orders/"}


def test_the_trigger_is_copied_and_may_be_used_for_several_assets():
    one = trigger(exclude=["*.tmp"])
    orders, copies = watch("orders", one), watch("copies", one)
    assert one.asset_name == ""
    triggers = [asset.watchers[0].trigger for asset in (orders, copies)]
    assert [each.asset_name for each in triggers] == ["orders", "copies"]
    assert all(each.exclude == ["*.tmp"] and each is not one for each in triggers)
    assert triggers[0].key != triggers[1].key


def test_a_trigger_that_names_the_asset_already_is_fine():
    assert watch("orders", trigger(asset_name="orders")).name == "orders"


def test_two_watchers_on_one_prefix_have_two_uris():
    assert watch("a", trigger()).uri != watch("b", trigger()).uri


def test_the_extra_given_is_not_changed():
    extra = {"owner": "me"}
    watch("orders", trigger(), extra=extra)
    assert extra == {"owner": "me"}


def test_a_subclass_of_a_trigger_stays_one():
    class Mine(S3PrefixTrigger):
        more: int = 1

    found = watch("orders", Mine(bucket_name="lake", more=2)).watchers[0].trigger
    assert (type(found), found.more) == (Mine, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trigger": "s3://lake"}, "trigger='s3://lake': must be a watermark trigger"),
        ({"trigger": None}, "trigger=None: must be a watermark trigger"),
        ({"trigger": S3PrefixTrigger}, "must be a watermark trigger"),
        (
            {"trigger": trigger(asset_name="other")},
            "asset_name='other': must be left out, or be the asset's name",
        ),
        ({"trigger": trigger(bucket_name="")}, "bucket_name=''"),
        (
            {"trigger": trigger(poll_intervall=1)},
            "poll_intervall: unknown option; did you mean 'poll_interval'?",
        ),
        ({"extra": {"source": "mine"}}, "extra['source']='mine': is set to the trigger's source"),
    ],
)
def test_a_mistake_is_told_where_it_was_made(arguments, message):
    with pytest.raises(InvalidArgumentError) as caught:
        watch("orders", **{"trigger": trigger(), **arguments})
    assert message in str(caught.value)


def test_the_source_in_the_extra_may_be_what_it_is_set_to():
    assert (
        watch("orders", trigger(), extra={"source": "s3://lake/orders/"}).extra["source"]
        == "s3://lake/orders/"
    )


@pytest.mark.parametrize("name", ["", 5, None, "x" * 2000])
def test_a_name_that_is_no_name_of_an_asset_is_refused(name):
    with pytest.raises((ValueError, TypeError)):
        watch(name, trigger())


def test_a_watched_asset_can_schedule_a_dag():
    from airflow.sdk import DAG

    with DAG("load_orders", schedule=watch("orders", trigger())) as dag:
        pass
    assert dag.timetable.asset_condition.name == "orders"


# --- a watermark by hand ------------------------------------------------------------------------------------

KEY = WatermarkKey("orders", "s3", "k")
WATERMARK = AssetWatermark(*KEY)
STATE = WatermarkState(
    source={"watcher": "s3"},
    low=NOON,
    high=NOON + timedelta(minutes=5),
    cursor="orders/3",
    seen={"AAAAAAAAAAE": NOON + timedelta(minutes=6)},
    pending={"AAAAAAAAAAI": Pending(NOON)},
    epoch=3,
    revision=7,
)


async def stored(state=STATE):
    store = MemoryStore()
    await store.save(KEY, state.to_wire(), expected=None)
    return store


def test_a_watermark_is_found_from_its_asset():
    orders = watch("orders", trigger())
    watermark = AssetWatermark.of(orders)
    assert (watermark.asset_name, watermark.namespace, watermark.key) == tuple(orders.watchers[0].trigger.key)


def test_a_watermark_is_found_from_an_asset_with_a_watcher_by_hand():
    one = trigger(asset_name="orders", watermark_key="k")
    assert AssetWatermark.of(Asset("orders", watchers=[AssetWatcher(name="w", trigger=one)])) == WATERMARK


def test_an_asset_without_our_watchers_has_no_watermark():
    with pytest.raises(ConfigurationError, match="asset 'plain' has 0 watermark watchers"):
        AssetWatermark.of(Asset("plain"))


def test_an_asset_with_two_watermarks_has_not_one():
    triggers = [trigger(asset_name="orders", watermark_key=key) for key in "ab"]
    watchers = [AssetWatcher(name=str(number), trigger=one) for number, one in enumerate(triggers)]
    with pytest.raises(ConfigurationError, match="has 2 watermark watchers; name the watermark's key"):
        AssetWatermark.of(Asset("orders", watchers=watchers))


async def test_the_value_is_the_low_watermark_typed():
    assert await WATERMARK.aget_value(await stored()) == NOON
    assert await WATERMARK.aget_value(await stored(replace(STATE, low=BEGINNING))) is BEGINNING


async def test_without_a_stored_watermark_the_value_is_none():
    assert await WATERMARK.aget_value(MemoryStore()) is None


async def test_setting_the_value_is_a_rewind():
    store = await stored()
    await WATERMARK.aset_value(NOON - timedelta(days=1), store)
    state = WatermarkState.from_wire(await store.load(KEY))
    assert (state.low, state.epoch, state.revision) == (NOON - timedelta(days=1), 4, 8)
    assert (state.high, state.cursor, dict(state.seen)) == (None, None, {})
    assert state.source == STATE.source


async def test_a_rewind_to_the_beginning_delivers_everything_again():
    store = await stored()
    await WATERMARK.aset_value(BEGINNING, store)
    assert await WATERMARK.aget_value(store) is BEGINNING


async def test_there_is_nothing_to_rewind_without_a_watermark():
    with pytest.raises(StateError, match=r"no watermark orders/s3/k is stored"):
        await WATERMARK.aset_value(NOON, MemoryStore())


@pytest.mark.parametrize("value", [5, "2026-03-01T12:00:00Z", datetime(2026, 3, 1), None], ids=repr)  # noqa: DTZ001
async def test_a_value_of_another_type_is_refused_and_nothing_is_written(value):
    store = await stored()
    with pytest.raises(PositionTypeError):
        await WATERMARK.aset_value(value, store)
    assert WatermarkState.from_wire(await store.load(KEY)) == STATE


async def test_a_damaged_watermark_is_an_error():
    store = MemoryStore()
    await store.save(KEY, {"version": 1}, expected=None)
    for work in (WATERMARK.aget_value(store), WATERMARK.aset_value(NOON, store)):
        with pytest.raises(StateError):
            await work


class Busy(MemoryStore):
    """A watcher commits in between, so often."""

    commits = 0

    async def save(self, key, value, *, expected):
        if self.commits:
            self.commits -= 1
            state = WatermarkState.from_wire(self._load(key))
            new = replace(state, revision=state.revision + 1, low=state.low + timedelta(seconds=1))
            await super().save(key, new.to_wire(), expected=self._load(key))
        await super().save(key, value, expected=expected)


async def test_a_rewind_gets_in_between_the_commits_of_a_running_watcher():
    store = Busy()
    await store.save(KEY, STATE.to_wire(), expected=None)
    store.commits = 3
    await WATERMARK.aset_value(NOON - timedelta(days=1), store)
    state = WatermarkState.from_wire(await store.load(KEY))
    assert (state.low, state.revision, state.epoch) == (NOON - timedelta(days=1), 11, 4)


async def test_a_rewind_gives_up_after_a_while_and_says_so():
    store = Busy()
    await store.save(KEY, STATE.to_wire(), expected=None)
    store.commits = 100
    with pytest.raises(WatermarkConflictError):
        await WATERMARK.aset_value(NOON - timedelta(days=1), store)


class Gap(MemoryStore):
    """Without compare-and-set: after each save, as long as there are any, the last of ``others`` writes."""

    compare_and_set = False
    others = ()

    async def save(self, key, value, *, expected):
        await super().save(key, value, expected=expected)
        if self.others:
            theirs = self.others.pop()(expected, value)
            await super().delete(key, expected=value)
            if theirs is not None:
                await super().save(key, theirs, expected=None)


@pytest.fixture
async def gap(monkeypatch):
    monkeypatch.setattr(asset_watermark, "SETTLE_SECONDS", 0.01)
    store = Gap()
    await store.save(KEY, STATE.to_wire(), expected=None)
    return store


def overwrite(saves):
    """Write what a watcher has that had read before a rewind."""
    return lambda expected, _: {**expected, "revision": expected["revision"] + saves}


@pytest.mark.parametrize("saves", [1, 3])
async def test_a_rewind_that_a_watcher_overwrites_is_done_again(gap, saves):
    gap.others = [overwrite(saves)] * 2
    await WATERMARK.aset_value(NOON - timedelta(days=1), gap)
    state = WatermarkState.from_wire(await gap.load(KEY))
    assert (state.low, state.epoch) == (NOON - timedelta(days=1), 4)


async def test_a_rewind_that_never_lasts_is_an_error_that_says_so(gap):
    gap.others = [overwrite(1)] * 1000
    with pytest.raises(WatermarkConflictError, match="orders/s3/k was overwritten by another writer"):
        await WATERMARK.aset_value(NOON - timedelta(days=1), gap)


async def test_a_rewind_that_its_watcher_has_gone_on_from_has_lasted(gap):
    """It adopts it, and saves at once: that is no other epoch."""
    gap.others = [lambda _, value: {**value, "revision": value["revision"] + 5}]
    await WATERMARK.aset_value(NOON - timedelta(days=1), gap)
    state = WatermarkState.from_wire(await gap.load(KEY))
    assert (state.low, state.epoch) == (NOON - timedelta(days=1), 4)
    assert state.revision == STATE.revision + 6


async def test_a_rewind_at_the_same_moment_as_another_is_done_in_an_epoch_of_its_own(gap):
    gap.others = [lambda _, value: {**value, "low": encode_position(NOON - timedelta(days=9))}]
    await WATERMARK.aset_value(NOON - timedelta(days=1), gap)
    state = WatermarkState.from_wire(await gap.load(KEY))
    assert (state.low, state.epoch) == (NOON - timedelta(days=1), 5)


async def test_a_rewind_that_was_undone_by_a_deletion_is_an_error(gap):
    gap.others = [lambda *_: None]
    with pytest.raises(StateError, match="no watermark orders/s3/k is stored"):
        await WATERMARK.aset_value(NOON - timedelta(days=1), gap)


async def test_where_a_loop_runs_nothing_is_left_behind(recwarn, monkeypatch):
    store = await stored()
    monkeypatch.setattr("airflow.providers.watermark.asset_watermark.configured_store", lambda path: store)
    for use in (WATERMARK.get_value, lambda: WATERMARK.set_value(NOON)):
        with pytest.raises(RuntimeError, match="running event loop"):
            use()
    gc.collect()
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


async def test_a_store_that_is_down_is_an_error():
    class Down(MemoryStore):
        async def load(self, key):
            raise StoreError("down")

    for work in (WATERMARK.aget_value(Down()), WATERMARK.aset_value(NOON, Down())):
        with pytest.raises(StoreError):
            await work


def test_in_synchronous_code_the_configured_store_is_used(monkeypatch):
    store = asyncio.run(stored())
    monkeypatch.setattr("airflow.providers.watermark.asset_watermark.configured_store", lambda path: store)
    assert WATERMARK.get_value() == NOON
    WATERMARK.set_value(NOON - timedelta(days=1))
    assert WATERMARK.get_value() == NOON - timedelta(days=1)


async def test_a_trigger_persists_its_watermark(monkeypatch):
    store = await stored()
    monkeypatch.setattr("airflow.providers.watermark.triggers.base.configured_store", lambda path: store)
    await trigger(asset_name="orders", watermark_key="k").persist_watermark(NOON + timedelta(days=1))
    assert await WATERMARK.aget_value(store) == NOON + timedelta(days=1)


def test_a_name_that_is_not_ascii_gets_an_ascii_uri():
    asset = watch("été", S3PrefixTrigger(bucket_name="lake"))
    assert asset.name == "été"
    assert asset.uri.isascii()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"extra": {"a": object()}}, "extra="),
        ({"extra": [1]}, "extra="),
        ({"extra": {"a": float("nan")}}, "extra="),
        ({"uri": 5}, "uri=5"),
        ({"uri": ""}, "uri=''"),
        ({"watcher_name": ""}, "watcher_name=''"),
        ({"group": 7}, "group=7"),
    ],
)
def test_an_option_that_airflow_cannot_store_is_refused_by_name(options, named):
    with pytest.raises(InvalidArgumentError, match=named):
        watch("orders", S3PrefixTrigger(bucket_name="lake"), **options)
