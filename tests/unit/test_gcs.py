"""The GCS watcher against the stub: errors, odd listings, identities, and names exactly as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

import airflow.providers.google.cloud.hooks.gcs  # noqa: F401 - here, since it takes longer than tests wait
from airflow.providers.watermark.events import ObjectChange
from airflow.providers.watermark.exceptions import ConfigurationError, SourceError, ThrottledError
from airflow.providers.watermark.gcs import client as gcs_client
from airflow.providers.watermark.gcs.client import GcsClient
from airflow.providers.watermark.gcs.pages import list_params, read_page
from airflow.providers.watermark.objects.listing import Interest, KeyRange, read_range
from airflow.providers.watermark.position import BEGINNING, encode_position
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers import watching
from airflow.providers.watermark.triggers.gcs import GCSPrefixTrigger
from devtools.gcs_servers import fake_gcs
from devtools.gcs_stub import StubGCS
from tests.unit.watching_now import WatchingNow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
EVERYTHING = Interest(since=BEGINNING, keys=None)
ODD_NAMES = [
    *(
        "a b",
        "a%20b",
        "a+b",
        "a&b=c",
        "a#b",
        "a?b",
        "a;b",
        "a:b",
        "a//b",
        "./a",
        "../a",
        'a"b',
        "a\\b",
        "a'b",
    ),
    *("a\tb", "a\x7fb", "ü", "日本/é", "\ue000", "😀", '{"name": "x"}', '"timeCreated":"2030"', "a*b", "[a]"),
]


@pytest.fixture
def clock():
    return [NOON]


@pytest.fixture
def stub(monkeypatch, clock):
    with StubGCS() as stub:
        stub.clock = lambda: clock[0].timestamp()  # noqa: PLW0108 - the time of then, not of now
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", stub.server.airflow_connection_json())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.server.endpoint_url)
        yield stub


@pytest.fixture
def service(stub, monkeypatch):
    """The stub as the service itself, so with credentials; no request of a test may leave the machine."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(gcs_client, "_service", lambda: (stub.server.endpoint_url, False))
    return stub


@pytest.fixture(scope="module")
def private_key():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Back off for a hundredth of a second at the most."""
    monkeypatch.setattr(watching, "MAX_BACKOFF", 0.01)


def key_connection(stub, private_key, changes=None):
    """Give a connection with a service account's key, which is exchanged for a token at the stub."""
    key = {
        "type": "service_account",
        "client_email": "watcher@project.iam.gserviceaccount.com",
        "private_key": private_key,
        "token_uri": f"{stub.server.endpoint_url}/token",
        "project_id": "project",
        **(changes or {}),
    }
    return json.dumps({"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": json.dumps(key)}})


def trigger(**arguments):
    return GCSPrefixTrigger(
        **{
            "asset_name": "orders",
            "bucket_name": "lake",
            "gcp_conn_id": "lake",
            "start_from": "beginning",
            "poll_interval": 0.01,
            "commit_delay": 0.02,
            **arguments,
        }
    )


@contextlib.asynccontextmanager
async def opened(**arguments):
    """Give a trigger that is open."""
    one = trigger(**arguments)
    await one.open()
    try:
        yield one
    finally:
        await one.close()


async def names(one, keys=None, interest=EVERYTHING):
    keys = keys or KeyRange(prefix=one.prefix)
    return [found.key async for page in read_range(one, keys, interest) for found in page.objects]


class Watching(WatchingNow):
    def __init__(self, store=None, **arguments):
        super().__init__(trigger(**arguments), store)

    async def stores(self, cursor, within=30.0):
        """Wait until so much of a sweep is stored as done."""
        async with asyncio.timeout(within):
            while (await self.store.load(self.trigger.key) or {}).get("cursor") != encode_position(cursor):  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.005)

    async def polls(self, stub, number=6, within=30.0):
        """Wait until the stub has been asked so many times more."""
        before = len(stub.requests)
        async with asyncio.timeout(within):
            while len(stub.requests) < before + number:  # noqa: ASYNC110 - the stub has its own loop
                await asyncio.sleep(0.005)


