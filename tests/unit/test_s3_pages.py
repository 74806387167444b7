"""Pages of S3's listings are read as an ordinary parser reads them, or are left to it."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote

import botocore.session
import pytest
from botocore.handlers import decode_list_object_v2
from botocore.parsers import ResponseParserError, ResponseParserFactory
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow.providers.watermark.objects.listing import Interest, ListedObject
from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.s3.pages import scan_page

PARSER = ResponseParserFactory().create_parser("rest-xml")
SHAPE = botocore.session.get_session().get_service_model("s3").operation_model("ListObjectsV2").output_shape

DAMAGED = (ResponseParserError, ValueError, KeyError)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ALL = Interest(keys=None)
INTERESTS = {
    "all": ALL,
    "all, from the beginning": Interest(),
    "any key, news or not": Interest(since=NOON + 9 * SECOND, keys=None),
    "news": Interest(since=NOON - SECOND),
    "news, with the second itself": Interest(since=NOON),
    "news within the second": Interest(since=NOON + timedelta(milliseconds=122)),
    "nothing": Interest(since=NOON + 9 * SECOND),
    "nothing, told in another zone": Interest(
        since=(NOON + 9 * SECOND).astimezone(timezone(timedelta(hours=-14)))
    ),
    "one key": Interest(since=NOON + 9 * SECOND, keys=["a b/é"]),
    "keys that are not there": Interest(since=NOON + 9 * SECOND, keys=["a b/è", "zzz"]),
    "news and keys": Interest(since=NOON, keys=["a b/é", "k00001", "z"]),
}


def entry(
    key="a%20b/%C3%A9", time="2026-03-01T12:00:00.000Z", etag="&quot;d41d8cd9&quot;", size="10", **more
):
    """Write an entry as S3 does; keyword arguments replace an element, or put another behind one."""
    parts = {
        "Key": f"<Key>{key}</Key>",
        "LastModified": f"<LastModified>{time}</LastModified>",
        "ETag": f"<ETag>{etag}</ETag>",
        "Size": f"<Size>{size}</Size>",
        "StorageClass": "<StorageClass>STANDARD</StorageClass>",
    }
    return f"<Contents>{''.join((parts | more).values())}</Contents>"


HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


def page(*entries, count=None, head=HEAD, first=None, last="", encoding="url"):
    if first is None:
        first = "<Name>lake</Name><Prefix></Prefix>"
    first += f"<KeyCount>{len(entries) if count is None else count}</KeyCount><MaxKeys>1000</MaxKeys>"
    if encoding is not None:
        first += f"<EncodingType>{encoding}</EncodingType>"
    first += "<IsTruncated>false</IsTruncated>"
    return f"{head}{first}{''.join(entries)}{last}</ListBucketResult>".encode()


@functools.lru_cache(4)
def answer(body):
    parsed = PARSER.parse({"status_code": 200, "headers": {}, "body": body, "context": {}}, SHAPE)
    decode_list_object_v2(parsed, {"encoding_type_auto_set": True})
    return parsed


def ordinary(body):
    """Read a page as botocore does."""
    return [
        ListedObject(
            key=found["Key"],
            modified=found["LastModified"].astimezone(UTC),
            size=found["Size"],
            version=found.get("ETag", "").strip('"'),
        )
        for found in answer(body).get("Contents", ())
    ]


def of_interest(found, interest):
    return [
        each
        for each in found
        if interest.keys is None
        or interest.since is BEGINNING
        or each.modified > interest.since
        or each.key in interest.keys
    ]


def assert_agreement(body, interest, *, whole=False):
    """Whatever is read, an ordinary parser reads it likewise; tell whether it was read."""
    scanned = scan_page(body, interest, whole=whole)
    if scanned is None:
        return False
    try:
        rest = answer(scanned.rest)
    except DAMAGED:  # and so is the whole
        with pytest.raises(DAMAGED):
            answer(body)
        return False
    found = ordinary(body)
    assert list(scanned.objects) == of_interest(found, interest)
    assert (scanned.first, scanned.last, scanned.count) == (found[0].key, found[-1].key, len(found))
    assert rest | {"Contents": answer(body)["Contents"]} == answer(body), "another token, or another end"
    return True


# --- what servers write -------------------------------------------------------------------------------------

ODD_KEYS = [
    *("!a", "a b", "a+b", "a%b", "a%20b", "a%3Db", "a=b", "a&b;c", "a/", "a//b", "quote'\"<&>", "new\nline"),
    *("return\rhere", "tab\there", "control\x01", "\u2028", "e\u0301", "\u00e9", "日本/東京", "\U0001f600"),
]
CRC = "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
MINISTACK = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<Name>lake</Name><Prefix /><EncodingType>url</EncodingType><MaxKeys>1</MaxKeys><KeyCount>1</KeyCount>"
    b"<IsTruncated>true</IsTruncated><NextContinuationToken>YSBiL8Op</NextContinuationToken>"
    b"<Contents><Key>a%20b/%C3%A9</Key><LastModified>2026-03-01T12:00:00.709Z</LastModified>"
    b'<ETag>"9336ebf25087d91c818ee6e9ec29f8c1"</ETag><Size>2</Size><StorageClass>STANDARD</StorageClass></Contents>'
    b"</ListBucketResult>"
)
MOTO = (
    b'<?xml version="1.0" encoding="utf-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<IsTruncated>true</IsTruncated><Contents><Key>a%20b/%C3%A9</Key><LastModified>2026-03-01T12:00:00.000Z"
    b'</LastModified><ETag>"9336ebf25087d91c818ee6e9ec29f8c1"</ETag><ChecksumAlgorithm>CRC32</ChecksumAlgorithm>'
    b"<Size>2</Size><StorageClass>STANDARD</StorageClass></Contents><Name>lake</Name><Prefix/><MaxKeys>1</MaxKeys>"
    b"<EncodingType>url</EncodingType><KeyCount>1</KeyCount><NextContinuationToken>850b</NextContinuationToken>"
    b"</ListBucketResult>"
)
LOCALSTACK = (
    b"<?xml version='1.0' encoding='utf-8'?>\n"
    b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>'
    b"<Name>lake</Name><Prefix /><MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType>"
    b"<KeyCount>1</KeyCount>"
    b'<Contents><Key>a%20b/%C3%A9</Key><ETag>"9336ebf25087d91c818ee6e9ec29f8c1"</ETag><Size>2</Size>'
    b"<LastModified>2026-03-01T12:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass>"
    b"<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType></Contents>"
    b"</ListBucketResult>\n"
)
USUAL = {
    "one": page(entry()),
    "a full one": page(
        *(entry(f"k{number:05}", f"2026-03-01T11:{number % 60:02}:00.000Z") for number in range(1000))
    ),
    "one with news": page(
        entry("j"), *(entry(f"k{n:05}", time=f"2026-03-01T12:00:0{n}.000Z") for n in range(5))
    ),
    "odd keys": page(*(entry(quote(key)) for key in sorted(ODD_KEYS))),
    "spaces as plus signs": page(entry("a+b"), entry("a%2Bb")),
    "escapes in small letters": page(entry("a%0ab"), entry("a%3db"), entry("%c3%a9")),
    "escapes that are none": page(entry("a%"), entry("a%4%3D"), entry("a%%3D"), entry("a%zz")),
    "escapes that are no UTF-8": page(entry("a%FF"), entry("b%C3")),
    "a continued listing": page(entry(), last="<NextContinuationToken>1/x==</NextContinuationToken>"),
    "text that needs entities, in the head": page(entry(), first="<Name>l&amp;e</Name><Prefix>é</Prefix>"),
    "milliseconds": page(entry(time="2026-03-01T12:00:00.123Z")),
    "microseconds": page(entry(time="2026-03-01T12:00:00.123456Z")),
    "nanoseconds": page(entry(time="2026-03-01T12:00:00.123456789Z")),
    "no fraction": page(entry(time="2026-03-01T12:00:00Z")),
    "fractions of several lengths": page(
        *(
            entry(f"k{n}", f"2026-03-01T12:00:00{fraction}Z")
            for n, fraction in enumerate((".5", "", ".12", ".1229"))
        )
    ),
    "etags of multipart objects": page(entry(etag="&quot;d41d-12&quot;")),
    "etags in plain quotes": page(entry(etag='"d41d"')),
    "etags in numeric entities": page(entry(etag="&#34;d41d&#34;")),
    "etags without quotes": page(entry(etag="d41d")),
    "an empty etag": page(entry(etag="")),
    "checksums": page(entry(ETag=f"<ETag>x</ETag>{CRC}<ChecksumType>FULL_OBJECT</ChecksumType>")),
    "several checksums": page(entry(ETag=f"<ETag>x</ETag>{CRC}{CRC}")),
    "owners": page(entry(Size="<Size>1</Size><Owner><ID>75aa</ID><DisplayName>me</DisplayName></Owner>")),
    "no storage class": page(entry(StorageClass="")),
    "a large object": page(entry(size=str(5 * 2**40))),
    "no namespace": page(entry(), head="<ListBucketResult>"),
    "no declaration": page(entry(), head=HEAD.partition("\n")[2]),
    "ministack": MINISTACK,
    "moto": MOTO,
}

FULL = {"Key": "", "LastModified": "", "ETag": "", "Size": "", "StorageClass": ""}
ONE = page(entry())
UNUSUAL = {
    "LocalStack": LOCALSTACK,
    "the sample in S3's own documentation": (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">\n  <Name>demo</Name>\n'
        b"  <Prefix/>\n  <KeyCount>1</KeyCount>\n  <MaxKeys>1000</MaxKeys>\n"
        b"  <IsTruncated>false</IsTruncated>\n"
        b"  <Contents>\n    <Key>my-image.jpg</Key>\n"
        b"    <LastModified>2009-10-12T17:50:30.000Z</LastModified>\n"
        b'    <ETag>"fba9dede5f27731c9771645a39863328"</ETag>\n    <Size>434234</Size>\n'
        b"    <StorageClass>STANDARD</StorageClass>\n  </Contents>\n</ListBucketResult>"
    ),
    "empty": page(),
    "a prefix for the namespace": ONE.replace(b"xmlns=", b"xmlns:s3=").replace(b"Contents>", b"s3:Contents>"),
    "another order": page(
        entry(LastModified="", Size="<Size>1</Size><LastModified>2026-03-01T12:00:00Z</LastModified>")
    ),
    "no etag": page(entry(ETag="")),
    "an entity in a key": page(entry("a&amp;b")),
    "an entity in an etag": page(entry(etag="a&amp;b")),
    "an entity in an owner": page(entry(Size="<Size>1</Size><Owner><DisplayName>&lt;</DisplayName></Owner>")),
    "a key in CDATA": page(entry("<![CDATA[a<b]]>")),
    "a comment in an entry": page(entry("a<!-- b -->")),
    "a comment between entries": page(entry(), "<!-- -->", entry("b"), count=2),
    "an entry in a comment": page(entry(), "<!--", entry("b"), "-->", entry("c"), count=3),
    "an instruction between entries": page(entry(), "<?a b?>", entry("b"), count=2),
    "white space between entries": page(entry(), "\n", entry("b"), count=2),
    "white space in an entry": page(entry().replace("><", "> <")),
    "white space in a number": page(entry(size=" 10 ")),
    "attributes": page(entry().replace("<Contents>", '<Contents a="b">')),
    "attributes of an element": page(entry().replace("<Size>", '<Size a="b">')),
    "attributes of the root": page(entry(), head='<ListBucketResult a="b">'),
    "a document type": page(entry(), head="<!DOCTYPE a>" + HEAD.partition("\n")[2]),
    "UTF-16": ONE.decode().replace("UTF-8", "UTF-16").encode("utf-16"),
    "another encoding": ONE.replace(b"UTF-8", b"ISO-8859-1"),
    "a byte order mark": b"\xef\xbb\xbf" + ONE,
    "XML 1.1": ONE.replace(b'version="1.0"', b'version="1.1"'),
    "keys that are not encoded": page(entry("a b"), encoding=None),
    "keys in an encoding nobody knows": page(entry(), encoding="base64"),
    "keys beyond ASCII": page(entry("é")),
    "no count of keys": ONE.replace(b"<KeyCount>1</KeyCount>", b""),
    "two counts of keys": ONE.replace(b"<MaxKeys>1000</MaxKeys>", b"<KeyCount>1</KeyCount>"),
    "a count of keys that is too low": page(entry(), entry("b"), count=1),
    "a count of keys that is too high": page(entry(), entry("b"), count=3),
    "common prefixes": page(entry(), count=2, last="<CommonPrefixes><Prefix>b</Prefix></CommonPrefixes>"),
    "an end between entries": page(entry(), "<IsTruncated>true</IsTruncated>", entry("b"), count=2),
    "entries within another element": page(f"<A>{entry()}</A>", count=1),
    "entries within the name": page(entry(), first="<Name>", last="lake</Name>", head=HEAD),
    "entries within entries": page(entry(StorageClass=entry("b")), count=2),
    "two keys": page(entry(Key="<Key>a</Key><Key>b</Key>")),
    "two times": page(entry(Size="<Size>1</Size><LastModified>2027-03-01T12:00:00Z</LastModified>")),
    "two sizes": page(entry(Size="<Size>1</Size><Size>2</Size>")),
    "an element nobody knows": page(entry(StorageClass="<Tier>hot</Tier>")),
    "restored objects": page(
        entry(StorageClass="<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress></RestoreStatus>")
    ),
    "a time with an offset": page(entry(time="2026-03-01T12:00:00+01:00")),
    "a time in another form": page(entry(time="Sun, 01 Mar 2026 12:00:00 GMT")),
    "a time that is none": page(entry(time="2026-02-31T12:00:00.000Z")),
    "an hour that is none": page(entry(time="2026-02-28T24:00:00.000Z")),
    "a second that is none": page(entry(time="2026-02-28T12:00:60.000Z")),
    "no key": page(entry(Key="")),
    "an empty key": page(entry("")),
    "no size": page(entry(Size="")),
    "a size that is none": page(entry(size="ten")),
    "a negative size": page(entry(size="-1")),
    "keys out of order": page(entry("b"), entry("a")),
    "the same key twice": page(entry("a"), entry("a")),
    "something after the end": ONE + b"<a/>",
    "an error": b"<Error><Code>SlowDown</Code></Error>",
    "no XML": b"captive portal",
    "nothing": b"",
}


@pytest.mark.parametrize("whole", [False, True], ids=["as needed", "whole"])
@pytest.mark.parametrize("interest", INTERESTS.values(), ids=INTERESTS)
@pytest.mark.parametrize("body", USUAL.values(), ids=USUAL)
def test_a_usual_page_is_read_and_is_what_botocore_makes_of_it(body, interest, whole):
    assert assert_agreement(body, interest, whole=whole), "it was left to the ordinary parser"


@pytest.mark.parametrize("interest", INTERESTS.values(), ids=INTERESTS)
@pytest.mark.parametrize("body", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_page_is_left_to_the_ordinary_parser(body, interest):
    assert scan_page(body, interest) is None
    assert scan_page(body, interest, whole=True) is None


def test_a_page_without_news_gives_no_objects_and_one_with_news_gives_only_these():
    assert scan_page(USUAL["a full one"], Interest(since=NOON)).objects == ()
    news = scan_page(USUAL["one with news"], Interest(since=NOON + 3 * SECOND)).objects
    assert [each.key for each in news] == ["k00004"]


def test_keys_out_of_order_within_an_old_page_are_seen_if_it_is_read_whole():
    body = page(entry("a"), entry("c"), entry("b"), entry("d"))
    interest = Interest(since=NOON + SECOND)
    assert scan_page(body, interest, whole=True) is None
    # Nothing of it is news, and its first and last key are in order.
    assert scan_page(body, interest).objects == ()


def test_news_out_of_order_on_a_page_stay_so_and_are_refused_by_whoever_lists():
    times = {"a": NOON, "c": NOON + 9 * SECOND, "b": NOON + 8 * SECOND, "d": NOON}
    body = page(*(entry(key, time=f"{time:%Y-%m-%dT%H:%M:%S}.000Z") for key, time in times.items()))
    assert [each.key for each in scan_page(body, Interest(since=NOON)).objects] == ["c", "b"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_page_without_entries_or_with_an_empty_one_is_left_to_the_ordinary_parser(count):
    for entries in ([], ["<Contents></Contents>"]):
        body = page(*entries, count=count)
        assert all(scan_page(body, interest) is None for interest in SOME)


# --- what nobody writes -------------------------------------------------------------------------------------

THREE = page(
    entry("a%3Db", time="2026-03-01T11:59:59.000Z"),
    entry("b", time="2026-03-01T12:00:00.5Z", etag='"x"'),
    entry("c", time="2026-03-01T12:00:01Z", ETag=f"<ETag>x</ETag>{CRC}"),
    last="<NextContinuationToken>abc</NextContinuationToken>",
)
SOME = [INTERESTS[name] for name in ("all", "news", "nothing", "news and keys")]


def test_a_page_that_is_cut_off_anywhere_is_an_error_and_never_a_shorter_listing():
    for length in range(1, len(THREE)):
        for interest in SOME:
            assert scan_page(THREE[:length], interest) is None
        with pytest.raises(DAMAGED):
            ordinary(THREE[:length])


def test_a_page_that_lacks_a_piece_anywhere_is_read_as_botocore_reads_it_or_not_at_all():
    read = 0
    for width in (1, 2, 7, 30, len(entry("b")), 400):
        for start in range(len(THREE) - width):
            body = THREE[:start] + THREE[start + width :]
            read += sum(assert_agreement(body, interest) for interest in SOME)
    assert read > 100, "nothing was compared"


def test_a_page_that_lacks_an_entry_or_more_is_never_read():
    entries = re.findall(rb"<Contents>.*?</Contents>", THREE)
    for first in range(3):
        for last in range(first + 1, 4):
            gone = b"".join(entries[first:last])
            assert gone in THREE
            assert all(scan_page(THREE.replace(gone, b""), interest) is None for interest in SOME)


def test_a_page_with_another_byte_anywhere_is_read_as_botocore_reads_it_or_not_at_all():
    read = 0
    for start in range(len(THREE)):
        for number, byte in enumerate(b'<>&"/ %\n\x809Z'):
            changed = THREE[:start] + bytes([byte]) + THREE[start + (start + number) % 2 :]
            read += assert_agreement(changed, SOME[(start + number) % len(SOME)])
    assert read > 500, "nothing was compared"


PIECES = [
    *(
        "<Contents>",
        "</Contents>",
        "<Key>",
        "</Key>",
        "<Size>1</Size>",
        "<ETag>",
        "</ETag>",
        "&quot;",
        "&amp;",
    ),
    *(
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "<?x y?>",
        "<a/>",
        "<IsTruncated>true</IsTruncated>",
        "</ListBucketResult>",
    ),
    *("<LastModified>2027-01-01T00:00:00Z</LastModified>", entry("bb"), "<KeyCount>4</KeyCount>", "\n", "é"),
    *("<Owner>", "</Owner>", "<StorageClass>GLACIER</StorageClass>", "<CommonPrefixes>", "</CommonPrefixes>"),
]
BORDERS = [match.start() for match in re.finditer(rb"<|(?<=>)", THREE)] + [len(THREE)]


@given(
    st.lists(st.tuples(st.sampled_from(BORDERS), st.sampled_from(PIECES)), min_size=1, max_size=4), st.data()
)
@settings(max_examples=400)
def test_a_page_with_pieces_put_in_is_read_as_botocore_reads_it_or_not_at_all(pieces, data):
    body = THREE
    for place, piece in sorted(pieces, reverse=True):
        body = body[:place] + piece.encode() + body[place:]
    body = body.replace(b"<KeyCount>3<", b"<KeyCount>%d<" % data.draw(st.integers(2, 5)))
    for interest in SOME:
        assert_agreement(body, interest)


# --- whatever is stored -------------------------------------------------------------------------------------

times = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1))  # noqa: DTZ001 - the Z is added
stamps = st.one_of(
    times.map(lambda time: time.isoformat(timespec="milliseconds") + "Z"),
    times.map(lambda time: time.isoformat(timespec="microseconds") + "Z"),
    times.map(lambda time: time.isoformat(timespec="seconds") + "Z"),
    st.integers(0, 9).map(lambda digit: f"2026-03-01T12:00:0{digit}.{digit}Z"),
)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
etags = st.one_of(
    st.text("abcdef0123456789-", max_size=9).map(lambda text: f"&quot;{text}&quot;"),
    st.text("abcdef0123456789-", max_size=9).map(lambda text: f'"{text}"'),
)


@given(
    st.dictionaries(keys, st.tuples(stamps, etags, st.integers(0, 10**13)), min_size=1, max_size=20),
    st.one_of(times.map(lambda time: time.replace(tzinfo=UTC)), st.just(BEGINNING)),
    st.data(),
)
@settings(max_examples=200)
def test_any_listing_is_read_and_is_what_botocore_makes_of_it(found, since, data):
    names = sorted(found)
    awaited = data.draw(st.none() | st.sets(st.one_of(st.sampled_from(names), keys)).map(sorted))
    body = page(*(entry(quote(name), found[name][0], found[name][1], str(found[name][2])) for name in names))
    assert assert_agreement(body, Interest(since=since, keys=awaited))
