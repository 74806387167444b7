"""Watch a prefix in an S3 bucket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from urllib.parse import unquote_plus

from airflow.providers.watermark.change import HighWatermark
from airflow.providers.watermark.exceptions import ConfigurationError, SourceError
from airflow.providers.watermark.objects.listing import Interest, KeyRange, ListedObject, Listing
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.object_store import ObjectStoreTrigger, parse_date

__all__ = ["S3PrefixTrigger"]

STEP: Final = timedelta(seconds=1)
"""S3 lists whole seconds. Some servers list finer ones, but HTTP dates are whole seconds everywhere."""

_ADVICE: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket, or correct bucket_name or the connection's endpoint",
    "AccessDenied": "allow s3:ListBucket on the bucket to the connection's identity",
    "AllAccessDisabled": "allow s3:ListBucket on the bucket to the connection's identity",
    "403": "allow s3:ListBucket on the bucket to the connection's identity",
    "InvalidAccessKeyId": "correct the connection's access key",
    "SignatureDoesNotMatch": "correct the connection's secret key",
    "ExpiredToken": "renew the connection's credentials",
    "ExpiredTokenException": "renew the connection's credentials",
    "InvalidToken": "renew the connection's credentials",
    "TokenRefreshRequired": "renew the connection's credentials",
    "RequestTimeTooSkewed": "set this machine's clock: S3 refuses requests that are signed 15 minutes off",
    "PermanentRedirect": "set region_name, or the connection's, to the bucket's region",
    "AuthorizationHeaderMalformed": "set region_name, or the connection's, to the bucket's region",
    "IllegalLocationConstraintException": "set region_name, or the connection's, to the bucket's region",
    "InvalidBucketName": "correct bucket_name",
}
"""What to do about the errors that do not go away by waiting."""

_NO_UPLOAD_LISTS: Final = frozenset(
    {"AccessDenied", "AllAccessDisabled", "403", "NotImplemented", "MethodNotAllowed", "501", "405"}
)


class S3PrefixTrigger(ObjectStoreTrigger):
    """
    Deliver each new or overwritten object under a prefix.

    An object is news when it has a new etag or a newer ``LastModified``. Deletions are not delivered, and
    neither are folder markers (keys that end in ``/`` and hold no bytes) nor a version that was replaced
    before it was listed. A prefix is plain text: ``a/b`` also matches ``a/bc``.

    Multipart uploads appear with the time at which they were *begun* (`S3 API, CompleteMultipartUpload`).
    Each sweep therefore asks for the uploads in progress, and delivers what becomes of them however long
    they take, up to ``max_upload_age``. Without the permission ``s3:ListBucketMultipartUploads`` only
    uploads that take less than ``late_arrival`` are safe; the log says so.

    Each sweep lists the whole prefix: one request per 1,000 objects, and one for the uploads.

    :param bucket_name: The bucket, without ``s3://``. Directory buckets (``--x-s3``) do not list in order
        and are refused; of access points, use the alias.
    :param aws_conn_id: The Airflow connection, which also holds the endpoint, role, proxies and botocore
        settings; ``None`` means boto's own search for credentials.
    :param region_name: Overrides the connection's region.
    :param verify: Overrides the connection's TLS verification: ``False``, or the path of a CA bundle.
    :param max_upload_age: Seconds, at least 0: multipart uploads begun longer ago are not watched for.
    :param request_payer: ``"requester"`` if the caller pays.
    :param expected_bucket_owner: The account that must own the bucket.

    See :class:`~airflow.providers.watermark.triggers.object_store.ObjectStoreTrigger` for the others.
    """

    watcher_name: ClassVar[str] = "s3"
    source_fields: ClassVar[tuple[str, ...]] = ("bucket_name", "prefix", "pattern", "exclude")

    bucket_name: str = ""
    aws_conn_id: str | None = "aws_default"
    region_name: str | None = None
    verify: bool | str | None = None
    max_upload_age: float = 86400.0
    request_payer: str | None = None
    expected_bucket_owner: str | None = None

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        super().__post_init__()
        self._client: Any = None
        self._resources = AsyncExitStack()

    @property
    def source(self) -> str:
        """The prefix as a URI."""
        return f"s3://{self.bucket_name}/{self.prefix}"

    @property
    def where(self) -> str:
        """Name the bucket in an error."""
        return f"S3 bucket {self.bucket_name!r}"

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments."""
        yield from super().problems()
        yield from _bucket_problems(self.bucket_name)
        for name in ("aws_conn_id", "region_name", "expected_bucket_owner"):
            yield from arguments.text(name, getattr(self, name), optional=True)
        verify: object = self.verify
        if verify == "" or not isinstance(verify, bool | str | None):
            yield f"verify={self.verify!r}: must be True, False, None or the path of a CA bundle"
        yield from arguments.number("max_upload_age", self.max_upload_age)
        if self.request_payer not in (None, "requester"):
            yield f"request_payer={self.request_payer!r}: must be 'requester' or None"

    # -- The client -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Build the client from the Airflow connection."""
        await super().open()
        try:
            from airflow.providers.amazon.aws.hooks.s3 import S3Hook
        except ImportError as error:
            msg = f"{error}; pip install 'airflow-provider-watermark[amazon]' where the triggerer runs"
            raise ConfigurationError(msg) from error
        hook = S3Hook(aws_conn_id=self.aws_conn_id, region_name=self.region_name, verify=self.verify)
        try:
            creator = await hook.get_async_conn()
        except Exception as error:
            raise self._error("the client", error) from error
        stack = AsyncExitStack()
        self._client = await stack.enter_async_context(creator)
        self._resources = stack
        # The hook takes a connection that is missing, or cannot be read just now, for an empty one, and
        # would ask another S3 with other credentials: a listing from there must never move the watermark.
        # Found out only here, since a creator that is never entered warns that it was never awaited.
        if self.aws_conn_id is not None and hook.conn_config.conn_id != self.aws_conn_id:
            msg = (
                f"the connection {self.aws_conn_id!r} does not exist or cannot be read; create it, or set "
                "aws_conn_id=None for boto's own search for credentials"
            )
            raise ConfigurationError(msg)
        self._client.meta.events.register("before-parse.*.ListObjectsV2", _parse_off_loop)

    async def close(self) -> None:
        """Close the client."""
        stack, self._resources, self._client = self._resources, AsyncExitStack(), None
        try:
            await stack.aclose()
        except Exception as error:  # noqa: BLE001 - it is gone anyway
            self.log.debug("The client could not be closed: %s", type(error).__name__)

    async def _call(self, operation: str, **kwargs: Any) -> dict[str, Any]:
        """Send a request; all errors become ours, here."""
        if self.expected_bucket_owner is not None:
            kwargs["ExpectedBucketOwner"] = self.expected_bucket_owner
        if self.request_payer is not None:
            kwargs["RequestPayer"] = self.request_payer
        try:
            answer: dict[str, Any] = await getattr(self._client, operation)(Bucket=self.bucket_name, **kwargs)
        except Exception as error:
            raise self._error(operation, error) from error
        return answer

    def _error(self, operation: str, error: Exception) -> ConfigurationError | SourceError:
        """Wrap an error of boto's: what happened, where, and what to do."""
        code = _error_code(error)
        where = f"S3 bucket {self.bucket_name!r}, connection {self.aws_conn_id!r}: {operation} failed"
        if advice := _ADVICE.get(code):
            return ConfigurationError(f"{where} ({code}); {advice}")
        if code in {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
            return ConfigurationError(f"{where} ({code}); give the connection credentials")
        return SourceError(f"{where} ({code}); it is tried again, and nothing is lost")

    # -- The two questions ----------------------------------------------------------------------------

    async def get_high_watermark(self) -> HighWatermark:
        """Read S3's clock and the uploads in progress."""
        now, late = await self._uploads()
        return HighWatermark.from_clock(now, late_arrival=self.late_arrival, step=STEP, late=late)

    async def _uploads(self) -> tuple[datetime, dict[str, datetime] | None]:
        """
        List the uploads in progress.

        :return: S3's clock; and each key's earliest upload, to the second, or ``None`` if it is not told.
        """
        pages = self._upload_pages()
        late: dict[str, datetime] = {}
        stale = 0
        try:
            first = await anext(pages)
        except (ConfigurationError, SourceError) as error:
            code = _error_code(error.__cause__)
            if code not in _NO_UPLOAD_LISTS:
                raise
            self.say_once(
                "uploads",
                f"S3 does not list multipart uploads ({code}): uploads that take longer than "
                f"late_arrival={self.late_arrival:g} s may be lost. Allow s3:ListBucketMultipartUploads",
            )
            return await self.confirm_clock(await self.read_clock()), None
        self.say_once("uploads", False)  # noqa: FBT003
        now = await self.confirm_clock(self._date(first))
        oldest = now - timedelta(seconds=self.max_upload_age)
        page: dict[str, Any] | None = first
        while page is not None:
            for upload in page.get("Uploads", ()):
                key: str = upload["Key"]
                begun = upload["Initiated"].astimezone(UTC).replace(microsecond=0)
                if begun < oldest:
                    stale += 1
                elif self.wants(key):
                    late[key] = min(begun, late.get(key, begun))
            page = await anext(pages, None)
        self.say_once(
            "stale uploads",
            stale > 0
            and f"{stale} multipart uploads are older than max_upload_age={self.max_upload_age:g} s and are "
            "not watched for; abort them with a lifecycle rule, they also cost storage",
        )
        return now, late

    async def read_clock(self) -> datetime:
        """Read S3's clock with a small request."""
        return self._date(await self._call("list_objects_v2", Prefix=self.prefix, MaxKeys=1))

    def _date(self, answer: Mapping[str, Any]) -> datetime:
        return parse_date(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), "S3")

    async def _upload_pages(self) -> AsyncGenerator[dict[str, Any], None]:
        """List the uploads in progress, page by page, with keys as they are."""
        # Without url-encoding a control character in a key makes the answer unreadable. Other than for
        # listings of objects, botocore does not see to it; some servers ignore it.
        start: dict[str, str] = {}
        starts: list[dict[str, str]] = []
        while True:
            starts.append(start)
            page = await self._call("list_multipart_uploads", Prefix=self.prefix, EncodingType="url", **start)
            decode = unquote_plus if page.get("EncodingType") == "url" else str
            for upload in page.get("Uploads", ()):
                upload["Key"] = decode(upload["Key"])
            yield page
            if not page.get("IsTruncated"):
                return
            following = {}
            if page.get("NextKeyMarker"):
                following["KeyMarker"] = decode(page["NextKeyMarker"])
            if page.get("NextUploadIdMarker"):
                following["UploadIdMarker"] = page["NextUploadIdMarker"]
            if not following or following in starts:
                msg = f"S3 bucket {self.bucket_name!r}: the list of uploads breaks off; it is tried again"
                raise SourceError(msg)
            start = following

    async def list_page(
        self,
        keys: KeyRange,
        interest: Interest,  # noqa: ARG002
        *,
        token: str | None = None,
        limit: int | None = None,
    ) -> Listing:
        """List a page, sending one request."""
        asked: dict[str, Any] = {"Prefix": keys.prefix}
        if token is not None:
            asked["ContinuationToken"] = token
        elif keys.after:
            asked["StartAfter"] = keys.after
        if limit is not None:
            asked["MaxKeys"] = limit
        answer = await self._call("list_objects_v2", **asked)
        found = [_listed(entry) for entry in answer.get("Contents", ())]
        return Listing(
            objects=found,
            first=found[0].key if found else None,
            last=found[-1].key if found else None,
            count=len(found),
            token=answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else None,
        )

    def describe(self, found: ListedObject) -> dict[str, Any]:
        """Give the etag."""
        return {"etag": found.version}