# --- what is delivered --------------------------------------------------------------------------------------


async def test_an_object_is_delivered_with_its_name_size_generation_and_time(stub):
    generation = stub.put("orders/1.csv", b"12345", NOON - 4.877 * SECOND)
    async with Watching(prefix="orders/") as watching_:
        await watching_.until("orders/1.csv")
    (change,) = watching_.changes
    assert change == {
        "id": change["id"],
        "key": "orders/1.csv",
        "size": 5,
        "generation": generation,
        "last_modified": "2026-03-01T11:59:55.123000Z",
    }
    found = ObjectChange.from_wire(watching_.events[0]["watermark"], change)
    assert (found.bucket, found.key, found.uri) == ("lake", "orders/1.csv", "gs://lake/orders/1.csv")
    assert (found.size, found.generation, found.etag) == (5, generation, "")
    assert found.last_modified == NOON - timedelta(milliseconds=4877)


async def test_an_overwrite_is_news_and_an_edit_of_metadata_access_or_storage_class_is_none(stub):
    stub.put("a", b"1", NOON - 5 * SECOND)
    async with Watching() as watching_:
        await watching_.until("a")
        stub.edit("a")
        await watching_.polls(stub)
        assert watching_.keys == ["a"]
        stub.put("a", b"1", NOON - 5 * SECOND)  # the same content in the same millisecond
        await watching_.until("a", "a")
    assert len({change["id"] for change in watching_.changes}) == 2


async def test_an_object_of_the_current_second_waits_until_it_is_over(stub, clock):
    stub.put("a", b"first", NOON + 0.2 * SECOND)
    async with Watching() as watching_:
        await watching_.polls(stub)
        assert watching_.keys == []
        generation = stub.put("a", b"second", NOON + 0.9 * SECOND)
        clock[0] += SECOND
        await watching_.until("a")
    assert watching_.changes[0]["generation"] == generation


async def test_only_the_prefix_is_watched_and_folder_markers_are_no_objects(stub):
    for name in ("orders/", "orders/a/", "orders/x", "orders.txt", "other/x"):
        stub.put(name, created=NOON - SECOND)
    stub.put("orders/full/", b"not a marker", NOON - SECOND)
    async with Watching(prefix="orders/") as watching_:
        await watching_.until("orders/full/", "orders/x")


async def test_noncurrent_and_deleted_versions_are_not_delivered(monkeypatch):
    with fake_gcs() as server:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", server.airflow_connection_json())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint_url)
        server.create_bucket("lake", versioning=True)
        old = server.put("lake", "a", b"old")
        new = server.put("lake", "a", b"new")
        server.put("lake", "gone")
        server.delete("lake", "gone")
        versions = server.call("GET", "b/lake/o", versions="true")["items"]
        assert [item["name"] for item in versions] == ["a", "a", "gone"]  # they are there
        async with opened() as one:
            page = await one.list_page(KeyRange(prefix=""), EVERYTHING)
        assert old != new
        assert [(found.key, found.version) for found in page.objects] == [("a", new)]


# --- names and pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "a", "日本/", "a+", "a&", 'a"', "{"])
async def test_odd_names_come_through_as_they_are(stub, prefix):
    stub.page_limit = 3
    for name in ODD_NAMES:
        stub.put(name, created=NOON - SECOND)
    async with opened(prefix=prefix) as one:
        assert await names(one) == sorted(name for name in ODD_NAMES if name.startswith(prefix))


async def test_odd_names_come_through_a_real_emulator_too_page_by_page_and_from_each_of_them_on(monkeypatch):
    with fake_gcs() as server:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", server.airflow_connection_json())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint_url)
        server.create_bucket("lake")
        there = sorted(name for name in ODD_NAMES if not name.startswith("."))
        for name in there:
            server.put("lake", name)
        async with opened() as one:
            for number, name in enumerate(there):
                page = await one.list_page(KeyRange(prefix="", after=name), EVERYTHING, limit=3)
                following = there[number + 1 :]
                assert [found.key for found in page.objects] == following[:2]  # the limit counts the first
                assert await names(one, KeyRange(prefix="", after=name)) == following
                assert await names(one, KeyRange(prefix="", until=name)) == there[: number + 1]


