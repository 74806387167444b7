"""Pages of a listing are checked, and cut off at the end of a range."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.objects.listing import (
    Interest,
    KeyRange,
    ListedObject,
    Listing,
    read_range,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def page(keys, token=None, *, of_interest=None):
    """Make a page with one-letter keys, all of interest unless told otherwise."""
    wanted = keys if of_interest is None else of_interest
    return Listing(
        objects=[ListedObject(key, NOON, 1, "v") for key in wanted],
        first=keys[0] if keys else None,
        last=keys[-1] if keys else None,
        count=len(keys),
        token=token,
    )


class Store:
    """Gives pages in turn, whatever is asked, and notes the tokens it is asked with."""

    where = "The store"

    def __init__(self, *pages):
        self.pages = list(pages)
        self.tokens = []

    async def list_page(self, keys, interest, *, token=None, limit=None):
        self.tokens.append(token)
        return self.pages.pop(0)


async def read(store, **keys):
    async with aclosing(read_range(store, KeyRange(prefix="", **keys), Interest())) as pages:
        return [page async for page in pages]


def keys_of(pages):
    return "".join(each.key for page in pages for each in page.objects)


async def test_pages_are_read_by_their_tokens_up_to_the_end():
    store = Store(page("ab", "1"), page("", "2"), page("c"))
    assert keys_of(await read(store)) == "abc"
    assert store.tokens == [None, "1", "2"]


@pytest.mark.parametrize(
    ("pages", "after", "message"),
    [
        pytest.param([page("ab", "1"), page("ba")], None, "'b' comes after 'b'", id="a key comes twice"),
        pytest.param([page("bc", "1"), page("ad")], None, "'a' comes after 'c'", id="a page goes back"),
        pytest.param([page("ab")], "a", "'a' comes after 'a'", id="what was read comes again"),
        pytest.param([page("acb")], None, "'b' comes after 'c'", id="within a page"),
        pytest.param([page("aa")], None, "'a' comes after 'a'", id="twice on a page"),
        pytest.param(
            [page("ca", of_interest="")], "b", "'a' comes after 'c'", id="a page without news ends early"
        ),
        pytest.param(
            [page("abcad", "1", of_interest="ab"), page("c")], None, "'c' comes after 'd'", id="a sparse page"
        ),
    ],
)
async def test_a_listing_that_is_not_in_key_order_is_refused(pages, after, message):
    with pytest.raises(SourceError, match=rf"The store: .* not in key order \({message}\)"):
        await read(Store(*pages), after=after)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        pytest.param([page("a", "")], "ends without a token though it is truncated", id="no token"),
        pytest.param([page("a", "1"), page("b", "1")], "goes in a circle", id="the same token"),
        pytest.param([page("", "1"), page("", "2"), page("", "1")], "goes in a circle", id="a longer circle"),
    ],
)
async def test_a_listing_that_breaks_off_is_an_error(pages, message):
    with pytest.raises(SourceError, match=message):
        await read(Store(*pages))


@pytest.mark.parametrize(
    ("pages", "until", "found", "requests"),
    [
        pytest.param(["ab", "cd", "ef"], "b", "ab", 1, id="with the end of a page"),
        pytest.param(["ab", "cd", "ef"], "c", "abc", 2, id="within a page"),
        pytest.param(["ab", "de", "fg"], "c", "ab", 2, id="between two pages"),
        pytest.param(["ab", "cd"], "z", "abcd", 2, id="behind the listing"),
        pytest.param(["bc"], "a", "", 1, id="before the listing"),
    ],
)
async def test_a_range_ends_where_it_is_told_to(pages, until, found, requests):
    last = len(pages) - 1
    store = Store(*(page(keys, None if n == last else str(n)) for n, keys in enumerate(pages)))
    given = await read(store, until=until)
    assert keys_of(given) == found
    assert len(store.tokens) == requests
    assert all(each.last is None or each.last <= until for each in given)
    assert given[-1].token is None


async def test_a_page_that_is_cut_off_counts_no_more_than_it_is_known_to_have():
    (cut,) = await read(Store(page("abcd", of_interest="bd")), until="c")
    assert (cut.count, cut.first, cut.last, keys_of([cut])) == (1, "a", "c", "b")


@pytest.mark.parametrize(
    ("keys", "has"),
    [
        ((), False),
        (None, True),
        (("a",), False),
        (("b",), True),
        (("c",), True),
        (("d",), True),
        (("e",), False),
    ],
)
def test_a_part_has_a_key_of_interest_if_one_lies_in_it_bounds_included(keys, has):
    assert Interest(since=NOON, keys=keys).has_key_in("b", "d") is has


def test_a_part_between_two_keys_of_interest_has_none():
    assert not Interest(since=NOON - timedelta(1), keys=["a", "e"]).has_key_in("b", "d")
