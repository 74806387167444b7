"""A Google Cloud Storage of our own: very many objects, a clock to turn, and errors on demand.

In a test, where the helpers act on the store itself and not through its API::

    with StubGCS() as stub:
        stub.put("orders/1.csv", b"id")
        stub.fail(503, "backendError", times=2)

or as a process: ``python -m devtools.gcs_stub --port 9000 --objects 1000000``.

It imitates what a watcher of a prefix sees: ``objects.list`` of the JSON API (UTF-8 byte order, pages of at
most 1,000 names, ``startOffset`` inclusive and ``endOffset`` exclusive, opaque tokens that name a place and
not a state, ``fields``, gzip for agents that ask for it twice), ``timeCreated`` in milliseconds, a generation
for each overwrite, a ``Date`` header from the same clock, and ``/token``, where a service account's key is
exchanged for a token if its ``token_uri`` says so.

It differs from Google's: one bucket, plain HTTP, no other operation, and no parameters but those of
``gcs_wire.PARAMETERS``. What it does not know is refused, so that nothing passes by luck.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import threading
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Literal, get_args

from devtools.gcs_servers import GcsServer
from devtools.gcs_wire import (
    PARAMETERS,
    Refusal,
    Request,
    Rule,
    Stored,
    indent,
    phrase,
    read,
    read_token,
    select,
    token,
)
from devtools.stub_server import StubServer

Fault = Literal["empty_pages", "same_token", "cut_off", "no_date", "slow", "page_for_people", "empty_answer"]


class StubGCS(StubServer):
    """The server: a context manager that serves from a thread of its own. Every method is thread-safe.

    :param bucket: the name of its one bucket.
    :param port: the loopback port; 0 takes a free one.
    """

    def __init__(self, bucket: str = "lake", *, port: int = 0) -> None:
        super().__init__("gcs-stub", port)
        self.bucket = bucket
        self.clock: Callable[[], float] = time.time
        """What time it is, in seconds since 1970."""
        self.page_limit = 1000
        self.delay = 0.0
        """Seconds before each answer."""
        self.requester_pays = False
        self.tokens: list[str] | None = None
        """Who may list: the bearers of these. The last one is what ``/token`` gives. None: everybody."""
        self.requests: deque[Request] = deque(maxlen=100_000)
        """The access log, oldest first, requests answered with an error included."""
        self.on_request: Callable[[Request], None] | None = None
        """Called before each request is answered: to change the store between two pages, say."""
        self._objects: dict[str, Stored] = {}
        self._names: list[str] = []
        self._generations = itertools.count(1_700_000_000_000_000)
        self._rendered: dict[tuple[object, ...], bytes] = {}
        self._rules: list[Rule] = []
        self._lock = threading.RLock()

    @property
    def server(self) -> GcsServer:
        """How to reach it, as for other servers."""
        return GcsServer(name="stub", endpoint_url=f"http://127.0.0.1:{self.port}")

    # -- The store ------------------------------------------------------------------------------------

    def put(self, name: str, body: bytes = b"", created: datetime | None = None) -> str:
        """Store an object, and return its generation.

        :param created: when; by default now, by its clock.
        """
        with self._lock:
            if name not in self._objects:
                insort(self._names, name)  # by code point, which is the order of the UTF-8 bytes
            stamp = self.clock() if created is None else created.timestamp()
            stored = self._objects[name] = Stored(stamp, next(self._generations), len(body))
            self._rendered.clear()
        return str(stored.generation)

    def edit(self, name: str) -> None:
        """Change an object's metadata, its access or its storage class."""
        with self._lock:
            stored = self._objects[name]
            stored.metageneration += 1
            stored.updated = self.clock()
            self._rendered.clear()

    def delete(self, name: str) -> None:
        """Delete an object."""
        with self._lock:
            del self._objects[name]
            self._names.remove(name)
            self._rendered.clear()

    def fill(self, names: list[str], created: datetime) -> None:
        """Store very many objects at once."""
        with self._lock:
            stamp = created.timestamp()
            self._objects |= {name: Stored(stamp, next(self._generations), 1024) for name in names}
            self._names = sorted(self._objects)
            self._rendered.clear()

    # -- Faults ---------------------------------------------------------------------------------------

    def fail(self, status: int, reason: str = "", *, times: int | None = None) -> None:
        """Answer requests with an error.

        :param times: for so many requests; None until :meth:`clear`.
        """
        self._add(Rule("error", times, status=status, reason=reason))

    def fault(self, kind: Fault, seconds: float = 0, *, times: int | None = None) -> None:
        """Answer requests oddly.

        ``empty_pages``: before each page comes one without objects and with a token. ``same_token``: each
        page says that there is more, at one and the same token. ``cut_off``: the connection closes in the
        middle of the answer. ``no_date``: no ``Date`` header. ``slow``: the answer waits for ``seconds``.
        ``page_for_people``: 200 with HTML. ``empty_answer``: 200 with an empty JSON object.

        :param times: for so many requests; None until :meth:`clear`.
        """
        if kind not in get_args(Fault):
            raise ValueError(f"no such fault: {kind!r}; there are {', '.join(get_args(Fault))}")
        self._add(Rule(kind, times, seconds=seconds))

    def clear(self) -> None:
        """Answer correctly again."""
        with self._lock:
            self._rules.clear()

    def _add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _take_rules(self) -> dict[str, Rule]:
        """Return the oldest rule of each kind, and count it as used once."""
        with self._lock:
            rules = {rule.kind: rule for rule in reversed(self._rules)}
            for rule in rules.values():
                rule.times = None if rule.times is None else rule.times - 1
            self._rules = [rule for rule in self._rules if rule.times is None or rule.times > 0]
        return rules

    # -- Answers --------------------------------------------------------------------------------------

    def _answer(self, request: Request, rules: Mapping[str, Rule]) -> bytes:
        if rule := rules.get("error"):
            raise Refusal(rule.status, rule.reason)
        if request.path == "/token":
            return json.dumps({"access_token": (self.tokens or [""])[-1], "expires_in": 3600}).encode()
        if request.path != f"/storage/v1/b/{self.bucket}/o":
            raise Refusal(404, "notFound")
        if self.tokens is not None:
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            if bearer not in self.tokens:
                raise Refusal(401, "required" if not bearer else "authError")
        if unknown := request.params.keys() - PARAMETERS:
            raise Refusal(501, f"unknown: {sorted(unknown)}")
        if self.requester_pays and not request.params.get("userProject"):
            raise Refusal(400, "required")
        if "page_for_people" in rules:
            return b"<html><body>Sign in</body></html>"
        if "empty_answer" in rules:
            return b"{}"
        return self._list(request.params, rules)

    def _list(self, params: Mapping[str, str], rules: Mapping[str, Rule]) -> bytes:
        place, is_empty = read_token(params.get("pageToken"), also_empty="empty_pages" in rules)
        asked = int(params.get("maxResults", self.page_limit))
        limit = 0 if is_empty else min(asked, self.page_limit)
        prefix = params.get("prefix", "")
        key = (place, limit, is_empty, "same_token" in rules, *sorted(params.items()))
        with self._lock:
            if key in self._rendered:
                return self._rendered[key]
            index = bisect_left(self._names, max(prefix, params.get("startOffset", ""), place))
            stop = index + limit
            end = params.get("endOffset")
            found = [
                name
                for name in self._names[index : stop + 1]
                if name.startswith(prefix) and (not end or name < end)
            ]
            page: dict[str, Any] = {"kind": "storage#objects"}
            if is_empty or len(found) > limit:
                page["nextPageToken"] = token(found[limit] if found[limit:] else place, went=is_empty)
            if "same_token" in rules:
                page["nextPageToken"] = "again"
            items = [self._objects[name].describe(name) for name in found[:limit]]
            if items:  # as Google's: there is no empty list
                page["items"] = items
            text = json.dumps(select(page, params.get("fields")), indent=indent(params), ensure_ascii=False)
            self._rendered[key] = text.encode()
            return self._rendered[key]

    # -- HTTP -----------------------------------------------------------------------------------------

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection goes on."""
        request = await read(reader)
        self.requests.append(request)
        if self.on_request:
            self.on_request(request)
        rules = self._take_rules()
        await asyncio.sleep(rules["slow"].seconds if "slow" in rules else self.delay)
        status = 200
        try:
            body = self._answer(request, rules)
        except Refusal as refusal:
            status, reason = refusal.status, refusal.reason
            error = {"code": status, "message": "a secret", "errors": [{"reason": reason}]}
            body = json.dumps({"error": error}).encode()
        headers = {"Date": formatdate(self.clock(), usegmt=True), "Content-Type": "application/json"}
        if "no_date" in rules:
            del headers["Date"]
        if "gzip" in request.headers.get("accept-encoding", "") and "gzip" in request.headers["user-agent"]:
            headers["Content-Encoding"] = "gzip"
            body = self._compressed(body)
        headers["Content-Length"] = str(len(body))
        head = [f"HTTP/1.1 {status} {phrase(status)}", *map(": ".join, headers.items()), "", ""]
        message = "\r\n".join(head).encode() + body
        cut_off = "cut_off" in rules
        writer.write(message[: -1 - len(body) // 2] if cut_off else message)
        await writer.drain()
        return not cut_off

    def _compressed(self, body: bytes) -> bytes:
        with self._lock:
            key = ("gzip", body)
            if key not in self._rendered:
                self._rendered[key] = gzip.compress(body, 6)
            return self._rendered[key]


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bucket", default="lake")
    parser.add_argument("--objects", type=int, default=0, help="how many it holds from the start")
    parser.add_argument("--prefix", default="orders/", help="what their names begin with")
    parser.add_argument("--age", type=float, default=86400, help="how many seconds ago they were written")
    parser.add_argument("--delay", type=float, default=0, help="seconds before each answer")
    options = parser.parse_args()
    stub = StubGCS(options.bucket, port=options.port)
    stub.delay = options.delay
    names = [
        f"{options.prefix}dt=2026-{1 + number // 28 % 12:02}-{1 + number % 28:02}/part-{number:09}.parquet"
        for number in range(options.objects)
    ]
    stub.fill(names, datetime.fromtimestamp(time.time() - options.age, UTC))
    with stub:
        print(f"http://127.0.0.1:{stub.port}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