@settings(max_examples=50, deadline=None)
@given(
    st.sets(st.text(st.sampled_from("ab/ü😀!\x7f "), min_size=1, max_size=3), max_size=12),
    st.text(st.sampled_from("ab/ü😀!"), max_size=1),
    st.none() | st.text(st.sampled_from("ab/ü😀!"), min_size=1, max_size=2),
    st.none() | st.text(st.sampled_from("ab/ü😀!"), min_size=1, max_size=2),
    st.integers(1, 4),
)
def test_a_range_begins_behind_its_first_key_and_ends_with_its_last_one(there, prefix, after, until, limit):
    stub = StubGCS()
    stub.page_limit = limit
    stub.fill(sorted(there), NOON)

    class Direct:
        where = "here"

        async def list_page(self, keys, interest, *, token=None, limit=None):
            params = list_params(keys, token=token, limit=limit)
            return read_page(stub._list(params, {}), keys, interest, self.where)

    async def read():
        keys = KeyRange(prefix=prefix, after=after, until=until)
        return [found.key async for page in read_range(Direct(), keys, EVERYTHING) for found in page.objects]

    assert asyncio.run(read()) == sorted(
        name
        for name in there
        if name.startswith(prefix) and (not after or name > after) and (not until or name <= until)
    )


async def test_pages_without_objects_but_with_a_token_are_no_end(stub):
    stub.page_limit = 2
    for name in "abcde":
        stub.put(name, created=NOON - SECOND)
    stub.fault("empty_pages")
    async with opened() as one:
        assert await names(one) == list("abcde")
        assert await names(one, KeyRange(prefix="", after="b")) == list("cde")
    assert len(stub.requests) > 6


async def test_only_the_needed_fields_are_asked_for_and_no_old_versions(stub):
    stub.put("a", created=NOON - SECOND)
    async with opened(prefix="a", user_project="payer") as one:
        await names(one)
    (request,) = stub.requests
    assert request.params == {
        "fields": "kind,items(name,timeCreated,generation,size),nextPageToken",
        "prefix": "a",
        "prettyPrint": "false",
        "userProject": "payer",
    }
    assert "authorization" not in request.headers


async def test_a_listing_goes_on_where_the_sweep_broke_off(stub):
    stub.page_limit = 2
    for name in "abcdef":
        stub.put(name, created=NOON - SECOND)
    store = MemoryStore()

    def break_off(request):
        if "pageToken" in request.params:
            stub.fail(500, "backendError")

    stub.on_request = break_off
    async with Watching(store) as watching_:
        await watching_.until("a", "b")
        await watching_.stores("b")
    stub.on_request = None
    stub.clear()
    stub.requests.clear()
    async with Watching(store) as watching_:
        await watching_.until("c", "d", "e", "f")
    offsets = [request.params.get("startOffset") for request in stub.requests]
    assert "b" in offsets


async def test_pages_in_a_circle_are_refused(stub):
    stub.put("a", created=NOON - SECOND)
    stub.fault("same_token")
    async with opened() as one:
        with pytest.raises(SourceError, match=r"not in key order|circle"):
            await names(one)


# --- which objects are of interest --------------------------------------------------------------------------


def page_of(**stamps):
    items = [
        {"name": name, "timeCreated": stamp, "generation": "1", "size": "1"} for name, stamp in stamps.items()
    ]
    return json.dumps({"kind": "storage#objects", "items": items}).encode()


@pytest.mark.parametrize(
    ("stamp", "is_given"),
    [
        ("2026-03-01T11:59:58Z", False),
        ("2026-03-01T11:59:58.999999Z", False),
        ("2026-03-01T11:59:59Z", True),  # as new as the bound, which the sweep itself looks at
        ("2026-03-01T12:00:00.1Z", True),
        ("2026-03-01T07:59:59-05:00", True),  # one o'clock
    ],
)
def test_what_is_too_old_to_be_news_is_left_out(stamp, is_given):
    page = read_page(
        page_of(a=stamp), KeyRange(prefix=""), Interest(since=NOON - SECOND, keys=()), "the bucket"
    )
    assert [found.key for found in page.objects] == ["a"] * is_given
    assert (page.first, page.last, page.count) == ("a", "a", 1)


