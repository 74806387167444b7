"""
A server for listings that is much faster than any of its clients, for S3 and GCS, in a process of its own.

``python -m benchmarks.objects.server --port 9000``. It knows what a listing asks, and nothing else: whatever
it does not know is answered 501. ``/_control?latency=0.05&gzip=1`` sets how it answers from now on and
forgets its counts; ``/_counts`` tells how many requests of each kind came, and how many objects were listed.

Differs from S3: no signatures are checked, and keys are always url-encoded. Differs from GCS: one level of
``fields``, no versions, and a page token that can be guessed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from benchmarks.objects.entries import MAX_PAGE, Keys, Page, gcs_entries, s3_entries
from benchmarks.objects.layouts import Layout

_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_GCS_PATH: Final = re.compile(r"/storage/v1/b/([^/]+)(/o)?")
_ITEMS: Final = re.compile(r"items\(([^()]*)\)")

Parts = list[bytes | memoryview]


@dataclass
class Settings:
    """How the server answers."""

    latency: float = 0.0
    gzip: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, objects: int = 0) -> None:
        """Note a request."""
        with self.lock:
            self.counts[kind] += 1
            self.counts["objects"] += objects


class UnknownError(Exception):
    """A request that this server does not know."""


@lru_cache(maxsize=16)
def keys_of(bucket: str) -> Keys:
    """Give a bucket's keys."""
    try:
        return Keys(Layout.of(bucket))
    except ValueError as error:
        raise UnknownError(bucket) from error


RENDERING: Final = threading.Lock()


def s3_page(bucket: str, query: Mapping[str, str]) -> tuple[Parts, Page]:
    """Answer ListObjectsV2."""
    keys = keys_of(bucket)
    if query.get("encoding-type") != "url":
        raise UnknownError("listings without encoding-type=url")
    token, after, prefix = query.get("continuation-token"), query.get("start-after"), query.get("prefix", "")
    limit = min(int(query.get("max-keys") or MAX_PAGE), MAX_PAGE)
    start = int(token) if token else keys.after(after) if after else 0
    page = keys.page(prefix, start, limit, query.get("delimiter", ""))
    with RENDERING:
        entries = s3_entries(keys.layout)
    going_on = (
        "" if page.following is None else f"<NextContinuationToken>{page.following}</NextContinuationToken>"
    )
    head = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="{_NAMESPACE}">'
        f"<Name>{bucket}</Name><Prefix>{quote(prefix)}</Prefix>"
        + (f"<StartAfter>{quote(after)}</StartAfter>" if after else "")
        + (f"<ContinuationToken>{token}</ContinuationToken>" if token else "")
        + f"{going_on}<KeyCount>{page.count + len(page.prefixes)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
        + (f"<Delimiter>{quote(query['delimiter'])}</Delimiter>" if query.get("delimiter") else "")
        + f"<EncodingType>url</EncodingType><IsTruncated>{str(bool(going_on)).lower()}</IsTruncated>"
    )
    common = (f"<CommonPrefixes><Prefix>{quote(each)}</Prefix></CommonPrefixes>" for each in page.prefixes)
    tail = "".join(common) + "</ListBucketResult>"
    return [head.encode(), *entries.of(page), tail.encode()], page


