"""The S3 watcher against the stub: errors, odd listings, uploads, and keys exactly as they are."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from aiobotocore.session import AioSession

from airflow.providers.amazon.aws.hooks.s3 import S3Hook
from airflow.providers.watermark import __version__
from airflow.providers.watermark.exceptions import ConfigurationError, SourceError, ThrottledError
from airflow.providers.watermark.objects import pace
from airflow.providers.watermark.objects.listing import Interest, KeyRange
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.s3 import parsing
from airflow.providers.watermark.s3.pages import scan_page
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers import watching
from airflow.providers.watermark.triggers.object_store import parse_date
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.providers.watermark.watermark import WatermarkState
from devtools import s3_servers
from devtools.s3_stub import StubS3
from devtools.s3_wire import Reply
from tests.unit.watching_now import WatchingNow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDINARY_CALL = S3PrefixTrigger._call
SECOND = timedelta(seconds=1)


def connection(server, **extra):
    """Give an Airflow connection for a client that tries once, so that an error is seen the first time."""
    wire = json.loads(server.airflow_connection_json())
    wire["extra"]["config_kwargs"] |= {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": 2,
        "read_timeout": 5,
    }
    return json.dumps(wire | extra)


class Clock:
    """The server's clock, turned by hand."""

    def __init__(self):
        self.now = NOON

    def tick(self, seconds):
        self.now += timedelta(seconds=seconds)

    def __call__(self):
        return self.now.timestamp()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stub(monkeypatch, clock):
    with StubS3() as stub:
        stub.clock = clock
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(stub))
        yield stub


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Back off for a hundredth of a second at the most."""
    monkeypatch.setattr(watching, "MAX_BACKOFF", 0.01)
    monkeypatch.setattr(pace, "FIRST_BACKOFF", 0.01)


@pytest.fixture
def said(caplog):
    """What the watcher said at WARNING and above, without its identity."""
    caplog.set_level(logging.WARNING, logger="airflow.providers.watermark.triggers")

    def lines():
        return [
            record.getMessage().partition("] ")[2]
            for record in caplog.records
            if record.name == "airflow.providers.watermark.triggers"
        ]

    return lines


def trigger(**arguments):
    return S3PrefixTrigger(
        **{
            "asset_name": "orders",
            "bucket_name": "lake",
            "aws_conn_id": "lake",
            "start_from": "beginning",
            "poll_interval": 0.01,
            "commit_delay": 0.02,
            **arguments,
        }
    )


class Watching(WatchingNow):
    patience = 10.0

    def __init__(self, store=None, **arguments):
        super().__init__(trigger(**arguments), store)

    async def polls(self, stub, number=2, operation="ListObjectsV2", within=10.0):
        """Wait until the stub has been asked so many times more."""
        before = len(asked(stub, operation))
        async with asyncio.timeout(within):
            while len(asked(stub, operation)) < before + number:  # noqa: ASYNC110 - the stub has its own loop
                await asyncio.sleep(0.005)

    async def state(self):
        wire = await self.store.load(self.trigger.key)
        return None if wire is None else WatermarkState.from_wire(wire)


def asked(stub, operation):
    return [request for request in list(stub.requests) if request.operation == operation]


# --- what is delivered --------------------------------------------------------------------------------------


async def test_an_object_is_delivered_with_its_key_size_etag_and_time(stub):
    etag = stub.put("orders/1.csv", b"12345", NOON - 5 * SECOND)
    async with Watching(prefix="orders/") as watching_:
        await watching_.until("orders/1.csv")
    (change,) = watching_.changes
    assert change == {
        "id": change["id"],
        "key": "orders/1.csv",
        "size": 5,
        "etag": etag,
        "last_modified": "2026-03-01T11:59:55Z",
    }
    assert watching_.events[0]["watermark"]["source"] == "s3://lake/orders/"


async def test_new_and_overwritten_objects_are_delivered_each_once(stub, clock):
    stub.put("a", b"1", NOON - 5 * SECOND)
    async with Watching() as watching_:
        await watching_.until("a")
        stub.put("a", b"2", NOON - 5 * SECOND)  # another etag in the same second
        await watching_.until("a", "a")
        stub.put("a", b"2", NOON - 4 * SECOND)  # the same content, written again
        await watching_.until("a", "a", "a")
        await watching_.polls(stub, 3)
    assert len(watching_.changes) == 3
    assert len({change["id"] for change in watching_.changes}) == 3


async def test_an_object_of_the_current_second_waits_until_it_is_over(stub, clock):
    stub.put("a", b"first")
    async with Watching() as watching_:
        await watching_.polls(stub, 3)
        assert watching_.keys == []
        etag = stub.put("a", b"second")
        clock.tick(1)
        await watching_.until("a")
    assert watching_.changes[0]["etag"] == etag


async def test_only_the_prefix_is_watched_and_folder_markers_are_no_objects(stub):
    for key in ("orders/", "orders/a/", "orders/x", "orders.txt", "other/x"):
        stub.put(key, last_modified=NOON - SECOND)
    stub.put("orders/full/", b"not a marker", NOON - SECOND)
    async with Watching(prefix="orders/") as watching_:
        await watching_.until("orders/full/", "orders/x")
        await watching_.polls(stub)
    assert sorted(watching_.keys) == ["orders/full/", "orders/x"]


async def test_patterns_and_exclusions_are_applied(stub):
    for key in ("o/a.csv", "o/a.csv.tmp", "o/_temporary/b.csv", "o/c.json", "o/deep/d.csv"):
        stub.put(key, last_modified=NOON - SECOND)
    async with Watching(prefix="o/", pattern="*.csv", exclude=["**/_temporary/**"]) as watching_:
        await watching_.until("o/a.csv", "o/deep/d.csv")


async def test_a_prefix_without_a_trailing_slash_matches_siblings_and_that_is_said_once(stub, said):
    for key in ("a/b/1", "a/bc"):
        stub.put(key, last_modified=NOON - SECOND)
    async with Watching(prefix="a/b") as watching_:
        await watching_.until("a/b/1", "a/bc")
    assert [line for line in said() if "siblings" in line] == [
        "the prefix 'a/b' has no trailing slash, so it also matches its siblings, such as 'a/bx'"
    ]


@pytest.mark.parametrize("prefix", ["", "a/"])
async def test_other_prefixes_say_nothing_of_siblings(stub, said, prefix):
    async with Watching(prefix=prefix) as watching_:
        await watching_.polls(stub)
    assert said() == []


async def test_many_pages_are_read_and_a_backlog_comes_in_events_of_the_size_asked_for(stub):
    keys = stub.bulk("b/", 2500, NOON - 3600 * SECOND)
    async with Watching(prefix="b/", max_objects_per_event=1000, max_event_bytes=10**7) as watching_:
        await watching_.until(*keys)
    assert [event["count"] for event in watching_.events] == [1000, 1000, 500]


async def test_an_event_is_no_larger_than_asked_for(stub):
    keys = stub.bulk("b/", 300, NOON - 3600 * SECOND)
    async with Watching(prefix="b/", max_event_bytes=8192) as watching_:
        await watching_.until(*keys)
    sizes = [len(json.dumps(event)) for event in watching_.events]
    assert all(size <= 8192 for size in sizes)
    assert all(size > 7900 for size in sizes[:-1])


# --- errors -------------------------------------------------------------------------------------------------

ERRORS = {
    "no such bucket": ("NoSuchBucket", ConfigurationError, "create the bucket, or correct bucket_name"),
    "access denied": ("AccessDenied", ConfigurationError, "allow s3:ListBucket"),
    "expired credentials": ("ExpiredToken", ConfigurationError, "renew the connection's credentials"),
    "a wrong access key": ("InvalidAccessKeyId", ConfigurationError, "correct the connection's access key"),
    "a wrong secret key": (
        "SignatureDoesNotMatch",
        ConfigurationError,
        "correct the connection's secret key",
    ),
    "a skewed clock": ("RequestTimeTooSkewed", ConfigurationError, "set this machine's clock"),
    "slow down": ("SlowDown", SourceError, "it is tried again, and nothing is lost"),
    "an internal error": ("InternalError", SourceError, "it is tried again, and nothing is lost"),
    "unavailable": ("ServiceUnavailable", SourceError, "it is tried again, and nothing is lost"),
    "an error nobody knows": ("Unheard", SourceError, "it is tried again, and nothing is lost"),
}


@pytest.mark.parametrize(("code", "kind", "advice"), ERRORS.values(), ids=ERRORS)
async def test_an_error_has_its_class_and_says_what_where_and_what_to_do(stub, code, kind, advice):
    stub.fail(code)
    one = trigger()
    await one.open()
    with pytest.raises(kind) as caught:
        await one.get_high_watermark()
    await one.close()
    message = str(caught.value)
    assert message.startswith("S3 bucket 'lake', connection 'lake': list_")
    assert f"({code})" in message
    assert advice in message


@pytest.mark.parametrize("name", ["no such bucket", "access denied", "expired credentials", "slow down"])
async def test_an_error_is_said_once_mends_itself_and_loses_nothing(stub, said, name):
    code, _, advice = ERRORS[name]
    stub.put("before", last_modified=NOON - SECOND)
    async with Watching() as watching_:
        await watching_.until("before")
        stub.fail(code)
        await watching_.polls(stub, 4, operation="ListMultipartUploads")
        stub.put("meanwhile", last_modified=NOON - SECOND)
        low = (await watching_.state()).low
        assert low <= NOON - 600 * SECOND
        status = (await watching_.state()).status
        assert advice in status["error"]
        stub.clear()
        await watching_.until("before", "meanwhile")
        await watching_.polls(stub)
        assert "error" not in (await watching_.state()).status
    assert len([line for line in said() if advice in line]) == 1


async def test_an_error_in_the_middle_of_a_listing_loses_nothing_and_repeats_nothing(stub):
    keys = stub.bulk("b/", 2500, NOON - 3600 * SECOND)

    def on_request(request):
        if "start-after" in request.params or "continuation-token" in request.params:
            stub.on_request = None
            stub.fail("SlowDown", times=1, operation="ListObjectsV2")

    stub.on_request = on_request
    async with Watching(prefix="b/", max_event_bytes=10**6) as watching_:
        await watching_.until(*keys)
    assert len(watching_.keys) == 2500


async def test_another_cause_is_said_again(stub, said):
    async with Watching() as watching_:
        for code in ("SlowDown", "AccessDenied", "SlowDown"):
            stub.clear()
            stub.fail(code, operation="ListObjectsV2")
            await watching_.polls(stub, 5)  # a page is asked for three times before it is an error
    told = [re.search(r"\((\w+)\)", line).group(1) for line in said() if "failed" in line]
    assert told == ["SlowDown", "AccessDenied", "SlowDown"]


async def test_a_refused_connection_is_said_once_and_mends_itself(stub, said):
    stub.put("before", last_modified=NOON - SECOND)
    async with Watching() as watching_:
        await watching_.until("before")
        stub.stop()
        await asyncio.sleep(0.3)
        stub.put("meanwhile", last_modified=NOON - SECOND)
        stub.start()
        await watching_.until("before", "meanwhile")
    refused = [line for line in said() if "EndpointConnectionError" in line]
    assert len(refused) == 1
    assert "it is tried again, and nothing is lost" in refused[0]


async def test_a_connection_that_breaks_in_the_middle_of_a_page_loses_nothing(stub):
    keys = stub.bulk("b/", 1500, NOON - 3600 * SECOND)
    stub.fault("cut_off", operation="ListObjectsV2", times=2)
    async with Watching(prefix="b/", max_event_bytes=10**6) as watching_:
        await watching_.until(*keys)


async def test_a_connection_id_that_does_not_exist_is_said_once_and_mends_itself(stub, monkeypatch, said):
    stub.put("a", last_modified=NOON - SECOND)
    async with Watching(aws_conn_id="nobody") as watching_:
        await asyncio.sleep(0.3)
        assert await watching_.state() is None
        assert asked(stub, "ListObjectsV2") == []
        monkeypatch.setenv("AIRFLOW_CONN_NOBODY", connection(stub))
        await watching_.until("a")
    told = [line for line in said() if "nobody" in line]
    (line,) = told
    assert line.startswith("the connection 'nobody' does not exist or cannot be read; create it, or set ")


async def test_a_connection_that_vanishes_never_makes_another_s3_answer(stub, monkeypatch):
    """With the client lost, an empty connection would go to AWS; the watermark must not move by that."""
    stub.put("a", last_modified=NOON - SECOND)
    async with Watching() as watching_:
        await watching_.until("a")
        monkeypatch.delenv("AIRFLOW_CONN_LAKE")
        stub.fail("InternalError", times=1)
        await watching_.polls(stub, 1, operation="ListMultipartUploads")
        await asyncio.sleep(0.1)
        assert "does not exist" in (await watching_.state()).status["error"]
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(stub))
        stub.put("b", last_modified=NOON - SECOND)
        await watching_.until("a", "b")


async def test_without_credentials_the_advice_is_to_give_some(stub, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(stub, login=None, password=None))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    one = trigger()
    try:
        await one.open()
        with pytest.raises(ConfigurationError, match=r"NoCredentialsError.*give the connection credentials"):
            await one.get_high_watermark()
    finally:
        await one.close()


async def test_no_message_carries_a_secret(stub, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, logger="airflow.providers.watermark.triggers")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(stub, login="AKIAPUBLIC", password="hunter2hunter2"))
    stub.fail("SignatureDoesNotMatch")
    async with Watching() as watching_:
        await watching_.polls(stub, 2, operation="ListMultipartUploads")
        repr(watching_.trigger)
        state = await watching_.state()
    ours = [record for record in caplog.records if record.name.startswith("airflow.providers.watermark")]
    text = "\n".join(record.getMessage() + str(record.exc_info) for record in ours)
    assert text
    assert "hunter2" not in text + json.dumps(state.to_wire() if state else None) + repr(watching_.trigger)


async def test_the_client_is_closed_at_the_end_and_closing_twice_does_no_harm(stub):
    one = trigger()
    await one.open()
    await one.get_high_watermark()
    await one.close()
    await one.close()
    assert one._client is None


async def test_without_the_amazon_provider_the_error_is_the_pip_command(stub, monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.s3", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-provider-watermark\[amazon\]'"):
        await trigger().open()


# --- one client for many ------------------------------------------------------------------------------------


@pytest.fixture
def builds(monkeypatch):
    """The clients that were built."""
    built = []
    create = AioSession.create_client
    monkeypatch.setattr(
        AioSession, "create_client", lambda *args, **kwargs: built.append(args) or create(*args, **kwargs)
    )
    return built


@contextlib.asynccontextmanager
async def opened(*triggers):
    try:
        await asyncio.gather(*(each.open() for each in triggers))
        yield [each._client for each in triggers]
    finally:
        await asyncio.gather(*(each.close() for each in triggers))


async def test_watchers_that_start_together_share_one_client_which_ends_with_the_last(stub, builds):
    triggers = [trigger(prefix=f"{number}/") for number in range(30)]
    async with opened(*triggers) as (first, *others):
        assert all(each is first for each in others)
        for each in triggers[1:]:
            await each.close()
        await triggers[0].get_high_watermark()
        api = first.api
    assert len(builds) == 1
    with pytest.raises(Exception, match=r"closed|not open|NoneType|subscriptable"):
        await api.list_objects_v2(Bucket="lake")
    async with opened(triggers[0]):
        assert len(builds) == 2


async def test_other_arguments_for_the_client_have_another_client(stub, builds):
    ways = [{}, {"region_name": "eu-west-1"}, {"verify": False}, {"aws_conn_id": "pond"}]
    os.environ["AIRFLOW_CONN_POND"] = connection(stub)
    try:
        async with opened(*(trigger(**way) for way in ways)) as found:
            assert len(set(map(id, found))) == len(ways) == len(builds)
            assert found[1].api.meta.region_name == "eu-west-1"
    finally:
        del os.environ["AIRFLOW_CONN_POND"]


@pytest.mark.parametrize(
    "change", [{"login": "other"}, {"password": "other"}, {"extra": {"region_name": "eu-west-1"}}]
)
async def test_a_connection_that_was_changed_has_another_client_at_the_next_start(stub, monkeypatch, change):
    async with opened(trigger()) as (old,):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(stub, **change))
        async with opened(trigger(), trigger()) as (new, newer):
            assert new is newer
            assert new is not old


@pytest.mark.parametrize(
    "code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"]
)
async def test_a_client_whose_credentials_were_refused_is_given_to_nobody_else(stub, code):
    one, two = trigger(), trigger()
    async with opened(one, two) as (old, same):
        assert old is same
        stub.fail(code, times=1)
        with pytest.raises(ConfigurationError, match=code):
            await one.read_clock()
        await two.read_clock()  # whoever has it goes on with it
        async with opened(trigger()) as (new,):
            assert new is not old


@pytest.mark.parametrize("code", ["AccessDenied", "NoSuchBucket", "SlowDown", "InternalError"])
async def test_other_errors_do_not_cost_the_others_their_client(stub, code):
    one = trigger()
    async with opened(one) as (client,):
        stub.fail(code, times=1)
        with pytest.raises((ConfigurationError, SourceError), match=code):
            await one.read_clock()
        async with opened(trigger()) as (same,):
            assert same is client


async def test_a_connection_that_is_gone_is_refused_even_while_a_client_of_it_is_in_use(stub, monkeypatch):
    async with opened(trigger()):
        monkeypatch.delenv("AIRFLOW_CONN_LAKE")
        with pytest.raises(ConfigurationError, match="'lake' does not exist or cannot be read"):
            await trigger().open()


async def test_many_watchers_have_sockets_enough_unless_the_connection_says_otherwise(stub, monkeypatch):
    async with opened(trigger()) as (client,):
        assert client.api.meta.config.max_pool_connections == 128
        assert client.api.meta.config.connect_timeout == 2
    wire = json.loads(connection(stub))
    wire["extra"]["config_kwargs"]["max_pool_connections"] = 3
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(wire))
    async with opened(trigger()) as (client,):
        assert client.api.meta.config.max_pool_connections == 3


async def test_whoever_is_cancelled_while_a_client_is_built_leaves_nothing_behind(stub, builds):
    starting = [asyncio.create_task(trigger().open()) for _ in range(3)]
    while not builds:  # noqa: ASYNC110 - it is done in another thread
        await asyncio.sleep(0.001)
    for each in starting:
        each.cancel()
    await asyncio.gather(*starting, return_exceptions=True)
    one = trigger()
    async with opened(one):
        await one.read_clock()


async def test_requests_are_counted_with_those_that_the_client_sends_again(stub, monkeypatch):
    wire = json.loads(connection(stub))
    wire["extra"]["config_kwargs"]["retries"] = {"total_max_attempts": 3, "mode": "standard"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(wire))
    one = trigger()
    async with opened(one):
        await one.read_clock()
        stub.fail("InternalError", times=1)
        await one.read_clock()
        stub.fail("InternalError", times=3)
        with pytest.raises(SourceError):
            await one.read_clock()
    assert one.requests == len(stub.requests) == 6


@pytest.mark.parametrize("code", ["SlowDown", "ServiceUnavailable"])
async def test_a_server_that_asks_for_fewer_requests_is_told_from_others(stub, code):
    stub.fail(code, times=1)
    one = trigger()
    async with opened(one):
        with pytest.raises(ThrottledError, match=code):
            await one.read_clock()


# --- odd listings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("truncated_without_token", "ends without a token though it is truncated"),
        ("same_token_twice", "goes in a circle"),
    ],
)
async def test_an_endless_or_broken_listing_is_an_error_and_is_never_taken_for_complete(
    stub, said, fault, message
):
    keys = [f"k{number}" for number in range(5)]
    for key in keys:
        stub.put(key, last_modified=NOON - 3600 * SECOND)
    stub.fault(fault, operation="ListObjectsV2")
    async with Watching() as watching_:
        await watching_.polls(stub, 6)
        state = await watching_.state()
        assert state.high is not None or state.low != NOON - 600 * SECOND, "taken for complete"
        stub.clear()
        await watching_.until(*keys)
        await watching_.polls(stub)
    assert len([line for line in said() if message in line]) == 1
    assert len(watching_.keys) == 5


@pytest.mark.parametrize("fault", ["truncated_without_token", "same_token_twice"])
async def test_an_endless_or_broken_list_of_uploads_is_an_error_too(stub, said, fault):
    stub.put("a", last_modified=NOON - SECOND)
    stub.create_upload("u", NOON - SECOND)
    stub.fault(fault, operation="ListMultipartUploads")
    async with Watching() as watching_:
        await watching_.polls(stub, 5, operation="ListMultipartUploads")
        assert watching_.keys == []
        stub.clear()
        await watching_.until("a")
    assert len([line for line in said() if "list of uploads breaks off" in line]) == 1


async def test_a_listing_that_is_not_in_key_order_is_refused(stub, monkeypatch):
    for key in "abc":
        stub.put(key, last_modified=NOON - SECOND)
    walk = stub.walk
    monkeypatch.setattr(
        stub, "walk", lambda *args: iter(sorted(walk(*args), key=lambda entry: entry[0], reverse=True))
    )
    one = trigger()
    await one.open()
    sweep = watching.Sweep(
        WatermarkState(source={}, low=NOON - 60 * SECOND), await one.get_high_watermark(), 10
    )
    with pytest.raises(SourceError, match=r"not in key order \('b' comes after 'c'\).*cannot be watched"):
        [page async for page in one.read_changes(sweep)]
    await one.close()


async def test_without_a_date_there_is_no_clock_and_nothing_moves(stub, said):
    stub.put("a", last_modified=NOON - SECOND)
    stub.fault("no_date")
    async with Watching() as watching_:
        await watching_.polls(stub, 3, operation="ListMultipartUploads")
        assert watching_.keys == []
        stub.clear()
        await watching_.until("a")
    assert len([line for line in said() if "without a usable Date header" in line]) == 1


@pytest.mark.parametrize("text", ["", "yesterday", "Sun, 99 Mar 2026 12:00:00 GMT", "1772366400"])
def test_a_date_that_is_none_is_an_error_of_the_source(text):
    with pytest.raises(SourceError, match="Date"):
        parse_date(text, "S3")


def test_a_date_is_read_in_utc():
    assert parse_date("Sun, 01 Mar 2026 12:00:00 GMT", "S3") == NOON


# --- multipart uploads --------------------------------------------------------------------------------------


async def test_an_upload_that_takes_longer_than_late_arrival_is_delivered(stub, clock):
    upload = stub.create_upload("u")
    async with Watching() as watching_:
        clock.tick(3600)
        await watching_.polls(stub, 3)
        assert (await watching_.state()) is not None
        clock.tick(3600)
        await watching_.polls(stub, 2)
        stub.complete_upload(upload, b"body")
        await watching_.until("u")
        await watching_.polls(stub, 3)
    assert watching_.changes[0]["last_modified"] == "2026-03-01T12:00:00Z"
    assert watching_.keys == ["u"]


async def test_from_now_an_upload_begun_before_is_delivered_when_it_ends(stub, clock):
    upload = stub.create_upload("u", NOON - 7200 * SECOND)
    stub.put("old", last_modified=NOON - SECOND)
    async with Watching(start_from="now") as watching_:
        await watching_.polls(stub, 2)
        stub.complete_upload(upload)
        await watching_.until("u")


async def test_from_now_the_object_under_an_upload_in_progress_is_not_news(stub, clock):
    stub.put("u", b"old", NOON - 3600 * SECOND)
    upload = stub.create_upload("u", NOON - 7200 * SECOND)
    async with Watching(start_from="now") as watching_:
        await watching_.polls(stub, 3)
        assert watching_.keys == []
        stub.complete_upload(upload, b"new")
        await watching_.until("u")
    assert watching_.changes[0]["etag"].endswith("-1")


async def test_without_the_permission_to_list_uploads_that_is_said_once_and_puts_are_delivered(stub, said):
    stub.fail("AccessDenied", operation="ListMultipartUploads")
    stub.put("a", last_modified=NOON - SECOND)
    async with Watching(late_arrival=120) as watching_:
        await watching_.until("a")
        await watching_.polls(stub, 4)
        stub.clear()
        await watching_.polls(stub, 2)
    (line,) = [line for line in said() if "uploads" in line]
    assert line == (
        "S3 does not list multipart uploads (AccessDenied): uploads that take longer than late_arrival=120 s "
        "may be lost. Allow s3:ListBucketMultipartUploads"
    )


@pytest.mark.parametrize("code", ["NotImplemented", "MethodNotAllowed"])
async def test_a_server_that_does_not_list_uploads_is_watched_all_the_same(stub, code):
    stub.fail(code, operation="ListMultipartUploads")
    stub.put("a", last_modified=NOON - SECOND)
    async with Watching() as watching_:
        await watching_.until("a")


async def test_a_permission_that_is_gone_for_a_while_forgets_no_upload(stub, clock):
    upload = stub.create_upload("u")
    async with Watching() as watching_:
        clock.tick(3600)
        await watching_.polls(stub, 3)
        stub.fail("AccessDenied", operation="ListMultipartUploads")
        await watching_.polls(stub, 6)
        stub.complete_upload(upload)
        stub.clear()
        await watching_.until("u")


async def test_uploads_older_than_max_upload_age_are_counted_and_not_watched_for(stub, clock, said):
    old = stub.create_upload("old", NOON - 101 * SECOND)
    stub.create_upload("older", NOON - 102 * SECOND)
    edge = stub.create_upload("edge", NOON - 100 * SECOND)
    async with Watching(max_upload_age=100, late_arrival=10, start_from="now") as watching_:
        await watching_.polls(stub, 3)
        stub.complete_upload(old)
        stub.complete_upload(edge)
        await watching_.until("edge")
        await watching_.polls(stub, 3)
    assert watching_.keys == ["edge"]
    told = [line for line in said() if "max_upload_age" in line]
    assert told[0].startswith("2 multipart uploads are older than max_upload_age=100 s")
    assert len(told) == 1


async def test_lists_of_uploads_are_read_to_the_end(stub):
    for number in range(2300):
        stub.create_upload(f"u/{number:05}", NOON - 5 * SECOND)
    one = trigger(prefix="u/")
    await one.open()
    late = (await one.get_high_watermark()).late
    await one.close()
    assert len(late) == 2300
    assert len(asked(stub, "ListMultipartUploads")) == 3


async def test_of_several_uploads_of_a_key_the_earliest_counts_to_the_second(stub):
    for seconds in (5, 9, 7):
        stub.create_upload("u", NOON - timedelta(seconds=seconds, milliseconds=300))
    one = trigger()
    await one.open()
    late = (await one.get_high_watermark()).late
    await one.close()
    assert late == {"u": NOON - 10 * SECOND}


async def test_uploads_of_keys_that_are_not_wanted_take_no_slots(stub):
    stub.create_upload("a.tmp", NOON - SECOND)
    stub.create_upload("a.csv", NOON - SECOND)
    one = trigger(pattern="*.csv")
    await one.open()
    assert set((await one.get_high_watermark()).late) == {"a.csv"}
    await one.close()


@pytest.mark.parametrize("completed", ["hot", "stray"])
async def test_of_two_uploads_of_a_key_one_may_become_a_stray_and_the_other_not(stub, clock, completed):
    key = "e/2026/03/03/k"  # a day ahead, of which the second upload is no longer more than a day before
    uploads = {"stray": stub.create_upload(key, NOON.replace(hour=22))}
    clock.now = NOON.replace(day=2, hour=1)
    async with Watching(prefix="e/{%Y/%m/%d}/") as watching_:
        watching_.trigger._committer = watching_.committer
        await watching_.polls(stub, 20)
        uploads["hot"] = stub.create_upload(key)
        await watching_.polls(stub, 20)
        clock.tick(3 * 3600)
        await watching_.polls(stub, 20)
        stub.complete_upload(uploads[completed], b"late")
        clock.tick(3 * 3600)
        await watching_.polls(stub, 20)
        for name in uploads.keys() - {completed}:
            stub.abort_upload(uploads[name])
        clock.tick(86400)
        watching_.trigger._reconciled_at = None
        await watching_.until(key)


# --- what is sent -------------------------------------------------------------------------------------------


async def test_payer_and_expected_owner_are_sent_with_every_request(stub):
    stub.put("a", last_modified=NOON - SECOND)
    stub.create_upload("u", NOON - 3600 * SECOND)
    arguments = {"request_payer": "requester", "expected_bucket_owner": "000000000000"}
    async with Watching(**arguments, start_from="now") as watching_:
        await watching_.polls(stub, 2)
    assert {request.operation for request in stub.requests} == {"ListObjectsV2", "ListMultipartUploads"}
    for request in stub.requests:
        assert request.params["x-amz-request-payer"] == "requester"
        assert request.params["x-amz-expected-bucket-owner"] == "000000000000"


async def test_requests_tell_who_asks_unless_the_connection_says_otherwise(stub, monkeypatch):
    async with Watching() as watching_:
        await watching_.polls(stub, 2)
    for request in stub.requests:
        assert request.user_agent.startswith(f"airflow-provider-watermark/{__version__} ")
        assert " Airflow/" in request.user_agent
    stub.requests.clear()
    wire = json.loads(connection(stub))
    wire["extra"]["config_kwargs"]["user_agent"] = "ours"
    monkeypatch.setenv("AIRFLOW_CONN_NAMED", json.dumps(wire))
    async with Watching(aws_conn_id="named") as watching_:
        await watching_.polls(stub, 2)
    assert all(request.user_agent.startswith("ours ") for request in stub.requests)


async def test_neither_is_sent_unless_asked_for(stub):
    async with Watching() as watching_:
        await watching_.polls(stub, 2)
    assert not any(name.startswith("x-amz") for request in stub.requests for name in request.params)


async def test_a_bucket_of_another_owner_is_refused(stub, said):
    async with Watching(expected_bucket_owner="111111111111") as watching_:
        await watching_.polls(stub, 2, operation="ListMultipartUploads")
    assert any("AccessDenied" in line for line in said())


async def test_an_interrupted_listing_goes_on_after_its_cursor_and_not_from_the_start(stub):
    stub.put("a", last_modified=NOON - SECOND)
    stub.put("b", last_modified=NOON - SECOND)
    state = WatermarkState(
        source=trigger().fingerprint, low=NOON - 60 * SECOND, high=NOON - 30 * SECOND, cursor="a"
    )
    store = MemoryStore()
    await store.save(trigger().key, state.to_wire(), expected=None)
    async with Watching(store) as watching_:
        await watching_.until("b", "a")
    first, second, *_ = asked(stub, "ListObjectsV2")
    assert first.params["start-after"] == "a"
    assert "start-after" not in second.params
    assert watching_.keys == ["b", "a"]


async def test_a_listing_of_partitions_that_goes_on_starts_within_each_of_them(stub):
    # MinIO has answered a StartAfter that sorts before the prefix with an empty page.
    days = ("2026/02/27", "2026/02/28", "2026/03/01")
    keys = [f"e/{day}/{number}" for day in days for number in range(2)]
    for key in keys:
        stub.put(key, last_modified=NOON - 3600 * SECOND)
    one = trigger(prefix="e/{%Y/%m/%d}/")
    low = NOON - 7200 * SECOND
    state = WatermarkState(
        source=one.fingerprint, low=low, high=NOON - 600 * SECOND, cursor=keys[2], stray_low=low
    )
    store = MemoryStore()
    await store.save(one.key, state.to_wire(), expected=None)
    async with Watching(store, prefix=one.prefix) as watching_:
        await watching_.until(*keys[3:])
        await watching_.polls(stub)
    started = [request.params for request in asked(stub, "ListObjectsV2") if "start-after" in request.params]
    assert started
    assert all(params["start-after"].startswith(params["prefix"]) for params in started)


# --- keys ---------------------------------------------------------------------------------------------------

ODD_KEYS = [
    *("o/a b", "o/ leading", "o/trailing ", "o/a+b", "o/a%b", "o/a%20b", "o/a%2Fb", "o/a=b", "o/a&b;c"),
    *("o/a\\b", "o//b", "o/a//b", "o/./b", "o/../b", "o/a?b#c", "o/*a*", "o/~a", "o/Z", "o/z", "o//"),
    *("o/quote'\"<&>", "o/new\nline", "o/return\rhere", "o/tab\there", "o/\u2028line separator"),
    *("o/e\u0301 decomposed", "o/\u00e9 composed", "o/日本/東京.csv", "o/\uffee", "o/\U0001f600", "o/\ufeff"),
    *("o/" + "x" * 1022, "o/" + "é" * 511),
]
CONTROLS = ["o/control\x01", "o/delete\x7f"]


async def test_every_odd_key_is_delivered_exactly_as_it_is(stub):
    for key in ODD_KEYS + CONTROLS:
        stub.put(key, b"x", NOON - SECOND)
    async with Watching(prefix="o/") as watching_:
        await watching_.until(*ODD_KEYS, *CONTROLS)
        await watching_.polls(stub, 2)
    assert watching_.keys == sorted(ODD_KEYS + CONTROLS, key=str.encode)
    assert json.loads(json.dumps(watching_.keys)) == watching_.keys


async def test_a_leading_slash_is_part_of_a_key(stub):
    for key in ("/a", "//a", "a"):
        stub.put(key, b"x", NOON - SECOND)
    async with Watching(prefix="/") as watching_:
        await watching_.until("/a", "//a")


async def test_uploads_look_ups_and_cursors_of_odd_keys_are_right(stub):
    one = trigger(prefix="o/")
    await one.open()
    for key in ODD_KEYS + CONTROLS:
        upload = stub.create_upload(key, NOON - 5 * SECOND)
        stub.put(key, b"x", NOON - 60 * SECOND)
        bounds = await one.get_high_watermark()
        assert bounds.late == {key: NOON - 5 * SECOND}
        assert set(await one.find_changes([key, key + "x", "o/not there"])) == {key}
        state = WatermarkState(source={}, low=NOON - 90 * SECOND, high=NOON - 30 * SECOND, cursor=key)
        pages = [page async for page in one.read_changes(watching.Sweep(state, bounds, 10))]
        assert [change.identity for page in pages for change in page.changes] == []
        stub.abort_upload(upload)
        stub.delete(key)
    await one.close()


async def test_an_object_whose_key_is_a_prefix_of_others_is_looked_up_exactly(stub):
    for key in ("a", "ab", "abc"):
        stub.put(key, key.encode(), NOON - SECOND)
    one = trigger()
    await one.open()
    found = await one.find_changes(["a", "ab", "b"])
    await one.close()
    assert {key: change.detail["size"] for key, change in found.items()} == {"a": 1, "ab": 2}


# --- against a real emulator --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ministack():
    with s3_servers.ministack() as server:
        client = server.client()
        client.create_bucket(Bucket="lake")
        yield server, client
        client.close()


async def test_an_emulator_gives_every_odd_key_exactly(ministack, monkeypatch):
    server, client = ministack
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(server))
    keys = [key for key in ODD_KEYS if key != "o//"]
    for key in keys:
        client.put_object(Bucket="lake", Key=key, Body=b"x")
    upload = client.create_multipart_upload(Bucket="lake", Key="o/a +é")["UploadId"]
    async with Watching(prefix="o/") as watching_:
        await watching_.until(*keys, within=20)
        part = client.upload_part(Bucket="lake", Key="o/a +é", UploadId=upload, PartNumber=1, Body=b"x")
        client.complete_multipart_upload(
            Bucket="lake",
            Key="o/a +é",
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        )
        await watching_.until(*keys, "o/a +é", within=20)


# --- how a listing is read ----------------------------------------------------------------------------------


def page_of(*entries, encoding="url", truncated=False):
    contents = "".join(
        f"<Contents><Key>{quote(key)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{etag}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, modified, etag, size in entries
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>lake</Name><Prefix>a%20b</Prefix>'
        f"<KeyCount>{len(entries)}</KeyCount><MaxKeys>1000</MaxKeys><EncodingType>{encoding}</EncodingType>"
        f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{contents}</ListBucketResult>"
    ).encode()


ENTRY = ("a b/é", "2026-03-01T12:00:00.000Z", "&quot;d41d8cd98f00b204e9800998ecf8427e&quot;", 10)


@contextlib.asynccontextmanager
async def both():
    """Give the watcher, and another with the provider's own client, which reads all as botocore does."""
    ours, plain = trigger(), trigger()
    await ours.open()
    async with await S3Hook(aws_conn_id="lake").get_async_conn() as api:
        plain._client = SimpleNamespace(api=api)
        try:
            yield ours, plain
        finally:
            await ours.close()


