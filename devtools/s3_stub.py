"""An S3 server of our own: very many keys, a clock to turn, and errors on demand.

In a test, where the helpers act on the store itself and not through S3::

    with StubS3() as stub:
        stub.put("orders/1.csv", b"id")
        stub.fail("SlowDown", times=2)
        stub.client().list_objects_v2(Bucket=stub.bucket)

or as a process: ``python -m devtools.s3_stub --port 9000 --objects 1000000``.

It imitates what a watcher of a prefix sees of S3: ``ListObjectsV2`` (UTF-8 byte order, pages of at most 1,000
keys, ``StartAfter`` exclusive and ignored when there is a token, opaque tokens that name a place and not a
state), ``ListMultipartUploads``, whole-second ``LastModified``, an object of a multipart upload stamped with
the second in which the upload was *initiated*, and a ``Date`` header from the same clock.

It differs from AWS:

* one bucket, path-style addressing, plain HTTP, no versions, no signatures: any credentials do;
* the operations in ``s3_wire.OPERATIONS`` only, without delimiters, ranges, conditions and copies. What it
  does not know is answered ``501 NotImplemented``, so that nothing passes by luck;
* upload ids sort by age, where AWS orders the uploads of one key by age and their ids are random;
* a multipart upload that completes always becomes the current object, its parts may have any size, and
  checksums other than the ETag are ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from itertools import islice
from typing import Any, Literal, get_args

from devtools.s3_servers import S3Server
from devtools.s3_store import S3Error, Store, Upload, md5
from devtools.s3_wire import (
    PHRASES,
    Call,
    Reply,
    Request,
    Rule,
    iso,
    key_of,
    read,
    tag,
    token_of,
    xml,
    xml_reply,
)
from devtools.stub_server import StubServer

Fault = Literal["truncated_without_token", "same_token_twice", "cut_off", "no_date", "slow"]

ACCOUNT = "000000000000"
"""The owner of the bucket, for ``ExpectedBucketOwner``."""


class StubS3(StubServer, Store):
    """The server: a context manager that serves from a thread of its own. Every method is thread-safe.

    :param bucket: the name of its one bucket.
    :param port: the loopback port; 0 takes a free one, and keeps it over :meth:`stop` and :meth:`start`.
    """

    def __init__(self, bucket: str = "lake", *, port: int = 0) -> None:
        Store.__init__(self)
        StubServer.__init__(self, "s3-stub", port)
        self.bucket = bucket
        self.requests: deque[Request] = deque(maxlen=100_000)
        """The access log, oldest first, requests answered with an error included."""
        self.on_request: Callable[[Request], None] | None = None
        """Called before each request is answered: to change the store between two pages, say."""
        self._rules: list[Rule] = []
        self._operations: dict[str, Callable[[Call], Reply]] = {
            "HeadBucket": lambda _: Reply(headers={"x-amz-bucket-region": self.server.region}),
            "ListObjectsV2": self._list_objects,
            "ListMultipartUploads": self._list_uploads,
            "GetObject": self._get_object,
            "HeadObject": self._get_object,
            "PutObject": lambda call: Reply(headers={"ETag": f'"{self.put(call.key, call.body)}"'}),
            "DeleteObject": self._delete_object,
            "CreateMultipartUpload": self._create_upload,
            "UploadPart": self._upload_part,
            "CompleteMultipartUpload": self._complete_upload,
            "AbortMultipartUpload": self._abort_upload,
        }

    @property
    def server(self) -> S3Server:
        """How to reach it, as for the other servers."""
        return S3Server(name="stub", endpoint_url=f"http://127.0.0.1:{self.port}")

    @property
    def endpoint_url(self) -> str:
        """The address."""
        return self.server.endpoint_url

    def client(self) -> Any:
        """Return a new boto3 client."""
        return self.server.client()

    def airflow_connection_json(self) -> str:
        """Return an Airflow AWS connection as JSON text."""
        return self.server.airflow_connection_json()

    def fail(
        self,
        error: str = "InternalError",
        *,
        operation: str | None = None,
        times: int | None = None,
        status: int | None = None,
    ) -> None:
        """Answer requests with an S3 error.

        :param error: its code, such as ``SlowDown``, ``AccessDenied``, ``NoSuchBucket`` or ``ExpiredToken``.
        :param operation: only this one, ``ListObjectsV2`` say; None for all.
        :param times: for so many requests (a client retries some errors itself); None until :meth:`clear`.
        :param status: the HTTP status; None for the one that AWS gives this error.
        """
        self._add(Rule("error", operation, times, error=S3Error(error, "injected", status)))

    def fault(
        self, kind: Fault, seconds: float = 0, *, operation: str | None = None, times: int | None = None
    ) -> None:
        """Answer requests oddly.

        ``truncated_without_token``: every page says that there is more and not how to get at it.
        ``same_token_twice``: every page says that there is more, at one and the same token.
        ``cut_off``: the connection closes in the middle of the reply. ``no_date``: no ``Date`` header.
        ``slow``: the reply waits for ``seconds``.

        :param operation: only this one; None for all that can have the fault.
        :param times: for so many requests; None until :meth:`clear`.
        """
        if kind not in get_args(Fault):
            raise ValueError(f"no such fault: {kind!r}; there are {', '.join(get_args(Fault))}")
        self._add(Rule(kind, operation, times, seconds=seconds))

    def clear(self) -> None:
        """Answer correctly again."""
        with self._lock:
            self._rules.clear()

    def _add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _take_rules(self, operation: str) -> dict[str, Rule]:
        """Return the oldest rule of each kind that concerns the operation, and count it as used once."""
        with self._lock:
            rules = {rule.kind: rule for rule in reversed(self._rules) if rule.concerns(operation)}
            for rule in rules.values():
                rule.times = None if rule.times is None else rule.times - 1
            self._rules = [rule for rule in self._rules if rule.times is None or rule.times > 0]
        return rules

    def _list_objects(self, call: Call) -> Reply:
        token, limit = call.request.params.get("continuation-token"), call.limit("max-keys")
        after = call.get("start-after") if token is None else key_of(token)
        with self._lock:
            found = list(islice(self.walk(call.get("prefix"), after), limit + 1))
        page = found[:limit]
        last = page[-1][0] if page else after
        place, truncated = call.going_on(last if page and len(found) > limit else "", last=last)
        return xml_reply(
            "ListBucketResult",
            tag("Name", self.bucket),
            tag("Prefix", call.encode(call.get("prefix"))),
            tag("StartAfter", call.encode(call.get("start-after"))) if call.get("start-after") else "",
            tag("ContinuationToken", token) if token else "",
            tag("NextContinuationToken", token_of(place)) if place else "",
            tag("KeyCount", len(page)),
            tag("MaxKeys", limit),
            tag("EncodingType", "url") if call.get("encoding-type") else "",
            tag("IsTruncated", str(truncated).lower()),
            *(
                f"<Contents><Key>{call.encode(key)}</Key><LastModified>{iso(stored.last_modified)}"
                f"</LastModified><ETag>&quot;{stored.etag}&quot;</ETag><Size>{len(stored.body)}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
                for key, stored in page
            ),
        )

    def _list_uploads(self, call: Call) -> Reply:
        limit, marker = call.limit("max-uploads"), (call.get("key-marker"), call.get("upload-id-marker"))
        # Without an id the marker means the whole key.
        found = [
            upload
            for upload in self.uploads(call.get("prefix"))
            if (upload[:2] > marker if marker[1] else upload[0] > marker[0])
        ]
        page = found[:limit]
        last = " ".join(page[-1][1::-1] if page else reversed(marker))  # an id has no space
        place, truncated = call.going_on(last if page and len(found) > limit else "", last=last)
        next_id, _, next_key = place.partition(" ")
        return xml_reply(
            "ListMultipartUploadsResult",
            tag("Bucket", self.bucket),
            tag("Prefix", call.encode(call.get("prefix"))),
            tag("KeyMarker", call.encode(marker[0])),
            tag("UploadIdMarker", marker[1]),
            tag("NextKeyMarker", call.encode(next_key)) if place else "",
            tag("NextUploadIdMarker", next_id) if place else "",
            tag("MaxUploads", limit),
            tag("EncodingType", "url") if call.get("encoding-type") else "",
            tag("IsTruncated", str(truncated).lower()),
            *(
                f"<Upload><Key>{call.encode(key)}</Key><UploadId>{upload_id}</UploadId>"
                f"<StorageClass>STANDARD</StorageClass><Initiated>{iso(initiated)}</Initiated></Upload>"
                for key, upload_id, initiated in page
            ),
        )

    def _get_object(self, call: Call) -> Reply:
        stored = self.find(call.key)
        modified = formatdate(stored.last_modified, usegmt=True)
        return Reply(stored.body, {"ETag": f'"{stored.etag}"', "Last-Modified": modified})

    def _delete_object(self, call: Call) -> Reply:
        self.delete(call.key)
        return Reply(status=204)

    def _create_upload(self, call: Call) -> Reply:
        upload_id = self.create_upload(call.key)
        key = tag("Key", xml(call.key))
        return xml_reply("InitiateMultipartUploadResult", key, tag("UploadId", upload_id))

    def _upload_part(self, call: Call) -> Reply:
        upload = self._upload_of(call)
        upload.parts[int(call.get("partNumber"))] = call.body
        return Reply(headers={"ETag": f'"{md5(call.body).hex()}"'})

    def _complete_upload(self, call: Call) -> Reply:
        parts = self._upload_of(call).parts
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", call.body)]
        if not numbers or not set(numbers) <= set(parts):
            raise S3Error("InvalidPart", f"asked for parts {numbers}, there are {sorted(parts)}")
        etag = self.complete_upload(call.get("uploadId"), *(parts[number] for number in numbers))
        key = tag("Key", xml(call.key))
        return xml_reply("CompleteMultipartUploadResult", key, tag("ETag", f"&quot;{etag}&quot;"))

    def _abort_upload(self, call: Call) -> Reply:
        self._upload_of(call)
        self.abort_upload(call.get("uploadId"))
        return Reply(status=204)

    def _upload_of(self, call: Call) -> Upload:
        upload = self.upload(call.get("uploadId"))
        if upload.key != call.key:
            raise S3Error("NoSuchUpload", call.get("uploadId"))
        return upload

    def _reply(self, call: Call) -> Reply:
        try:
            return self._operation(call)(call)
        except S3Error as error:
            reply = xml_reply("Error", tag("Code", error.code), tag("Message", xml(error.message)))
            reply.status = error.status
            return reply

    def _operation(self, call: Call) -> Callable[[Call], Reply]:
        if (rule := call.rules.get("error")) and rule.error:
            raise rule.error
        if call.bucket != self.bucket:
            raise S3Error("NoSuchBucket", call.bucket)
        if call.get("x-amz-expected-bucket-owner") not in {"", ACCOUNT}:
            raise S3Error("AccessDenied", f"the bucket belongs to {ACCOUNT}")
        if call.request.operation not in self._operations:
            raise S3Error("NotImplemented", call.request.operation)
        return self._operations[call.request.operation]

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection goes on."""
        method, call = await read(reader, writer)
        self.requests.append(call.request)
        if self.on_request:
            self.on_request(call.request)
        call.rules = self._take_rules(call.request.operation)
        if "slow" in call.rules:
            await asyncio.sleep(call.rules["slow"].seconds)
        reply = self._reply(call)
        headers = {
            "Date": formatdate(self.clock(), usegmt=True),
            "Content-Length": str(len(reply.body)),
            **reply.headers,
        }
        if "no_date" in call.rules:
            del headers["Date"]
        lines = [
            f"HTTP/1.1 {reply.status} {PHRASES.get(reply.status, 'Unknown')}",
            *map(": ".join, headers.items()),
            "",
            "",
        ]
        message = "\r\n".join(lines).encode() + (reply.body if method != "HEAD" else b"")
        cut_off = "cut_off" in call.rules
        writer.write(message[: -1 - len(reply.body) // 2] if cut_off else message)
        await writer.drain()
        return not cut_off


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m devtools.s3_stub", description="A fast S3 stub.")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 (the default) takes a free one")
    parser.add_argument("--bucket", default="lake")
    parser.add_argument("--prefix", default="orders/", help="of the keys that are there from the start")
    parser.add_argument("--objects", type=int, default=0, help="how many keys are there from the start")
    parser.add_argument("--age", type=float, default=86400, help="of those keys, in seconds")
    parser.add_argument("--delay", type=float, default=0, help="seconds before each reply")
    options = parser.parse_args()
    with StubS3(options.bucket, port=options.port) as stub, contextlib.suppress(KeyboardInterrupt):
        stub.bulk(options.prefix, options.objects, datetime.now(UTC) - timedelta(seconds=options.age))
        if options.delay:
            stub.fault("slow", options.delay)
        print(
            f"{options.objects:,} objects in s3://{stub.bucket}/{options.prefix} at {stub.endpoint_url}",
            flush=True,
        )
        threading.Event().wait()


if __name__ == "__main__":
    main()
