"""Trigger arguments: mistakes are import errors of the Dag; in the triggerer nothing is ever raised."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import ConfigurationError, InvalidArgumentError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

CLASS_PATH = "airflow.providers.watermark.triggers.s3.S3PrefixTrigger"
GOOD = {"asset_name": "orders", "bucket_name": "lake", "prefix": "orders/"}
FIELDS = {field.name: field for field in dataclasses.fields(S3PrefixTrigger)}


def message_of(**given):
    """Give the message with which serialize() refuses arguments."""
    with pytest.raises(InvalidArgumentError) as caught:
        S3PrefixTrigger(**{**GOOD, **given}).serialize()
    return str(caught.value)


# --- good arguments -----------------------------------------------------------------------------------------


def test_only_what_differs_from_its_default_is_stored():
    assert S3PrefixTrigger(**GOOD, poll_interval=60, exclude=[], max_seen=100).serialize() == (
        CLASS_PATH,
        {**GOOD, "max_seen": 100},
    )


def test_the_defaults_are_those_of_the_documentation():
    defaults = {
        name: field.default if field.default is not dataclasses.MISSING else field.default_factory()
        for name, field in FIELDS.items()
    }
    assert defaults == {
        "asset_name": "",
        "delivery": "eager",
        "start_from": "now",
        "poll_interval": 60.0,
        "late_arrival": 600.0,
        "max_event_bytes": 49152,
        "max_seen": 4096,
        "commit_delay": None,
        "watermark_namespace": None,
        "watermark_key": None,
        "store": None,
        "bucket_name": "",
        "prefix": "",
        "aws_conn_id": "aws_default",
        "region_name": None,
        "verify": None,
        "pattern": None,
        "exclude": [],
        "max_upload_age": 86400.0,
        "max_objects_per_event": 500,
        "list_concurrency": 8,
        "scan": "full",
        "lookback_keys": 1000,
        "partition_lookback": 172800.0,
        "reconcile_interval": 86400.0,
        "request_payer": None,
        "expected_bucket_owner": None,
    }


ACCEPTED = [
    {"start_from": "beginning"},
    {"start_from": "2026-01-31T00:00:00Z"},
    {"start_from": "2026-01-31 00:00:00+02:00"},
    {"delivery": "settled"},
    {"poll_interval": 1},
    {"poll_interval": 0.01},
    {"late_arrival": 0.5},
    {"commit_delay": 2.5},
    {"max_upload_age": 0},
    {"max_seen": 1},
    {"max_seen": 65536},
    {"max_event_bytes": 8192},
    {"max_objects_per_event": 1},
    {"prefix": ""},
    {"prefix": "a b+%=/日本/"},
    {"aws_conn_id": None},
    {"aws_conn_id": "my_aws"},
    {"region_name": "eu-central-1"},
    {"verify": False},
    {"verify": True},
    {"verify": "/etc/ssl/ca.pem"},
    {"pattern": "*.csv"},
    {"pattern": "**/[!_]*.parquet"},
    {"exclude": ["*.tmp", "_temporary/**"]},
    {"request_payer": "requester"},
    {"expected_bucket_owner": "123456789012"},
    {"watermark_key": "orders", "watermark_namespace": "sales"},
    {"bucket_name": "my.bucket-1"},
    {"bucket_name": "Old_Style_Bucket"},
    {"bucket_name": "my-access-point-abcdefghijklmnopqrstuvwxyz012-s3alias"},
]


@pytest.mark.parametrize("given_", ACCEPTED, ids=json.dumps)
def test_a_good_argument_is_accepted_and_kept_as_it_is(given_):
    _, stored = S3PrefixTrigger(**{**GOOD, **given_}).serialize()
    for name, value in given_.items():
        assert stored.get(name, FIELDS[name].default) == value


# --- bad arguments ------------------------------------------------------------------------------------------

NUMBERS = ("poll_interval", "late_arrival", "commit_delay", "max_upload_age")
WHOLES = ("max_event_bytes", "max_seen", "max_objects_per_event")
TEXTS = ("bucket_name", "prefix", "delivery", "start_from")
OPTIONAL_TEXTS = (
    "aws_conn_id",
    "region_name",
    "pattern",
    "expected_bucket_owner",
    "watermark_namespace",
    "watermark_key",
)

# (argument, value, what is said to be allowed)
REFUSED = [
    ("asset_name", "", "watch() sets it"),
    ("asset_name", None, "watch() sets it"),
    ("asset_name", 5, "must be a string"),
    ("asset_name", "a{{ ds }}", "no templates"),
    ("bucket_name", "", "must be a bucket's name"),
    ("bucket_name", "s3://lake", "without 's3://'"),
    ("bucket_name", "lake/orders", "without a prefix"),
    ("bucket_name", "arn:aws:s3:us-east-1:123456789012:accesspoint/orders", "or an ARN"),
    ("bucket_name", "orders--use1-az4--x-s3", "directory buckets"),
    ("bucket_name", "{{ var.value.bucket }}", "must be a bucket's name"),
    ("bucket_name", "la ke", "must be a bucket's name"),
    ("bucket_name", "lake\n", "must be a bucket's name"),
    ("bucket_name", "ab", "3 to 255"),
    ("prefix", "s3://lake/orders/", "without the bucket"),
    ("prefix", "{{ ds }}/", "no templates"),
    ("prefix", "\ud800", "valid Unicode"),
    ("delivery", "fast", "'eager', 'settled'"),
    ("start_from", "yesterday", "'now', 'beginning', or a time with a UTC offset"),
    ("start_from", "2026-01-31", "a time with a UTC offset"),
    ("start_from", "2026-01-31T00:00:00", "a time with a UTC offset"),
    ("start_from", "", "'now', 'beginning'"),
    ("start_from", "0001-01-01T00:00:00+14:00", "a time with a UTC offset"),
    ("start_from", datetime(2026, 1, 31, tzinfo=UTC), "a time with a UTC offset"),
    ("pattern", "", "must not be empty"),
    ("pattern", "[z-a]", "no valid glob"),
    ("exclude", [""], "must not be empty"),
    ("exclude", ["*.tmp", "[z-a]"], "no valid glob"),
    ("exclude", "*.tmp", "must be a list of strings"),
    ("exclude", ("*.tmp",), "must be a list of strings"),
    ("exclude", [1], "must be a string"),
    ("exclude", [None], "must be a string"),
    ("exclude", None, "must be a list of strings"),
    ("exclude", 5, "must be a list of strings"),
    ("exclude", True, "must be a list of strings"),
    ("verify", 1, "True, False, None or the path"),
    ("verify", [], "True, False, None or the path"),
    ("request_payer", "me", "'requester' or None"),
    ("request_payer", True, "'requester' or None"),
    ("request_payer", [], "'requester' or None"),
    *((name, -1, "a number") for name in NUMBERS),
    *((name, -0.001, "a number") for name in NUMBERS),
    *((name, 0, "a number above 0") for name in NUMBERS[:3] if name != "poll_interval"),
    ("poll_interval", 0, "a number of at least 0.01"),
    *((name, float("nan"), "a number") for name in NUMBERS),
    *((name, float("inf"), "a number") for name in NUMBERS),
    *((name, 10**400, "a number") for name in NUMBERS),
    *((name, "60", "seconds") for name in NUMBERS),
    *((name, True, "seconds") for name in NUMBERS),
    *((name, timedelta(minutes=1), "timedelta.total_seconds()") for name in NUMBERS),
    *((name, Decimal(60), "seconds") for name in NUMBERS),
    *((name, None, "seconds") for name in NUMBERS if name != "commit_delay"),
    *((name, 0, "a whole number of at least") for name in WHOLES),
    *((name, -5, "a whole number of at least") for name in WHOLES),
    *((name, 10000.0, "a whole number") for name in WHOLES),
    *((name, "10000", "a whole number") for name in WHOLES),
    *((name, True, "a whole number") for name in WHOLES),
    *((name, None, "a whole number") for name in WHOLES),
    *((name, timedelta(1), "a whole number") for name in WHOLES),
    ("max_event_bytes", 8191, "at least 8192"),
    ("max_seen", 65537, "at most 65536"),
    *((name, None, "must be") for name in TEXTS),
    *((name, value, "must be") for name in TEXTS for value in (5, True, ["a"], b"a", timedelta(1))),
    *((name, value, "must be a string") for name in OPTIONAL_TEXTS for value in (5, True, ["a"], b"a")),
    *((name, "", "must not be empty") for name in OPTIONAL_TEXTS),
    *((name, "{{ conn.x }}", "no templates") for name in OPTIONAL_TEXTS if name != "pattern"),
]


@pytest.mark.parametrize(
    ("name", "value", "allowed"), REFUSED, ids=[f"{name}={value!r}"[:60] for name, value, _ in REFUSED]
)
def test_a_bad_argument_is_refused_with_its_name_its_value_and_what_is_allowed(name, value, allowed):
    message = message_of(**{name: value})
    assert message.startswith("S3PrefixTrigger: ")
    shown = value[-1] if isinstance(value, list) and value and name == "exclude" else value
    assert f"{name}={shown!r}: " in message
    assert allowed in message


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
    "value", [None, True, 5, -1, "x", timedelta(1), [], [1], {}, {"a": 1}, b"x", Path("x"), object], ids=repr
)
def test_no_value_of_a_field_makes_another_error_than_ours(name, value):
    trigger = S3PrefixTrigger(**{**GOOD, name: value})
    try:
        _, stored = trigger.serialize()
    except InvalidArgumentError as error:
        assert f"{name}=" in str(error)  # noqa: PT017 - whether it raises depends on the value
    else:
        json.dumps(stored)


def test_all_mistakes_are_told_at_once():
    message = message_of(bucket_name="", poll_interval=0, max_sen=1)
    assert all(name in message for name in ("bucket_name=''", "poll_interval=0", "max_sen"))


def test_a_missing_asset_name_is_told():
    with pytest.raises(InvalidArgumentError, match=r"asset_name=''.*watch\(\)"):
        S3PrefixTrigger(bucket_name="lake").serialize()


@pytest.mark.parametrize(
    ("unknown", "hint"),
    [
        ("poll_intervall", "poll_intervall: unknown option; did you mean 'poll_interval'?"),
        ("bucket", "did you mean 'bucket_name'?"),
        ("prefixes", "did you mean 'prefix'?"),
        ("zzz", "zzz: unknown option; allowed are asset_name, "),
    ],
)
def test_an_unknown_option_is_told_with_the_nearest_one(unknown, hint):
    assert hint in message_of(**{unknown: 1})


def test_an_invalid_argument_is_a_configuration_error_and_a_value_error():
    assert issubclass(InvalidArgumentError, ConfigurationError)
    assert issubclass(InvalidArgumentError, ValueError)


@pytest.mark.parametrize(
    ("problems", "expected"),
    [
        (arguments.number("x", 0, above=0), ["x=0: must be a number above 0"]),
        (arguments.number("x", -1), ["x=-1: must be a number of at least 0"]),
        (arguments.number("x", 1.5, above=1), []),
        (
            arguments.whole("x", 3, at_least=1, at_most=2),
            ["x=3: must be a whole number of at least 1 and at most 2"],
        ),
        (arguments.whole("x", 2, at_least=1, at_most=2), []),
        (arguments.choice("x", "c", ["a", "b"]), ["x='c': must be one of 'a', 'b'"]),
        (arguments.choice("x", {}, ["a"]), ["x={}: must be one of 'a'"]),
        (arguments.text("x", None, optional=True), []),
        (arguments.text("x", "", empty=True), []),
        (arguments.flat_list("x", ["a", 1]), ["x=1: must be a string"]),
    ],
)
def test_a_problem_names_the_argument_the_value_and_what_is_allowed(problems, expected):
    assert list(problems) == expected


# --- in the triggerer ---------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
argument_names = st.sampled_from(list(FIELDS)) | st.text(max_size=9)


@given(st.dictionaries(argument_names, json_values, max_size=6))
def test_no_stored_arguments_make_the_constructor_raise_and_all_are_kept(stored):
    trigger = S3PrefixTrigger(**stored)
    for name, value in stored.items():
        kept = getattr(trigger, name) if name in FIELDS else trigger.unknown_arguments[name]
        assert kept is value
    repr(trigger)


@pytest.mark.parametrize(
    "name",
    ["self", "cls", "kwargs", "log", "key", "source", "task", "trigger_id", "__class__", "_unknown", "open"],
)
def test_an_unknown_argument_may_have_any_name(name):
    trigger = S3PrefixTrigger(**{**GOOD, name: 1})
    assert trigger.unknown_arguments == {name: 1}
    assert f"{name}: unknown option" in message_of(**{name: 1})


@given(st.dictionaries(argument_names, json_values, max_size=4))
def test_no_stored_arguments_make_anything_raise_that_airflow_calls(stored):
    trigger = S3PrefixTrigger(**stored)
    trigger.trigger_id = 7
    assert hash(trigger.shared_stream_key()) is not None
    _, kwargs = trigger.serialize()
    producer = S3PrefixTrigger.create_shared_stream_producer(kwargs)
    assert producer is not None
    assert trigger.low_watermark is None


def test_in_the_triggerer_serialize_neither_validates_nor_loses_what_is_unknown():
    trigger = S3PrefixTrigger(bucket_name="", from_a_later_release=[1])
    trigger.shared_stream_key()
    path, kwargs = trigger.serialize()
    assert path == CLASS_PATH
    assert {"from_a_later_release": [1]}.items() <= kwargs.items()


def test_each_trigger_has_a_stream_of_its_own():
    one, two = S3PrefixTrigger(**GOOD), S3PrefixTrigger(**GOOD)
    one.trigger_id, two.trigger_id = 1, 2
    assert one.shared_stream_key() != two.shared_stream_key()
    assert one.serialize()[1] != two.serialize()[1]


def test_an_edited_trigger_does_not_take_over_the_stream_of_the_one_before():
    """Two instances of one row: each producer is built for the instance whose arguments it got."""
    old, new = S3PrefixTrigger(**GOOD), S3PrefixTrigger(**GOOD)
    old.trigger_id = new.trigger_id = 1
    for trigger in (old, new):
        trigger.shared_stream_key()
    S3PrefixTrigger.create_shared_stream_producer(new.serialize()[1])
    assert new._committer is not None
    assert old._committer is None


async def test_the_filter_turns_payloads_into_events_and_passes_over_progress():
    async def stream():
        for payload in ({"a": 1}, None, {"b": 2}):
            yield payload

    events = [event.payload async for event in S3PrefixTrigger(**GOOD).filter_shared_stream(stream())]
    assert events == [{"a": 1}, {"b": 2}]


# --- repr, hash and Airflow's encoders ----------------------------------------------------------------------


def test_the_repr_shows_the_arguments_and_no_token_of_the_instance():
    trigger = S3PrefixTrigger(**GOOD, unknown=1)
    expected = "S3PrefixTrigger(unknown=1, asset_name='orders', prefix='orders/', bucket_name='lake')"
    assert repr(trigger) == expected
    trigger.trigger_id = 7
    trigger.shared_stream_key()
    assert "__instance__" in trigger.serialize()[1]
    assert repr(trigger) == expected


def test_the_repr_of_bad_arguments_does_not_raise():
    assert (
        repr(S3PrefixTrigger(bucket_name=None, exclude=5)) == "S3PrefixTrigger(exclude=5, bucket_name=None)"
    )


def test_two_constructions_have_one_hash():
    one, two = S3PrefixTrigger(**GOOD, exclude=["*.tmp"]), S3PrefixTrigger(**GOOD, exclude=["*.tmp"])
    assert BaseEventTrigger.hash(*one.serialize()) == BaseEventTrigger.hash(*two.serialize())


def test_an_edit_has_another_hash():
    one, two = S3PrefixTrigger(**GOOD), S3PrefixTrigger(**GOOD, poll_interval=5)
    assert BaseEventTrigger.hash(*one.serialize()) != BaseEventTrigger.hash(*two.serialize())


@pytest.mark.parametrize("given_", ACCEPTED, ids=json.dumps)
def test_arguments_come_back_from_airflows_encoders_as_they_were(given_):
    trigger = S3PrefixTrigger(**{**GOOD, **given_})
    encoded = json.loads(json.dumps(encode_trigger(trigger)))
    decoded = smart_decode_trigger_kwargs(encoded["kwargs"])
    again = S3PrefixTrigger(**decoded)
    assert again.arguments() == trigger.arguments()
    assert again.serialize() == trigger.serialize()
    assert again.key == trigger.key
    assert BaseEventTrigger.hash(encoded["classpath"], encoded["kwargs"]) == BaseEventTrigger.hash(
        *trigger.serialize()
    )


# --- what a watermark is named after ------------------------------------------------------------------------

TUNING = {
    "list_concurrency": 1,
    "scan": "ordered",
    "lookback_keys": 5,
    "partition_lookback": 0.0,
    "reconcile_interval": 60.0,
    "poll_interval": 1.0,
    "late_arrival": 1.0,
    "max_event_bytes": 10000,
    "max_seen": 7,
    "commit_delay": 1.0,
    "delivery": "settled",
    "start_from": "beginning",
    "aws_conn_id": "other",
    "region_name": "eu-west-1",
    "verify": False,
    "max_upload_age": 5.0,
    "max_objects_per_event": 5,
    "request_payer": "requester",
    "expected_bucket_owner": "1",
}
SOURCE = {"bucket_name": "other", "prefix": "x/", "pattern": "*.csv", "exclude": ["*.tmp"]}


def test_every_field_is_either_tuning_or_source_or_names_the_watermark():
    assert {*TUNING, *SOURCE, "asset_name", "watermark_namespace", "watermark_key", "store"} == set(FIELDS)


@pytest.mark.parametrize("name", TUNING)
def test_tuning_changes_neither_the_key_nor_the_fingerprint(name):
    one, two = S3PrefixTrigger(**GOOD), S3PrefixTrigger(**{**GOOD, name: TUNING[name]})
    assert (one.key, one.fingerprint) == (two.key, two.fingerprint)


@pytest.mark.parametrize("name", SOURCE)
def test_another_source_has_another_key_and_fingerprint(name):
    one, two = S3PrefixTrigger(**GOOD), S3PrefixTrigger(**{**GOOD, name: SOURCE[name]})
    assert one.key.key != two.key.key
    assert one.fingerprint != two.fingerprint


def test_the_key_is_the_same_for_ever():
    assert S3PrefixTrigger(**GOOD).key == WatermarkKey("orders", "s3", "m-7ZNLcJ3l0")


def test_an_explicit_key_and_namespace_are_used_as_they_are():
    trigger = S3PrefixTrigger(**GOOD, watermark_key="k", watermark_namespace="n")
    assert trigger.key == WatermarkKey("orders", "n", "k")
    assert trigger.fingerprint == S3PrefixTrigger(**GOOD).fingerprint


def test_the_fingerprint_is_json():
    fingerprint = S3PrefixTrigger(**GOOD, exclude=["a"]).fingerprint
    assert json.loads(json.dumps(fingerprint)) == fingerprint


def test_the_aip_93_names_are_there():
    trigger = S3PrefixTrigger(**GOOD)
    watermark = trigger.asset_watermark
    assert (watermark.asset_name, watermark.namespace, watermark.key) == tuple(trigger.key)
    assert trigger.low_watermark is None


# --- subclasses ---------------------------------------------------------------------------------------------


class Plain(BaseWatermarkTrigger):
    watcher_name = "plain"
    source_fields = ("place",)
    place: str = "here"

    source = property(lambda self: self.place)

    async def get_high_watermark(self):
        raise NotImplementedError

    async def read_changes(self, sweep):
        raise NotImplementedError
        yield


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Decorated(Plain):
    more: int = 1


class Deeper(Decorated):
    deep: str = "d"


@pytest.mark.parametrize("cls", [Plain, Decorated, Deeper], ids=lambda cls: cls.__name__)
def test_a_subclass_is_a_dataclass_that_accepts_what_it_does_not_know(cls):
    trigger = cls(asset_name="a", place="there", unheard_of=1)
    assert (trigger.place, trigger.unknown_arguments) == ("there", {"unheard_of": 1})
    with pytest.raises(InvalidArgumentError, match="unheard_of"):
        trigger.serialize()
    assert trigger.trigger_id is None, "Airflow's own constructor ran"
    assert repr(trigger) == f"{cls.__name__}(unheard_of=1, asset_name='a', place='there')"
    assert hash(trigger) == hash(trigger), "eq=False keeps the hash of the instance"


def test_fields_are_inherited_and_keyword_only():
    trigger = Deeper(asset_name="a", deep="x", more=2, place="p")
    assert trigger.serialize()[1] == {"asset_name": "a", "deep": "x", "more": 2, "place": "p"}
    with pytest.raises(TypeError):
        Deeper("a")


def test_a_subclass_may_override_a_default():
    class Eager(Plain):
        poll_interval: float = 5.0

    assert Eager(asset_name="a").poll_interval == 5.0
    assert Eager(asset_name="a", poll_interval=60.0).serialize()[1] == {
        "asset_name": "a",
        "poll_interval": 60.0,
    }


def test_lists_are_not_shared_between_instances():
    one, two = S3PrefixTrigger(), S3PrefixTrigger()
    one.exclude.append("x")
    assert two.exclude == []