def answer_with(stub, body, status=200):
    stub._operations["ListObjectsV2"] = lambda call: Reply(body, {"Content-Type": "application/xml"}, status)


LISTINGS = {
    "usual": page_of(*((f"k{number}", *ENTRY[1:]) for number in range(5)), truncated=True),
    "empty": page_of(),
    "unusual and small": page_of(ENTRY).replace(b"<ETag>", b"<ETag a='b'>"),
    "unusual and large": page_of(*((f"k{number:04}", *ENTRY[1:]) for number in range(1000))).replace(
        b"url", b"x"
    ),
    "keys that are not encoded": page_of(("a+b", *ENTRY[1:])).replace(b"url", b"").replace(b"%2B", b"+"),
    "fractions": page_of(("a", "2026-03-01T12:00:00.123Z", "x", 0), ("b", "2026-03-01T12:00:00Z", "x", 1)),
}


@pytest.mark.parametrize("body", LISTINGS.values(), ids=LISTINGS)
async def test_a_page_is_what_botocore_makes_of_it(stub, body):
    answer_with(stub, body)
    async with both() as (ours, plain):
        expected = await plain.list_page(KeyRange(prefix=""), Interest(keys=None))
        for interest in (Interest(keys=None), Interest(since=NOON), Interest(since=NOON, keys=["k3"])):
            page = await ours.list_page(KeyRange(prefix=""), interest)
            wanted = [
                each
                for each in expected.objects
                if interest.keys is None or each.modified > interest.since or each.key in interest.keys
            ]
            assert [each for each in page.objects if each in wanted] == wanted
            assert (page.first, page.last, page.count, page.token) == (
                *(expected.first, expected.last),
                *(expected.count, expected.token),
            )