def test_a_key_that_is_of_interest_is_given_however_old(stub):
    body = page_of(a="2026-01-01T00:00:00Z", b="2026-01-01T00:00:00Z")
    page = read_page(body, KeyRange(prefix=""), Interest(since=NOON, keys=["b"]), "the bucket")
    assert [found.key for found in page.objects] == ["b"]


@pytest.mark.parametrize(
    ("stamp", "modified"),
    [
        ("2026-03-01T12:00:00Z", NOON),
        ("2026-03-01T12:00:00.5Z", NOON + 0.5 * SECOND),
        ("2026-03-01T12:00:00.123Z", NOON + timedelta(milliseconds=123)),
        ("2026-03-01T12:00:00.123456Z", NOON + timedelta(microseconds=123456)),
        ("2026-03-01T12:00:00.123456789Z", NOON + timedelta(microseconds=123456)),
        ("2026-03-01T13:00:00.5+01:00", NOON + 0.5 * SECOND),
    ],
)
def test_times_keep_their_precision(stamp, modified):
    (found,) = read_page(page_of(a=stamp), KeyRange(prefix=""), EVERYTHING, "the bucket").objects
    assert found.modified == modified
    assert found.modified.tzinfo is UTC


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"<html></html>",
        b'{"kind": "storage#buckets", "items": []}',
        b'{"kind": "storage#objects", "items": {}}{',
        b'{"kind": "storage#objects", "items": [{}]}',
        b'{"kind": "storage#objects", "items": ["a"]}',
        b'{"kind": "storage#objects", "items": 5}',
        page_of(a="2026-03-01T12:00:00"),
        page_of(a="yesterday"),
        page_of(a=""),
        page_of(a=None),
    ],
)
@pytest.mark.parametrize("interest", [EVERYTHING, Interest(since=NOON, keys=())], ids=["all", "new"])
def test_what_is_no_page_is_an_error_and_no_end_of_the_listing(body, interest):
    with pytest.raises(
        SourceError, match=r"^the bucket answered with something that is no page of a listing"
    ):
        read_page(body, KeyRange(prefix=""), interest, "the bucket")


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "kind", "advice"),
    [
        (400, "required", ConfigurationError, "set user_project"),
        (401, "authError", ConfigurationError, "credentials"),
        (403, "forbidden", ConfigurationError, "roles/storage.objectViewer"),
        (403, "rateLimitExceeded", ThrottledError, "tried again"),
        (404, "notFound", ConfigurationError, "create the bucket, or correct bucket_name"),
        (429, "rateLimitExceeded", ThrottledError, "tried again"),
        (500, "backendError", SourceError, "tried again"),
        (503, "backendError", ThrottledError, "tried again"),
        (302, "", SourceError, "tried again"),
    ],
)
async def test_an_error_says_what_where_and_what_to_do(stub, status, reason, kind, advice):
    stub.fail(status, reason)
    async with opened() as one:
        with pytest.raises(kind) as caught:
            await one.read_clock()
    assert type(caught.value) is kind
    text = str(caught.value)
    assert text.startswith(f"GCS bucket 'lake', connection 'lake': listing was refused ({status}")
    assert reason in text
    assert advice in text
    assert "a secret" not in text


@pytest.mark.parametrize("fault", ["cut_off", "page_for_people", "empty_answer"])
async def test_half_an_answer_or_another_one_is_no_end_of_the_listing(stub, fault):
    for name in "abc":
        stub.put(name, created=NOON - SECOND)
    async with opened() as one:
        stub.fault(fault, times=1)
        with pytest.raises(SourceError, match="GCS bucket 'lake'"):
            await names(one)
        assert await names(one) == ["a", "b", "c"]


