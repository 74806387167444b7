"""The S3 stub, asked by boto3 and aiobotocore, and held against a real emulator."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiobotocore.session
import pytest
from aiobotocore.config import AioConfig
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from devtools import s3_servers
from devtools.s3_servers import S3Server, ServerStartError
from devtools.s3_stub import StubS3

BUCKET = "lake"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

ODD_KEYS = [
    *(
        "a b",
        " leading space",
        "trailing space ",
        "a+b",
        "a%b",
        "a%20b",
        "a%2Fb",
        "a=b",
        "a&b;c",
        "a:b",
        "a\\b",
    ),
    *("a//b", "//a", "/a", "a/", "a/./b", "a/../b", "./a", "a?b#c", "*a*", "~a", "Z", "z"),
    *(
        "quote'\"<&>",
        "new\nline",
        "return\rhere",
        "tab\there",
        "control\x01",
        "delete\x7f",
        "line\u2028separator",
    ),
    *("e\u0301 decomposed", "\u00e9 composed", "日本/東京.csv", "\uffee", "\U0001f600", "\U0001f600/x"),
    *("x" * 1024, "é" * 512),
]


@pytest.fixture
def stub():
    with StubS3(BUCKET) as stub:
        yield stub


@pytest.fixture
def client(stub):
    client = stub.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def ministack():
    with s3_servers.ministack() as server:
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        yield client
        client.close()


@pytest.fixture(scope="module")
def clients(ministack):
    """Clients of the stub and of the emulator, with the same odd keys in both."""
    with StubS3(BUCKET) as stub:
        client = stub.client()
        for server in (client, ministack):
            for key in ODD_KEYS:
                server.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
        yield client, ministack
        client.close()


@contextlib.asynccontextmanager
async def aio_client(server: S3Server, **config):
    """Make an aiobotocore client that tries once, so that an error is seen the first time."""
    async with aiobotocore.session.get_session().create_client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=AioConfig(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, **config),
    ) as client:
        yield client


def named(key):
    """Name a test by its key: short, and in ASCII."""
    return ascii(key if len(key) < 30 else f"{key[0]} x {len(key)}")


def keys_of(page):
    return [entry["Key"] for entry in page.get("Contents", [])]


def listed(client, page_size=1000, **question):
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=BUCKET, PaginationConfig={"PageSize": page_size}, **question
    )
    return [key for page in pages for key in keys_of(page)]


def uploads_listed(client, page_size=1000, **question):
    pages = client.get_paginator("list_multipart_uploads").paginate(
        Bucket=BUCKET, PaginationConfig={"PageSize": page_size}, **question
    )
    return [(upload["Key"], upload["UploadId"]) for page in pages for upload in page.get("Uploads", [])]


def in_byte_order(keys):
    return sorted(keys, key=str.encode)


# --- the same questions to the stub and to an emulator ------------------------------------------------------


class TestStubAndEmulatorAgree:
    @pytest.mark.parametrize("page_size", [1, 3, 7, 1000])
    def test_on_every_odd_key_in_byte_order(self, clients, page_size):
        for client in clients:
            assert listed(client, page_size) == in_byte_order(ODD_KEYS)

    @pytest.mark.parametrize("key", ODD_KEYS, ids=named)
    def test_on_what_lies_after_a_key(self, clients, key):
        stub, ministack = (listed(client, page_size=5, StartAfter=key) for client in clients)
        assert stub == ministack
        assert stub == [other for other in in_byte_order(ODD_KEYS) if other.encode() > key.encode()]

    @pytest.mark.parametrize("after", ["", "a", "a\x00", "b", "é", "日", "\U0010ffff"], ids=named)
    def test_on_what_lies_after_a_place_between_keys(self, clients, after):
        stub, ministack = (listed(client, StartAfter=after) for client in clients)
        assert stub == ministack

    @pytest.mark.parametrize("prefix", [*ODD_KEYS, "a", "a/", "/", "//", "é", "日本/", "no such"], ids=named)
    def test_on_what_has_a_prefix(self, clients, prefix):
        stub, ministack = (listed(client, page_size=2, Prefix=prefix) for client in clients)
        assert stub == ministack
        assert stub == [key for key in in_byte_order(ODD_KEYS) if key.startswith(prefix)]

    @pytest.mark.parametrize("after", ["", "a", "a/b", "a//b", "b"])
    def test_on_a_prefix_and_a_start_together(self, clients, after):
        stub, ministack = (listed(client, Prefix="a/", StartAfter=after) for client in clients)
        assert stub == ministack

    def test_on_size_and_etag(self, clients):
        stub, ministack = (
            [
                (entry["Key"], entry["Size"], entry["ETag"], entry["StorageClass"])
                for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]
            ]
            for client in clients
        )
        assert stub == ministack

    @pytest.mark.parametrize("key", ODD_KEYS, ids=named)
    def test_on_one_object(self, clients, key):
        for client in clients:
            head = client.head_object(Bucket=BUCKET, Key=key)
            assert head["ContentLength"] == len(key.encode())
            assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == key.encode()

    def test_on_the_fields_of_a_page(self, clients):
        question = {"Bucket": BUCKET, "Prefix": "a", "StartAfter": "a b", "MaxKeys": 2}
        stub, ministack = (client.list_objects_v2(**question) for client in clients)
        assert stub.keys() == ministack.keys()
        for name in ("Name", "Prefix", "StartAfter", "MaxKeys", "KeyCount", "IsTruncated", "EncodingType"):
            assert stub[name] == ministack[name], name

    def test_on_the_fields_of_a_last_page(self, clients):
        stub, ministack = (client.list_objects_v2(Bucket=BUCKET, Prefix="no such") for client in clients)
        assert stub.keys() == ministack.keys()

    def test_on_a_multipart_object(self, clients):
        entries = []
        for client in clients:
            upload = client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
            parts = []
            for number, body in ((1, b"x" * (5 << 20)), (2, b"rest")):
                part = client.upload_part(
                    Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=number, Body=body
                )
                parts.append({"PartNumber": number, "ETag": part["ETag"]})
            client.complete_multipart_upload(
                Bucket=BUCKET, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts}
            )
            (entry,) = client.list_objects_v2(Bucket=BUCKET, Prefix="parts")["Contents"]
            entries.append((entry["Size"], entry["ETag"]))
            client.delete_object(Bucket=BUCKET, Key="parts")
        assert entries[0] == entries[1]

    @pytest.mark.parametrize("page_size", [1, 2, 1000])
    @pytest.mark.parametrize("prefix", ["", "up/", "up/é +%", "no such"])
    def test_on_uploads_in_progress(self, clients, prefix, page_size):
        keys = ["up/b", "up/a", "up/a", "up/é +%", "up/quote'\"<&>", "Up", "/up"]
        found = []
        for client in clients:
            ids = [client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"] for key in keys]
            found.append([key for key, _ in uploads_listed(client, page_size, Prefix=prefix)])
            for key, upload in zip(keys, ids, strict=True):
                client.abort_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload)
            assert uploads_listed(client) == []
        assert found[0] == found[1] == in_byte_order(key for key in keys if key.startswith(prefix))

    @pytest.mark.parametrize(
        "ask",
        [
            lambda client: client.list_objects_v2(Bucket="no-such-bucket"),
            lambda client: client.list_multipart_uploads(Bucket="no-such-bucket"),
            lambda client: client.head_bucket(Bucket="no-such-bucket"),
            lambda client: client.head_object(Bucket=BUCKET, Key="no such"),
            lambda client: client.get_object(Bucket=BUCKET, Key="no such"),
            lambda client: client.abort_multipart_upload(Bucket=BUCKET, Key="a", UploadId="none"),
        ],
        ids=["objects", "uploads", "head bucket", "head object", "get object", "abort"],
    )
    def test_on_what_is_missing(self, clients, ask):
        answers = []
        for client in clients:
            with pytest.raises(ClientError) as caught:
                ask(client)
            response = caught.value.response
            answers.append((response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]))
        assert answers[0] == answers[1]


# --- what the emulator does otherwise than AWS --------------------------------------------------------------


def test_a_page_never_has_more_than_a_thousand_keys(stub, client):
    stub.bulk("", 1001)
    page = client.list_objects_v2(Bucket=BUCKET, MaxKeys=5000)
    assert (page["MaxKeys"], page["KeyCount"], page["IsTruncated"]) == (1000, 1000, True)


def test_a_page_of_exactly_all_keys_is_not_truncated(stub, client):
    stub.bulk("", 1000)
    page = client.list_objects_v2(Bucket=BUCKET)
    assert page["KeyCount"] == 1000
    assert not page["IsTruncated"]
    assert "NextContinuationToken" not in page


def test_a_page_of_no_keys_is_not_truncated(stub, client):
    stub.put("a")
    page = client.list_objects_v2(Bucket=BUCKET, MaxKeys=0)
    assert (page["KeyCount"], page["IsTruncated"]) == (0, False)


def test_a_token_beats_start_after(stub, client):
    stub.bulk("", 10)
    token = client.list_objects_v2(Bucket=BUCKET, MaxKeys=3)["NextContinuationToken"]
    question = {"Bucket": BUCKET, "ContinuationToken": token, "MaxKeys": 3}
    plain = keys_of(client.list_objects_v2(**question))
    assert keys_of(client.list_objects_v2(**question, StartAfter="zzz")) == plain


@pytest.mark.parametrize("token", ["made up", "", "YWZ0ZXI", "YWZ0ZXI6_w=="])
def test_a_made_up_token_is_refused(client, token):
    with pytest.raises(ClientError, match="InvalidArgument"):
        client.list_objects_v2(Bucket=BUCKET, ContinuationToken=token)


def test_a_token_is_a_place_that_outlives_its_key(stub, client):
    for key in "abcd":
        stub.put(key)
    token = client.list_objects_v2(Bucket=BUCKET, MaxKeys=2)["NextContinuationToken"]
    stub.delete("b")
    stub.put("aa")
    stub.put("bb")
    assert keys_of(client.list_objects_v2(Bucket=BUCKET, ContinuationToken=token)) == ["bb", "c", "d"]


def test_an_object_that_lands_while_a_listing_is_under_way_is_seen_if_it_lies_ahead(stub, client):
    for key in ("b", "d", "f"):
        stub.put(key)

    def land(request):
        if "continuation-token" in request.params:
            stub.put("a")
            stub.put("e")

    stub.on_request = land
    assert listed(client, page_size=2) == ["b", "d", "e", "f"]


def test_a_key_of_more_than_1024_bytes_is_refused(client):
    with pytest.raises(ClientError, match="KeyTooLongError"):
        client.put_object(Bucket=BUCKET, Key="é" * 513)


async def test_a_control_character_among_uploads_needs_url_encoding(stub):
    # botocore asks for it by itself when it lists objects, and not when it lists uploads; a reply that is no
    # XML counts as a server error.
    upload = stub.create_upload("a\x01 +b")
    async with aio_client(stub.server) as client:
        with pytest.raises(ClientError, match="Internal Server Error"):
            await client.list_multipart_uploads(Bucket=BUCKET)
        page = await client.list_multipart_uploads(Bucket=BUCKET, EncodingType="url")
    assert [(found["Key"], found["UploadId"]) for found in page["Uploads"]] == [("a%01+%2Bb", upload)]


def test_a_key_marker_without_an_upload_id_passes_the_whole_key(stub, client):
    for key in ("a", "a", "b"):
        stub.create_upload(key)
    assert [key for key, _ in uploads_listed(client, KeyMarker="a")] == ["b"]


def test_what_it_does_not_imitate_is_not_implemented(stub):
    stub.put("a")
    client = stub.client()
    for ask in (
        lambda: client.list_objects(Bucket=BUCKET),
        lambda: client.list_objects_v2(Bucket=BUCKET, Delimiter="/"),
        lambda: client.list_objects_v2(Bucket=BUCKET, FetchOwner=True),
        lambda: client.list_object_versions(Bucket=BUCKET),
        lambda: client.copy_object(Bucket=BUCKET, Key="b", CopySource=f"{BUCKET}/a"),
        lambda: client.get_object_tagging(Bucket=BUCKET, Key="a"),
        lambda: client.put_object_tagging(Bucket=BUCKET, Key="a", Tagging={"TagSet": []}),
    ):
        with pytest.raises(ClientError, match="NotImplemented"):
            ask()
    client.close()


# --- the clock and multipart uploads ------------------------------------------------------------------------


def test_stamps_and_the_date_header_follow_the_clock_in_whole_seconds(stub, client):
    stub.clock = (NOON + timedelta(seconds=0.9)).timestamp
    client.put_object(Bucket=BUCKET, Key="a")
    page = client.list_objects_v2(Bucket=BUCKET)
    assert page["Contents"][0]["LastModified"] == NOON
    assert page["ResponseMetadata"]["HTTPHeaders"]["date"] == "Sun, 01 Mar 2026 12:00:00 GMT"
    assert client.head_object(Bucket=BUCKET, Key="a")["LastModified"] == NOON


def test_a_stamp_may_be_given(stub, client):
    stub.put("a", last_modified=NOON)
    assert client.list_objects_v2(Bucket=BUCKET)["Contents"][0]["LastModified"] == NOON


def test_a_multipart_object_is_stamped_with_the_second_of_its_initiation(stub, client):
    stub.clock = NOON.timestamp
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="a")["UploadId"]
    assert keys_of(client.list_objects_v2(Bucket=BUCKET)) == []
    (listed_upload,) = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert listed_upload["Initiated"] == NOON

    stub.clock = (NOON + timedelta(hours=1)).timestamp
    part = client.upload_part(Bucket=BUCKET, Key="a", UploadId=upload, PartNumber=1, Body=b"body")
    client.complete_multipart_upload(
        Bucket=BUCKET,
        Key="a",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    (entry,) = client.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert (entry["LastModified"], entry["Size"]) == (NOON, 4)
    assert uploads_listed(client) == []


def test_the_store_can_begin_complete_and_abort_uploads_by_itself(stub, client):
    first, second = stub.create_upload("a", NOON), stub.create_upload("a")
    assert uploads_listed(client) == [("a", first), ("a", second)]
    stub.complete_upload(first, b"body")
    stub.abort_upload(second)
    (entry,) = client.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert (entry["LastModified"], entry["Size"]) == (NOON, 4)
    assert entry["ETag"].endswith('-1"')
    assert uploads_listed(client) == []


# --- very many keys -----------------------------------------------------------------------------------------


def test_a_million_keys_cost_no_time_to_set_up_and_can_be_entered_anywhere(stub, client):
    began = time.monotonic()
    keys = stub.bulk("orders/", 1_000_000, last_modified=NOON)
    assert time.monotonic() - began < 0.5
    assert 105 <= len(keys[0]) <= 115
    page = client.list_objects_v2(Bucket=BUCKET, Prefix="orders/", StartAfter=keys[999_990])
    assert keys_of(page) == [keys[index] for index in range(999_991, 1_000_000)]
    assert {entry["LastModified"] for entry in page["Contents"]} == {NOON}
    assert len({entry["ETag"] for entry in page["Contents"]}) == 9


def test_keys_of_a_bulk_are_sorted_and_distinct_over_the_borders_of_hours_and_days(stub):
    keys = stub.bulk("orders/", 100_000)
    found = [keys[index] for index in range(len(keys))]
    assert found == sorted(set(found))


def test_single_objects_and_several_bulks_are_listed_as_one(stub, client):
    left, right = stub.bulk("a/", 1500), stub.bulk("b/", 1500, lambda index: NOON + timedelta(seconds=index))
    stub.put("aa")
    stub.put("c")
    stub.delete(left[3])
    stub.delete(left[4])
    stub.put(left[4], b"new")
    stub.put(right[5], b"new")
    expected = {*(left[index] for index in range(1500)), *(right[index] for index in range(1500)), "aa", "c"}
    assert listed(client, page_size=700) == sorted(expected - {left[3]})
    sizes = {entry["Key"]: entry["Size"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]}
    assert (sizes[left[4]], sizes[left[5]]) == (3, 1024)
    assert client.head_object(Bucket=BUCKET, Key=right[7])["LastModified"] == NOON + timedelta(seconds=7)
    with pytest.raises(ClientError, match="404"):
        client.head_object(Bucket=BUCKET, Key=left[3])


def test_it_also_runs_as_a_process_of_its_own():
    with s3_servers.stub(objects=2500, prefix="orders/") as server:
        client = server.client()
        assert len(listed(client, Prefix="orders/")) == 2500
        client.close()
    with pytest.raises(OSError, match="refused"):
        _connect(server)


# --- errors and faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("SlowDown", 503),
        ("AccessDenied", 403),
        ("NoSuchBucket", 404),
        ("ExpiredToken", 400),
        ("InternalError", 500),
    ],
)
async def test_errors_are_answered_until_they_are_cleared(stub, error, status):
    stub.fail(error)
    async with aio_client(stub.server) as client:
        for _ in range(2):
            with pytest.raises(ClientError) as caught:
                await client.list_objects_v2(Bucket=BUCKET)
            assert caught.value.response["Error"]["Code"] == error
            assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        stub.clear()
        assert (await client.list_objects_v2(Bucket=BUCKET))["KeyCount"] == 0


async def test_an_error_can_be_limited_to_an_operation_and_to_a_number_of_requests(stub):
    stub.fail("AccessDenied", operation="ListMultipartUploads", times=1)
    async with aio_client(stub.server) as client:
        await client.list_objects_v2(Bucket=BUCKET)
        with pytest.raises(ClientError, match="AccessDenied"):
            await client.list_multipart_uploads(Bucket=BUCKET)
        await client.list_multipart_uploads(Bucket=BUCKET)


async def test_a_client_that_retries_gets_over_some_errors(stub, client):
    stub.fail("SlowDown", times=1)
    assert client.list_objects_v2(Bucket=BUCKET)["ResponseMetadata"]["RetryAttempts"] == 1


async def test_a_listing_can_be_truncated_without_a_token(stub):
    stub.bulk("", 5)
    stub.fault("truncated_without_token", times=1)
    async with aio_client(stub.server) as client:
        await client.head_bucket(Bucket=BUCKET)  # not a listing: does not use the fault up
        page = await client.list_objects_v2(Bucket=BUCKET, MaxKeys=2)
        assert page["IsTruncated"]
        assert "NextContinuationToken" not in page
        assert "NextContinuationToken" in await client.list_objects_v2(Bucket=BUCKET, MaxKeys=2)


async def test_a_listing_can_name_the_same_token_for_ever(stub):
    stub.bulk("", 5)
    stub.fault("same_token_twice")
    async with aio_client(stub.server) as client:
        first = await client.list_objects_v2(Bucket=BUCKET, MaxKeys=2)
        token = first["NextContinuationToken"]
        second = await client.list_objects_v2(Bucket=BUCKET, MaxKeys=2, ContinuationToken=token)
        assert second["NextContinuationToken"] == token
        assert second["IsTruncated"]


async def test_a_listing_of_uploads_has_the_same_two_faults(stub):
    upload = stub.create_upload("a b")
    async with aio_client(stub.server) as client:
        stub.fault("truncated_without_token", operation="ListMultipartUploads", times=1)
        page = await client.list_multipart_uploads(Bucket=BUCKET)
        assert page["IsTruncated"]
        assert "NextKeyMarker" not in page
        stub.fault("same_token_twice", operation="ListMultipartUploads", times=2)
        for marker in ({}, {"KeyMarker": "a b", "UploadIdMarker": upload}):
            page = await client.list_multipart_uploads(Bucket=BUCKET, **marker)
            assert (page["NextKeyMarker"], page["NextUploadIdMarker"]) == ("a b", upload)


async def test_a_reply_can_be_cut_off(stub):
    stub.bulk("", 1000)
    stub.fault("cut_off", times=1)
    async with aio_client(stub.server) as client:
        with pytest.raises(Exception, match=r"(?i)payload|not enough data|incomplete|closed"):
            await client.list_objects_v2(Bucket=BUCKET)
        assert (await client.list_objects_v2(Bucket=BUCKET))["KeyCount"] == 1000


async def test_a_reply_can_lack_its_date(stub):
    stub.fault("no_date", times=1)
    async with aio_client(stub.server) as client:
        page = await client.list_objects_v2(Bucket=BUCKET)
        assert "date" not in page["ResponseMetadata"]["HTTPHeaders"]
        page = await client.list_objects_v2(Bucket=BUCKET)
        assert "date" in page["ResponseMetadata"]["HTTPHeaders"]


async def test_a_reply_can_be_slow(stub):
    stub.fault("slow", 5, times=1)
    async with aio_client(stub.server, read_timeout=0.2) as client:
        with pytest.raises(ReadTimeoutError):
            await client.list_objects_v2(Bucket=BUCKET)
        await client.list_objects_v2(Bucket=BUCKET)


def test_a_fault_that_does_not_exist_is_refused(stub):
    with pytest.raises(ValueError, match="no such fault: 'slwo'"):
        stub.fault("slwo", 5)


async def test_a_stopped_server_refuses_connections_and_comes_back_with_all_it_had(stub):
    stub.put("a")
    async with aio_client(stub.server) as client:
        await client.list_objects_v2(Bucket=BUCKET)
        stub.stop()
        with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
            await client.list_objects_v2(Bucket=BUCKET)
        with pytest.raises(EndpointConnectionError):
            await client.list_objects_v2(Bucket=BUCKET)
        stub.start()
        assert keys_of(await client.list_objects_v2(Bucket=BUCKET)) == ["a"]


def test_a_port_that_is_taken_is_an_error(stub):
    with pytest.raises(OSError, match="in use"):
        StubS3(port=stub.port).start()


# --- the access log -----------------------------------------------------------------------------------------


async def test_requests_are_logged_with_their_parameters(stub):
    stub.fail("AccessDenied", operation="HeadObject")
    async with aio_client(stub.server) as client:
        await client.put_object(Bucket=BUCKET, Key="é b")
        await client.list_objects_v2(Bucket=BUCKET, Prefix="é", StartAfter="a", RequestPayer="requester")
        with pytest.raises(ClientError):
            await client.head_object(Bucket=BUCKET, Key="é b")
    operations = [(request.operation, request.key) for request in stub.requests]
    assert operations == [("PutObject", "é b"), ("ListObjectsV2", ""), ("HeadObject", "é b")]
    expected = {"prefix": "é", "start-after": "a", "x-amz-request-payer": "requester"}
    assert expected.items() <= stub.requests[1].params.items()


def test_a_bucket_of_another_owner_than_expected_is_denied(client):
    client.list_objects_v2(Bucket=BUCKET, ExpectedBucketOwner="000000000000")
    with pytest.raises(ClientError, match="AccessDenied"):
        client.list_objects_v2(Bucket=BUCKET, ExpectedBucketOwner="111111111111")


# --- servers as child processes -----------------------------------------------------------------------------


def test_a_server_that_cannot_start_says_why(stub):
    with (
        pytest.raises(ServerStartError, match="already in use"),
        s3_servers.ministack(port=stub.port),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_parent_leaves_no_server(tmp_path):
    script = """
import time
from devtools.s3_servers import stub
with stub() as server:
    print(server.endpoint_url, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(s3_servers.__file__).parents[1]), "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout
        server = S3Server(name="stub", endpoint_url=parent.stdout.readline().strip())
        _connect(server)
        parent.send_signal(signal.SIGKILL)
    assert _refuses(server, within=10)


def _refuses(server: S3Server, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            _connect(server)
        except ConnectionRefusedError:
            return True
        time.sleep(0.05)
    return False


def _connect(server: S3Server) -> None:
    host, _, port = server.endpoint_url.removeprefix("http://").partition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