def s3_uploads(bucket: str) -> bytes:
    """Answer ListMultipartUploads: there are none."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListMultipartUploadsResult xmlns="{_NAMESPACE}">'
        f"<Bucket>{bucket}</Bucket><KeyMarker/><UploadIdMarker/><MaxUploads>1000</MaxUploads>"
        "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
    ).encode()


def gcs_page(bucket: str, query: Mapping[str, str]) -> tuple[Parts, Page]:
    """Answer a listing of GCS."""
    keys = keys_of(bucket)
    limit = min(int(query.get("maxResults") or MAX_PAGE), MAX_PAGE)
    start = int(query.get("pageToken") or 0)
    if offset := query.get("startOffset"):
        start = max(start, keys.at(offset))
    page = keys.page(query.get("prefix", ""), start, limit, query.get("delimiter", ""))
    pretty = query.get("prettyPrint", "true") != "false"
    fields = query.get("fields", "")
    items = _ITEMS.search(fields)
    with RENDERING:
        entries = gcs_entries(keys.layout, items[1].replace(" ", "") if items else "*", pretty=pretty)
    head: dict[str, Any] = {"kind": "storage#objects"}
    if fields and "kind" not in fields:
        head.clear()
    if page.following is not None:
        head["nextPageToken"] = str(page.following)
    if page.prefixes:
        head["prefixes"] = page.prefixes
    begin = json.dumps(head, indent=2 if pretty else None)[:-1].rstrip().encode()
    parts = entries.of(page)
    if page.count:
        parts[-1] = parts[-1][: -2 if pretty else -1]  # the last comma
        begin += (b", " if head else b"") + b'"items": ['
        return [begin, b"\n" if pretty else b"", *parts, b"]}"], page
    return [begin, b"}"], page


@lru_cache(maxsize=8192)
def gcs_gzip(bucket: str, query: tuple[tuple[str, str], ...]) -> tuple[bytes, Page]:
    """Answer a listing of GCS, compressed; pages are kept, since this costs more than a client does."""
    parts, page = gcs_page(bucket, dict(query))
    return gzip.compress(b"".join(parts), 6), page


class Handler(socketserver.StreamRequestHandler):
    """A connection: a thread of its own, blocking, so that a large page is sent without being copied."""

    disable_nagle_algorithm = True
    settings = Settings()

    def handle(self) -> None:
        """Answer requests until the client goes."""
        try:
            while line := self.rfile.readline():
                method, target, _ = line.decode("latin-1").split(" ", 2)
                headers = {}
                while line := self.rfile.readline().strip():
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                self.rfile.read(int(headers.get("content-length", 0)))
                self.answer(method, target, headers)
        except ConnectionError:
            pass

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        """Answer a request."""
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path.startswith("/_"):
            self.send("200 OK", [self.control(url.path, query)], "application/json")
            return
        time.sleep(self.settings.latency)
        try:
            found = _GCS_PATH.fullmatch(url.path)
            if found and not found[2]:
                self.gcs_bucket(unquote(found[1]))
            elif found:
                self.gcs(unquote(found[1]), query, headers)
            else:
                self.s3(url.path.strip("/"), method, query)
        except UnknownError:
            self.settings.count(f"unknown: {method} {target}"[:200])
            self.send("501 Not Implemented", [], "text/plain")

    def s3(self, bucket: str, method: str, query: Mapping[str, str]) -> None:
        """Answer a client of S3."""
        if method != "GET":
            raise UnknownError(method)
        if "uploads" in query:
            self.settings.count("uploads")
            self.send("200 OK", [s3_uploads(bucket)], "application/xml")
        elif query.get("list-type") == "2":
            parts, page = s3_page(bucket, query)
            self.settings.count("list", page.count)
            self.send("200 OK", parts, "application/xml")
        else:
            raise UnknownError(bucket)

    def gcs_bucket(self, bucket: str) -> None:
        """Tell a client of GCS what a bucket is."""
        self.settings.count("bucket")
        about = {"kind": "storage#bucket", "id": bucket, "name": bucket, "location": "US"}
        self.send("200 OK", [json.dumps(about).encode()], "application/json")

    def gcs(self, bucket: str, query: Mapping[str, str], headers: Mapping[str, str]) -> None:
        """Answer a client of GCS."""
        if self.settings.gzip and "gzip" in headers.get("accept-encoding", ""):
            body, page = gcs_gzip(bucket, tuple(query.items()))
            self.settings.count("list", page.count)
            self.send("200 OK", [body], "application/json", "Content-Encoding: gzip\r\n")
        else:
            parts, page = gcs_page(bucket, query)
            self.settings.count("list", page.count)
            self.send("200 OK", parts, "application/json")

    def control(self, path: str, query: Mapping[str, str]) -> bytes:
        """Change how the server answers, or tell what it has counted."""
        settings = self.settings
        if path == "/_control":
            settings.latency = float(query.get("latency", 0))
            settings.gzip = query.get("gzip") == "1"
            settings.counts = Counter()
        return json.dumps(settings.counts).encode()

    def send(self, status: str, parts: Parts, kind: str, more: str = "") -> None:
        """Send an answer."""
        head = (
            f"HTTP/1.1 {status}\r\nDate: {formatdate(usegmt=True)}\r\nContent-Type: {kind}\r\n{more}"
            f"Content-Length: {sum(map(len, parts))}\r\n\r\n"
        )
        # Small parts together: one segment less for each.
        whole: Parts = [head.encode()]
        for part in parts:
            if len(part) + len(whole[-1]) < 4096:
                whole[-1] = b"".join((whole[-1], part))
            else:
                whole.append(part)
        for part in whole:
            self.connection.sendall(part)


class Server(socketserver.ThreadingTCPServer):
    """The server."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--port", type=int, required=True)
    with Server(("127.0.0.1", parser.parse_args().port), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