async def test_without_a_date_there_is_no_clock(stub):
    stub.fault("no_date")
    async with opened() as one:
        with pytest.raises(SourceError, match="without a usable Date header"):
            await one.get_high_watermark()


async def test_a_silent_server_is_an_error(stub, monkeypatch):
    monkeypatch.setattr(gcs_client, "_SILENCE_TIMEOUT", 0.05)
    stub.fault("slow", 1)
    async with opened() as one:
        with pytest.raises(SourceError, match="Timeout"):
            await one.read_clock()


async def test_a_server_that_is_gone_is_an_error(stub, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    async with opened() as one:
        with pytest.raises(SourceError, match="listing failed"):
            await one.read_clock()


async def test_a_bucket_whose_requester_pays_needs_a_project(stub):
    stub.requester_pays = True
    async with opened() as one:
        with pytest.raises(ConfigurationError, match="set user_project"):
            await one.read_clock()
    async with opened(user_project="payer") as one:
        assert await one.read_clock() == NOON


# --- identities ---------------------------------------------------------------------------------------------


async def test_a_key_is_exchanged_for_a_token_once_for_all(service, monkeypatch, private_key):
    service.tokens = ["the token"]
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", key_connection(service, private_key))
    async with opened() as one, opened() as other:
        assert one._client is other._client
        await asyncio.gather(*(each.read_clock() for each in (one, other) * 4))
    paths = [request.path for request in service.requests]
    assert paths.count("/token") == 1
    assert len(paths) == 9


async def test_a_token_that_was_revoked_is_replaced_after_the_error(service, monkeypatch, private_key):
    service.tokens = ["first"]
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", key_connection(service, private_key))
    service.put("a", created=NOON - SECOND)
    async with opened(), Watching() as watching_:  # another watcher holds the client all the time
        await watching_.until("a")
        service.tokens = ["second"]
        service.put("b", created=NOON - SECOND)
        await watching_.until("a", "b")


async def test_a_connection_without_an_identity_asks_as_nobody(service):
    service.put("a", created=NOON - SECOND)
    async with opened() as one:
        assert await names(one) == ["a"]
        service.tokens = ["somebody's"]
        with pytest.raises(ConfigurationError, match="401"):
            await names(one)


async def test_a_missing_connection_is_not_taken_for_the_machines_own_identity(
    service, monkeypatch, tmp_path
):
    monkeypatch.delenv("AIRFLOW_CONN_LAKE")
    own = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "t"}
    (tmp_path / "own.json").write_text(json.dumps(own))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "own.json"))
    with pytest.raises(ConfigurationError, match="the connection 'lake' does not exist or cannot be read"):
        await trigger().open()
    assert not service.requests


@pytest.mark.parametrize("changes", [{"private_key": "SECRET"}, {"private_key": None}], ids=str)
async def test_a_key_that_is_none_is_a_configuration_error_that_tells_no_secret(
    service, monkeypatch, private_key, changes
):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", key_connection(service, private_key, changes))
    with pytest.raises(ConfigurationError) as caught:
        async with opened() as one:
            await one.read_clock()
    assert "connection 'lake'" in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), [(400, ConfigurationError), (503, SourceError)])
async def test_a_key_that_is_refused_is_to_be_corrected_and_a_busy_identity_provider_waited_for(
    service, monkeypatch, private_key, status, kind
):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", key_connection(service, private_key))
    monkeypatch.setattr("time.sleep", lambda _: None)  # google-auth tries again by itself
    service.fail(status, "invalid_grant")
    async with opened() as one:
        with pytest.raises(kind) as caught:
            await one.read_clock()
    assert type(caught.value) is kind
    assert "RefreshError" in str(caught.value)


async def test_the_impersonation_chain_reaches_the_hook(service, monkeypatch, private_key):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", key_connection(service, private_key))
    chain = ["a@project.iam.gserviceaccount.com", "b@project.iam.gserviceaccount.com"]
    async with opened(impersonation_chain=chain) as one, opened() as other:
        credentials = one._client._credentials
        assert credentials.service_account_email == chain[-1]
        assert credentials._delegates == chain[:-1]
        assert other._client is not one._client


