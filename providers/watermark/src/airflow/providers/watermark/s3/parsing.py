"""
How a client reads the answers to its listings: in its own way, and politely.

Credentials, signatures, retries, endpoints, tokens and errors stay botocore's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

from airflow.providers.watermark.objects.listing import Interest
from airflow.providers.watermark.s3.pages import scan_page

__all__ = ["BEFORE_PARSE", "SCANNED", "asking", "read_answer"]

BEFORE_PARSE: Final = "before-parse.*.ListObjectsV2"
"""
The event of botocore's that :func:`read_answer` handles.

With a wildcard, since such handlers run before those of ``before-parse.s3``: botocore's own parses the whole
body once more, to find errors that come with status 200.
"""

SCANNED: Final = "Scanned"
"""Where an answer has its page, in place of ``Contents``."""

_SMALL: Final = 16384
"""Bytes that are parsed sooner than another thread is woken."""

_asked: Final[ContextVar[tuple[Interest, bool] | None]] = ContextVar("asked", default=None)
_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


@contextmanager
def asking(interest: Interest, *, whole: bool) -> Iterator[None]:
    """
    Say what is of interest in the listings that are asked for meanwhile; without it, all is.

    :param interest: Which objects are.
    :param whole: Whether to look at all keys, so that none is out of order.
    """
    # The client calls read_answer from within the request, and takes no argument along.
    token = _asked.set((interest, whole))
    try:
        yield
    finally:
        _asked.reset(token)


async def read_answer(
    response_dict: dict[str, Any], operation_model: Any, customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """
    Take the entries out of a page of a listing, and leave the rest of it to botocore.

    A handler of botocore's public event ``before-parse``. What is no listing, such as an error, stays as it
    is. A page that is unusual in any way is parsed by botocore's parser all the same, but in a thread: on the
    loop a full one would hold all triggers for 50 to 100 ms.
    """
    body = response_dict["body"]
    if response_dict["status_code"] != 200 or b"<ListBucketResult" not in body[:512]:
        return
    asked = _asked.get()
    page = None
    if asked is not None:
        interest, whole = asked
        # Pages that arrive together must not hold the loop one right after the other.
        async with _turn():
            page = scan_page(body, interest, whole=whole)
            await asyncio.sleep(0)
    if page is not None:
        response_dict["body"] = page.rest
        customized_response_dict[SCANNED] = page
        return
    parsed = await _parse(response_dict, operation_model.output_shape)
    response_dict["body"] = b"<ListBucketResult/>"
    customized_response_dict.update(parsed)


def _turn() -> asyncio.Lock:
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


async def _parse(response_dict: dict[str, Any], shape: Any) -> dict[str, Any]:
    from botocore.parsers import ResponseParserFactory

    factory = ResponseParserFactory()
    factory.set_parser_defaults(timestamp_parser=datetime.fromisoformat)  # dateutil takes four times as long
    parser, answer = factory.create_parser("rest-xml"), dict(response_dict)
    parsed: dict[str, Any]
    if len(answer["body"]) <= _SMALL:
        parsed = parser.parse(answer, shape)
    else:
        parsed = await asyncio.to_thread(parser.parse, answer, shape)
    return parsed