async def test_the_stub_and_an_emulator_are_read_as_botocore_reads_them_with_all_odd_keys(
    stub, ministack, monkeypatch
):
    server, emulator = ministack
    for key in ODD_KEYS:
        stub.put(key, b"x", NOON - SECOND)
        emulator.put_object(Bucket="lake", Key=key, Body=b"x")
    for address in (stub, server):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(address))
        async with both() as (ours, plain):
            for keys, limit in (
                (KeyRange(prefix=""), None),
                (KeyRange(prefix="o/a"), 2),
                (KeyRange(prefix="x"), 1),
            ):
                page = await ours.list_page(keys, Interest(keys=None), limit=limit)
                expected = await plain.list_page(keys, Interest(keys=None), limit=limit)
                assert page == expected
                old = await ours.list_page(
                    keys, Interest(since=datetime(2100, 1, 1, tzinfo=UTC)), limit=limit
                )
                assert old == dataclasses.replace(expected, objects=old.objects)


@pytest.fixture
def scans(monkeypatch):
    """What was scanned: each page, or None if it was left to the ordinary parser."""
    found = []

    def scan(*args, **kwargs):
        found.append(scan_page(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(parsing, "scan_page", scan)
    return found


async def test_pages_of_the_stub_and_of_an_emulator_are_scanned_and_those_without_news_give_nothing(
    stub, ministack, monkeypatch, scans
):
    server, emulator = ministack
    stub.put("o/a", b"x", NOON - SECOND)
    emulator.put_object(Bucket="lake", Key="o/a", Body=b"x")
    for address in (stub, server):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(address))
        one = trigger()
        await one.open()
        await one.list_page(KeyRange(prefix="o/a"), Interest(), limit=1)
        one._order_is_known = True
        await one.list_page(KeyRange(prefix="o/a"), Interest(since=datetime(2100, 1, 1, tzinfo=UTC)), limit=1)
        await one.close()
    assert [[each.key for each in page.objects] for page in scans] == [["o/a"], [], ["o/a"], []]


async def test_botocore_still_does_what_reading_its_answers_relies_on(stub):
    """
    What upstream must keep, each by its name.

    - the event ``before-parse.<service>.<operation>``, with ``response_dict`` and
      ``customized_response_dict``, whose handlers are awaited within the task and context of the request;
    - handlers registered with a wildcard run before those of ``before-parse.s3``, of which botocore's own
      ``_handle_200_error`` parses the whole body;
    - ``parsed_response.update(customized_response_dict)`` after parsing;
    - ``EncodingType=url`` is asked for, and what is encoded is decoded after parsing.
    """
    stub.put("a", b"x", NOON - SECOND)
    stub.put("b c", b"x", NOON - SECOND)
    bodies = []

    def after_ours(event_name, response_dict, customized_response_dict, **_):
        bodies.append((event_name, response_dict["body"], [*customized_response_dict]))

    one = trigger(prefix="")
    await one.open()
    api = one._client.api
    api.meta.events.register_first("before-parse.s3.ListObjectsV2", after_ours)
    with parsing.asking(Interest(), whole=False):
        page = await api.list_objects_v2(Bucket="lake", MaxKeys=1, StartAfter="a a")
    await one.close()
    ((event_name, body, parsed),) = bodies
    assert event_name == "before-parse.s3.ListObjectsV2"
    assert b"<Contents>" not in body
    assert b"</ListBucketResult>" in body
    assert parsed == [parsing.SCANNED]
    assert [each.key for each in page[parsing.SCANNED].objects] == ["b c"]
    assert "Contents" not in page
    assert page["StartAfter"] == "a a"
    assert page["IsTruncated"] is False


async def test_pages_that_arrive_together_are_read_in_turns_of_the_loop(stub, monkeypatch):
    stub.bulk("b/", 3000, NOON - 3600 * SECOND)
    rounds, scanned_in = 0, []

    async def count_rounds():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    def scan(*args, **kwargs):
        scanned_in.append(rounds)
        return scan_page(*args, **kwargs)

    monkeypatch.setattr(parsing, "scan_page", scan)
    first = {"status_code": 200, "headers": {}, "context": {}, "body": page_of(ENTRY)}
    counting = asyncio.create_task(count_rounds())
    with parsing.asking(Interest(), whole=False):
        await asyncio.gather(*(parsing.read_answer(dict(first), None, {}) for _ in range(20)))
    counting.cancel()
    assert len(set(scanned_in)) == 20, "some were read one right after the other"


async def test_old_keys_out_of_order_are_refused_in_the_first_sweep(stub, monkeypatch):
    for key in "abcd":
        stub.put(key, last_modified=NOON - 3600 * SECOND)
    walk = stub.walk
    monkeypatch.setattr(
        stub, "walk", lambda *args: iter(sorted(walk(*args), key=lambda entry: "acbd".index(entry[0])))
    )
    one = trigger()
    await one.open()
    sweep = watching.Sweep(
        WatermarkState(source={}, low=NOON - 60 * SECOND), await one.get_high_watermark(), 10
    )
    with pytest.raises(SourceError, match="not in key order"):
        [page async for page in one.read_changes(sweep)]
    await one.close()


@pytest.mark.parametrize("status", [200, 500, 503])
async def test_an_error_is_left_to_botocore_even_with_status_200(stub, status):
    answer_with(
        stub, b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>m</Message></Error>", status
    )
    one = trigger()
    await one.open()
    with pytest.raises(SourceError, match="SlowDown"):
        await one.list_page(KeyRange(prefix=""), Interest())
    await one.close()


@pytest.mark.parametrize(
    "body",
    [
        page_of(ENTRY)[:-50],
        b"<ListBucketResult",
        page_of(ENTRY).replace(b"2026-03-01T12:00:00.000Z", b"yesterday"),
        page_of(ENTRY).replace(b"<Size>10<", b"<Size>ten<"),
        page_of(ENTRY).replace(b"<Size>10</Size>", b""),
        page_of(ENTRY).replace(b"<Key>", b"<Kee>").replace(b"</Key>", b"</Kee>"),
        b"",
        b"not xml",
        b"<html><body>captive portal</body></html>",
    ],
    ids=[
        "cut off",
        "cut off at once",
        "no time",
        "no number",
        "no size",
        "no key",
        "nothing",
        "no xml",
        "html",
    ],
)
async def test_a_page_that_is_damaged_moves_no_watermark_and_is_mended(stub, body):
    stub.put("a", b"x", NOON - SECOND)
    good = stub._operations["ListObjectsV2"]
    answer_with(stub, body)
    async with Watching() as watching_:
        await watching_.polls(stub, 3)
        assert watching_.keys == []
        low = (await watching_.state()).low
        assert low is BEGINNING, "it was taken for complete"
        stub._operations["ListObjectsV2"] = good
        await watching_.until("a")


async def test_one_answer_with_a_wrong_clock_moves_nothing_and_is_told(stub, clock, said):
    """One of S3's servers is a day ahead; the next answer comes from another one."""
    wrong = iter([True])

    def on_request(request):
        ahead = request.operation == "ListMultipartUploads" and started and next(wrong, False)
        stub.clock = (lambda: clock() + 86400) if ahead else clock

    started = False
    stub.on_request = on_request
    async with Watching(start_from="now") as watching:
        await watching.polls(stub, 2)
        started = True
        await watching.polls(stub, 3)
        stub.put("orders/a")
        clock.tick(2)
        await watching.until("orders/a")
        assert (await watching.state()).low < NOON + SECOND
    assert sum("two answers tell times as far apart" in line for line in said()) == 1


async def test_markers_of_uploads_that_go_in_a_circle_are_an_error(stub, said, monkeypatch):
    pages = itertools.cycle("AB")

    async def call(self, operation, **kwargs):
        answer = await ORDINARY_CALL(self, operation, **kwargs)
        if operation == "list_multipart_uploads":
            answer |= {"IsTruncated": True, "NextKeyMarker": next(pages), "NextUploadIdMarker": "1"}
        return answer

    monkeypatch.setattr(S3PrefixTrigger, "_call", call)
    async with Watching() as watching:
        await watching.polls(stub, 6, operation="ListMultipartUploads")
        await asyncio.sleep(0.1)
        assert any("the list of uploads breaks off" in line for line in said())


# --- what answers in S3's place, and clocks that are wrong --------------------------------------------------

NO_LISTINGS = {
    "a page for people": b"<html><body>Please log in</body></html>",
    "nothing": b"",
    "another list": b"<ListAllMyBucketsResult></ListAllMyBucketsResult>",
    "a list of nothing": b"<ListBucketResult></ListBucketResult>",
    "a list that lacks its entries": (
        b"<ListBucketResult><KeyCount>2</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
    ),
}


@pytest.mark.parametrize("body", NO_LISTINGS.values(), ids=NO_LISTINGS)
@pytest.mark.parametrize("operation", ["ListObjectsV2", "ListMultipartUploads"])
async def test_an_answer_that_is_no_listing_is_an_error_and_never_an_empty_one(stub, clock, operation, body):
    if operation == "ListMultipartUploads" and b"KeyCount" in body:
        body = b"<ListMultipartUploadsResult></ListMultipartUploadsResult>"
    stub.put("a", b"1", NOON - 5 * SECOND)
    upload = stub.create_upload("u", NOON - 5 * SECOND)
    async with Watching() as watching_:
        await watching_.until("a")
        usual = stub._operations[operation]
        stub._operations[operation] = lambda call: Reply(body, {"Content-Type": "text/html"})
        stub.put("b", b"1")
        stub.complete_upload(upload, b"late")
        await watching_.polls(stub, 3, operation)
        clock.tick(700)
        await watching_.polls(stub, 3, operation)
        stub._operations[operation] = usual
        await watching_.until("a", "b", "u")


@pytest.mark.parametrize("is_rewound", [False, True], ids=["as it was", "rewound before"])
@pytest.mark.parametrize(("ahead", "away"), [(700, 300), (630, 60), (700, 20), (90000, 60)])
async def test_a_clock_that_was_ahead_and_is_set_right_loses_nothing(stub, clock, ahead, away, is_rewound):
    stub.put("a", b"1", NOON - 5 * SECOND)
    async with Watching() as watching_:
        await watching_.until("a")
        if is_rewound:
            await watching_.polls(stub, 2)
            stored = await watching_.store.load(watching_.trigger.key)
            state = WatermarkState.from_wire(stored)
            rewound = dataclasses.replace(state.rewind(state.low), revision=state.revision + 1)
            await watching_.store.save(watching_.trigger.key, rewound.to_wire(), expected=stored)
            await watching_.polls(stub, 4)
        clock.tick(ahead)
        await watching_.polls(stub, 4)
        stub.fail("InternalError")  # nobody asks for a while
        await watching_.polls(stub, 2, "ListMultipartUploads")
        clock.tick(1 - ahead)
        stub.put("b", b"1")
        clock.tick(away - 1)
        stub.clear()
        async with asyncio.timeout(10):
            while "b" not in watching_.keys:
                clock.tick(1)
                await watching_.polls(stub, 2)