# --- clients are shared -------------------------------------------------------------------------------------


async def test_a_changed_connection_makes_another_client_at_the_next_opening(stub, monkeypatch):
    async with opened() as one:
        monkeypatch.setenv(
            "AIRFLOW_CONN_LAKE",
            json.dumps({"conn_type": "google_cloud_platform", "extra": {"scope": "other"}}),
        )
        async with opened() as other:
            assert other._client is not one._client


async def test_the_last_user_closes_the_client(stub):
    async with opened() as one:
        async with opened() as other:
            client = other._client
        assert not client._session.closed
        assert one._client is client
    assert client._session.closed
    async with opened() as again:
        assert again._client is not client


async def test_a_closing_that_is_cancelled_closes_the_client_all_the_same(stub):
    one = trigger()
    await one.open()
    await one.read_clock()
    session = one._client._session
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    assert session.closed


async def test_a_hundred_watchers_that_start_together_build_one_client(stub, monkeypatch):
    built = []
    ordinary = gcs_client._open_session
    monkeypatch.setattr(gcs_client, "_open_session", lambda root: built.append(root) or ordinary(root))
    triggers = [trigger() for _ in range(100)]
    await asyncio.gather(*(each.open() for each in triggers))
    assert len({id(each._client) for each in triggers}) == len(built) == 1
    session = triggers[0]._client._session
    await asyncio.gather(*(each.close() for each in triggers))
    assert session.closed


async def test_one_who_gives_up_waiting_takes_the_client_from_nobody(service, monkeypatch):
    ordinary, go_on = gcs_client._make_credentials, asyncio.Event()

    async def slowly(hook):
        await go_on.wait()
        return await ordinary(hook)

    monkeypatch.setattr(gcs_client, "_make_credentials", slowly)
    one, other = trigger(), trigger()
    opening = [asyncio.create_task(each.open()) for each in (one, other)]
    await asyncio.sleep(0.2)
    opening[0].cancel()
    await asyncio.sleep(0)
    go_on.set()
    await opening[1]
    assert await other.read_clock() == NOON
    session = other._client._session
    await other.close()
    assert session.closed


async def test_nobody_left_behind_no_client_is_built(service, monkeypatch):
    sessions = []
    ordinary = gcs_client._open_session
    monkeypatch.setattr(
        gcs_client, "_open_session", lambda root: sessions.append(ordinary(root)) or sessions[-1]
    )
    started = asyncio.Event()

    async def never(hook):
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(gcs_client, "_make_credentials", never)
    opening = asyncio.create_task(trigger().open())
    await started.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert sessions == []
    assert GcsClient._shared._entries() == {}


async def test_pages_that_arrive_together_are_parsed_in_turns_of_the_loop(stub, monkeypatch):
    from airflow.providers.watermark.triggers import gcs

    turns = 0
    parsed_in: list[int] = []

    def parse(*arguments):
        parsed_in.append(turns)
        return read_page(*arguments)

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(gcs, "read_page", parse)
    async with opened() as one:
        counting = asyncio.create_task(count_turns())
        answer = (one._client, await one._client.list_objects("lake", list_params(KeyRange(prefix=""))))
        monkeypatch.setattr(one, "_list", lambda _: asyncio.sleep(0, answer))
        await asyncio.gather(*(one.list_page(KeyRange(prefix=""), EVERYTHING) for _ in range(16)))
        counting.cancel()
    assert len(set(parsed_in)) == 16


# --- the wire -----------------------------------------------------------------------------------------------


async def test_pages_come_compressed(stub):
    stub.put("a", created=NOON - SECOND)
    async with opened() as one:
        assert await names(one) == ["a"]
    headers = stub.requests[0].headers
    assert "gzip" in headers["accept-encoding"]
    assert "gzip" in headers["user-agent"]  # Google's condition


