"""What S3 looks like on the wire, for :mod:`devtools.s3_stub`: requests, tokens and XML."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import http
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote_plus, unquote

from devtools.s3_store import S3Error

if TYPE_CHECKING:
    import asyncio

_PAGE_LIMIT = 1000
PHRASES = {status.value: status.phrase for status in http.HTTPStatus}
_URL_UNSAFE = re.compile(r"[^A-Za-z0-9_.~/-]")
_XML_UNSAFE = re.compile(r"[&<>\"\x00-\x1f\x7f]")

# (method, is there a key, sub-resource): the name of the operation.
OPERATIONS = {
    ("HEAD", False, ""): "HeadBucket",
    ("GET", False, "list-type"): "ListObjectsV2",
    ("GET", False, "uploads"): "ListMultipartUploads",
    ("GET", True, ""): "GetObject",
    ("HEAD", True, ""): "HeadObject",
    ("PUT", True, ""): "PutObject",
    ("DELETE", True, ""): "DeleteObject",
    ("POST", True, "uploads"): "CreateMultipartUpload",
    ("PUT", True, "partNumber&uploadId"): "UploadPart",
    ("POST", True, "uploadId"): "CompleteMultipartUpload",
    ("DELETE", True, "uploadId"): "AbortMultipartUpload",
}

# Query parameters that say what an operation returns, not which operation it is.
_OPTIONS = {
    *("prefix", "start-after", "continuation-token", "max-keys", "encoding-type"),
    *("key-marker", "upload-id-marker", "max-uploads"),
}
_LOGGED_HEADERS = ("x-amz-request-payer", "x-amz-expected-bucket-owner")
_UNKNOWN_HEADERS = ("x-amz-copy-source", "if-match", "if-none-match", "range", "transfer-encoding")


class Request(NamedTuple):
    """One line of the access log. ``params``: the query, and the headers about payer and expected owner."""

    operation: str
    key: str
    params: dict[str, str]
    user_agent: str = ""


@dataclass(slots=True, eq=False)
class Rule:
    """How to answer some requests wrongly: an error, or a fault by name."""

    kind: str
    operation: str | None
    times: int | None
    error: S3Error | None = None
    seconds: float = 0
    next_place: str = ""

    def concerns(self, operation: str) -> bool:
        """Return whether the rule can hold for an operation."""
        if self.kind in {"truncated_without_token", "same_token_twice"} and not operation.startswith("List"):
            return False
        return self.operation in {None, operation}


@dataclass(slots=True)
class Call:
    """A request to answer, and the rules that spoil the answer."""

    bucket: str
    request: Request
    body: bytes
    rules: dict[str, Rule] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The object's key, decoded."""
        return self.request.key

    def get(self, name: str) -> str:
        """Return a parameter, empty if it is missing."""
        return self.request.params.get(name, "")

    def limit(self, name: str) -> int:
        """Return how long a page may be."""
        text = self.request.params.get(name, str(_PAGE_LIMIT))
        if not text.isascii() or not text.isdigit():
            raise S3Error("InvalidArgument", f"{name} must be an integer of 0 or more, not {text!r}")
        return min(int(text), _PAGE_LIMIT)

    def encode(self, text: str) -> str:
        """Write a key as the request wants it."""
        return _url(text) if self.get("encoding-type") == "url" else xml(text)

    def going_on(self, place: str, *, last: str) -> tuple[str, bool]:
        """Return the place where the next page begins, if any, and whether there is one, after the faults."""
        if "truncated_without_token" in self.rules:
            return "", True
        if rule := self.rules.get("same_token_twice"):
            rule.next_place = rule.next_place or place or last
            return rule.next_place, True
        return place, bool(place)


@dataclass(slots=True)
class Reply:
    """What is answered; date and length are added later."""

    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, Call]:
    """Read one request; return its method and what it asks."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    bucket, _, key = path.removeprefix("/").partition("/")
    params = {
        name: value
        for name, value in parse_qsl(query, keep_blank_values=True)
        if (name, value) != ("delimiter", "")
    }
    kind = (method, bool(key), "&".join(sorted(params.keys() - _OPTIONS)))
    unknown = [name for name in _UNKNOWN_HEADERS if name in headers]
    operation = " ".join([OPERATIONS.get(kind) or f"{method} ?{kind[2]}", *unknown])
    params |= {name: headers[name] for name in _LOGGED_HEADERS if name in headers}
    request = Request(operation, unquote(key), params, headers.get("user-agent", ""))
    return method, Call(unquote(bucket), request, body)


def token_of(key: str) -> str:
    """Return the continuation token of the page after a key."""
    return base64.urlsafe_b64encode(b"after:" + key.encode()).decode()


def key_of(token: str) -> str:
    """Return the key that a continuation token lies after."""
    with contextlib.suppress(binascii.Error, UnicodeError):
        kind, colon, key = base64.b64decode(token, altchars=b"-_", validate=True).decode().partition(":")
        if kind + colon == "after:":
            return key
    raise S3Error("InvalidArgument", "The continuation token provided is incorrect")


def xml_reply(root: str, *children: str) -> Reply:
    """Return a document; AWS puts all but errors into a namespace."""
    namespace = "" if root == "Error" else ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{namespace}>{"".join(children)}</{root}>'
    return Reply(text.encode(), {"Content-Type": "application/xml"})


def tag(name: str, text: object) -> str:
    """Return an element; the text is written as it is."""
    return f"<{name}>{text}</{name}>"


def xml(text: str) -> str:
    """Escape text.

    As on AWS, a control character becomes a reference that XML parsers refuse: clients are to ask for
    ``encoding-type=url``.
    """
    return _XML_UNSAFE.sub(lambda match: f"&#x{ord(match[0]):x};", text)


def _url(text: str) -> str:
    return _URL_UNSAFE.sub(lambda match: _quote(match[0]), text)


_quote = functools.lru_cache(quote_plus)


@functools.lru_cache
def iso(seconds: int) -> str:
    """Write a stamp as listings do: milliseconds that are always zero."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
