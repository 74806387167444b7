"""Pages of GCS with little news are skimmed, and whatever is unusual about a page is left to the parser."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.gcs import pages
from airflow.providers.watermark.gcs.pages import read_page
from airflow.providers.watermark.objects.listing import Interest, KeyRange

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD, NEW = "2026-03-01T11:59:59.999Z", "2026-03-01T12:00:00.000Z"
NO_KEYS = Interest(since=NOON, keys=())


def item(name, time=OLD, **fields):
    return {"name": name, "generation": "1", "size": "1", "timeCreated": time, **fields}


def page_of(*items, **fields):
    page = {"kind": "storage#objects", **fields, "items": list(items)}
    return json.dumps(page, separators=(",", ":"), ensure_ascii=False).encode()


def skimmed(body, interest=NO_KEYS, after=None):
    return pages._skim(body, KeyRange(prefix="", after=after), interest)


def parsed(body, interest=NO_KEYS, after=None):
    with mock.patch.object(pages, "_skim", return_value=None):
        return read_page(body, KeyRange(prefix="", after=after), interest, "the bucket")


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            st.sampled_from([OLD, OLD, NEW, "2026-03-01T11:00:00Z", "2026-03-01T14:00:00.000+02:00"]),
        ),
        max_size=5,
    ),
    st.none() | st.text("abc", max_size=3),
)
def test_a_page_is_read_as_the_parser_reads_it(found, token):
    fields = {} if token is None else {"nextPageToken": token}
    body = page_of(*(item(name, time) for name, time in found), **fields)
    assert read_page(body, KeyRange(prefix=""), NO_KEYS, "the bucket") == parsed(body)


@pytest.mark.parametrize("place", range(3))
def test_of_a_page_with_little_news_that_alone_is_parsed(place):
    body = page_of(*(item(name, NEW if number == place else OLD) for number, name in enumerate("abc")))
    page = skimmed(body)
    assert page == parsed(body)
    assert [each.key for each in page.objects] == ["abc"[place]]


def test_a_page_without_news_is_skimmed():
    body = page_of(item("a"), item("b,}]{"), item("ü]"), nextPageToken="t")
    assert skimmed(body) == parsed(body)
    assert skimmed(body).token == "t"
    behind = b'{"kind":"storage#objects","items":[' + json.dumps(item("a"), separators=(",", ":")).encode()
    assert skimmed(behind + b'],"nextPageToken":"t"}').token == "t"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(page_of(), id="nothing"),
        pytest.param(page_of(*(item(f"{number:04}", NEW) for number in range(100))), id="much news"),
        pytest.param(page_of(item("},{")), id="what looks like the end of an item"),
        pytest.param(
            page_of(item("a", NEW), item("b"))
            .replace(f',"timeCreated":"{OLD}"'.encode(), b"")
            .replace(f'"{NEW}"'.encode(), f'"{NEW}","timeCreated":"{OLD}"'.encode()),
            id="two times in one item and none in another",
        ),
        pytest.param(page_of(item("a", "2026-03-01T11:59:59Z")), id="whole seconds"),
        pytest.param(page_of(item("a", "2026-03-01T11:59:59.000+00:00")), id="an offset"),
        pytest.param(page_of(item('a"b')), id="an escape"),
        pytest.param(page_of({"size": "1", **item("a")}), id="another order"),
        pytest.param(page_of(item("a"), {"name": "b", "generation": "1", "size": "1"}), id="no time"),
        pytest.param(page_of(item("a", metadata={"timeCreated": OLD})), id="a nested time"),
        pytest.param(page_of(item("a"), kind="storage#object"), id="another kind"),
        pytest.param(page_of(item("a"))[:-1], id="half a page"),
        pytest.param(page_of(item("a")) + page_of(item("b")), id="two pages"),
        pytest.param(json.dumps(json.loads(page_of(item("a")))).encode(), id="spaces"),
    ],
)
def test_what_is_unusual_is_left_to_the_parser(body):
    assert skimmed(body) is None


def test_keys_that_are_of_interest_and_a_first_key_to_leave_out_are_left_to_the_parser():
    body = page_of(item("a"), item("b"))
    assert skimmed(body, Interest(since=NOON, keys=["b"])) is None
    assert skimmed(body, Interest(since=NOON, keys=None)) is None
    assert skimmed(body, after="a") is None
    assert skimmed(body, after="A") is not None


def test_a_name_that_is_no_utf8_is_an_error():
    with pytest.raises(SourceError):
        read_page(page_of(item("a")).replace(b'"a"', b'"\xff"'), KeyRange(prefix=""), NO_KEYS, "the bucket")