@pytest.mark.parametrize(
    ("environment", "root", "is_emulator"),
    [
        ({}, "https://storage.googleapis.com", False),
        ({"GOOGLE_CLOUD_UNIVERSE_DOMAIN": "s3nsapis.fr"}, "https://storage.s3nsapis.fr", False),
        ({"STORAGE_EMULATOR_HOST": "http://gcs:4443/"}, "http://gcs:4443", True),
        ({"STORAGE_EMULATOR_HOST": "gcs:4443"}, "http://gcs:4443", True),
    ],
)
def test_the_service_is_googles_or_an_emulator(monkeypatch, environment, root, is_emulator):
    for name in ("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert gcs_client._service() == (root, is_emulator)


async def test_an_emulator_is_sent_no_credentials(stub, monkeypatch, private_key):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", key_connection(stub, private_key))
    async with opened() as one:
        await one.read_clock()
    assert [request.path for request in stub.requests] == ["/storage/v1/b/lake/o"]
    assert "authorization" not in stub.requests[0].headers


async def test_a_proxy_is_used_but_for_hosts_that_are_reached_directly(stub, monkeypatch):
    monkeypatch.setenv("http_proxy", stub.server.endpoint_url)
    monkeypatch.setenv("no_proxy", "")
    session = gcs_client._open_session("http://far.example")
    async with session, session.get("http://far.example/token") as response:  # by way of the stub
        assert response.status == 404
    assert stub.requests[0].path == "http://far.example/token"
    monkeypatch.setenv("no_proxy", "far.example")
    session = gcs_client._open_session("http://far.example")
    assert session._default_proxy is None
    await session.close()


# --- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"bucket_name": ""}, "bucket_name=''"),
        ({"bucket_name": "gs://lake"}, "without 'gs://'"),
        ({"bucket_name": "lake/orders"}, "without a prefix"),
        ({"bucket_name": "Lake"}, "lower-case"),
        ({"bucket_name": 7}, "bucket_name=7"),
        ({"prefix": "gs://lake/orders"}, "without the bucket"),
        ({"gcp_conn_id": ""}, "gcp_conn_id=''"),
        ({"gcp_conn_id": None}, "gcp_conn_id=None"),
        ({"user_project": ""}, "user_project=''"),
        ({"impersonation_chain": ""}, "impersonation_chain=''"),
        ({"impersonation_chain": ["a", 7]}, "impersonation_chain=7"),
        ({"impersonation_chain": 7}, "impersonation_chain=7"),
        ({"max_upload_age": 5}, "max_upload_age: unknown option"),
    ],
)
def test_a_mistake_names_the_argument(arguments, said):
    with pytest.raises(ConfigurationError) as caught:
        trigger(**arguments).serialize()
    assert said in str(caught.value)


def test_arguments_survive_the_round_trip():
    one = trigger(impersonation_chain=["a", "b"], user_project="payer")
    path, arguments = one.serialize()
    assert path == "airflow.providers.watermark.triggers.gcs.GCSPrefixTrigger"
    again = GCSPrefixTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    assert again.key == trigger().key  # who asks, and who pays, is not what is watched


async def test_without_the_extra_the_error_is_the_command(stub, monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.providers.google.cloud.hooks", None)
    monkeypatch.delitem(sys.modules, "airflow.providers.google.cloud.hooks.gcs", raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-provider-watermark\[google\]'"):
        await trigger().open()


async def test_a_loop_of_its_own_has_clients_of_its_own(stub):
    async with opened() as one:

        def elsewhere():
            async def ask():
                async with opened() as other:
                    return await other.read_clock(), other._client

            return asyncio.run(ask())

        time, client = await asyncio.to_thread(elsewhere)
        assert time == NOON
        assert client is not one._client


async def test_an_error_is_told_once_with_what_to_do(stub, caplog):
    caplog.set_level(logging.ERROR, logger="airflow.providers.watermark.triggers")
    stub.fail(404, "notFound")
    async with Watching() as watching_:
        await watching_.polls(stub, 5)
        stub.clear()
        stub.put("a", created=NOON - SECOND)
        await watching_.until("a")
    errors = [record.getMessage() for record in caplog.records]
    assert len(errors) == 1
    assert "gs://lake/" in errors[0]
    assert "create the bucket, or correct bucket_name" in errors[0]