def _listed(entry: Mapping[str, Any]) -> ListedObject:
    return ListedObject(
        key=entry["Key"],
        modified=entry["LastModified"].astimezone(UTC),
        size=entry["Size"],
        version=entry.get("ETag", "").strip('"'),
    )


def _error_code(error: BaseException | None) -> str:
    """Name an error of boto's: S3's own code for it, or else its class. Its text may hold secrets."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        return str(answer.get("Error", {}).get("Code") or type(error).__name__)
    return type(error).__name__


def _bucket_problems(bucket: object) -> Iterator[str]:
    shown = f"bucket_name={bucket!r}"
    if not isinstance(bucket, str) or not bucket:
        yield f"{shown}: must be a bucket's name"
    elif "://" in bucket or "/" in bucket or bucket.startswith("arn:"):
        yield f"{shown}: must be a bucket's name alone, without 's3://' and without a prefix or an ARN"
    elif bucket.endswith("--x-s3"):
        yield f"{shown}: directory buckets do not list in key order and cannot be watched"
    elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", bucket):
        yield f"{shown}: must be a bucket's name: 3 to 255 letters, digits, dots, hyphens or underscores"


async def _parse_off_loop(
    response_dict: dict[str, Any], operation_model: Any, customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """
    Parse a page of a listing in a thread: on the loop it would hold all triggers for 50 to 100 ms.

    A handler of botocore's public event ``before-parse``, registered with a wildcard because those run
    before botocore's own ``before-parse.s3``, which parses the whole body once more to find errors that
    come with status 200. What is no listing, such as an error, is left to botocore.
    """
    from botocore.parsers import ResponseParserFactory

    body = response_dict["body"]
    if response_dict["status_code"] != 200 or b"<ListBucketResult" not in body[:512]:
        return
    factory = ResponseParserFactory()
    factory.set_parser_defaults(timestamp_parser=datetime.fromisoformat)  # dateutil takes four times as long
    parser = factory.create_parser("rest-xml")
    parsed = await asyncio.to_thread(parser.parse, dict(response_dict), operation_model.output_shape)
    response_dict["body"] = b"<ListBucketResult/>"
    customized_response_dict.update(parsed)
