"""The arguments of the SQL watcher: what is wrong with them is said while the Dag is parsed."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.exceptions import InvalidArgumentError
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger


def make(**arguments):
    given = {"asset_name": "rows", "conn_id": "db", "table": "events", **arguments}
    return SQLUpdatedAtTrigger(**{name: value for name, value in given.items() if value is not ...})


def problem(**arguments):
    with pytest.raises(InvalidArgumentError) as caught:
        make(**arguments).serialize()
    return str(caught.value)


GOOD = [
    {},
    {"table": "sales.events"},
    {"table": '"a.b"."c d"'},
    {"table": ..., "query": "select * from events"},
    {"payload": "keys", "primary_key": "id"},
    {"payload": "keys", "primary_key": ["id", "part"]},
    {"payload": "rows", "primary_key": "id", "columns": ["a", "b"]},
    {"payload": "keys", "primary_key": "id", "delivery": "settled"},
    {"payload": "keys", "primary_key": "id", "delivery": "eager"},
    {"delivery": "settled"},
    {"where": "kind like '100%' and t = '12:30'"},
    {"cursor_timezone": "Europe/Berlin"},
    {"where": "a = '--' and b <> ';'"},
    {"table": ..., "query": "select * from events; -- all of them"},
    {"max_rows_per_event": 1_000_000},
    {"ignore_roles": ["analyst"], "max_bound_wait": 600},
    {"late_arrival": 0.1, "poll_interval": 0.5},
    {"null_cursor": "error"},
    {"start_from": "beginning"},
    {"start_from": "2026-01-01T00:00:00Z"},
    {"start_from": "2026-01-01"},
    {"start_from": "2026-01-01T00:00:00", "cursor_timezone": "UTC"},
    {"start_from": "12345"},
    {"start_from": "1.25"},
    {"start_from": "00000000-0000-0000-0000-00000000000a"},
]

BAD = [
    ({"conn_id": ""}, "conn_id=''"),
    ({"conn_id": 5}, "conn_id=5"),
    ({"table": ...}, "table=None, query=None: exactly one"),
    ({"query": "select 1"}, "table='events', query='select 1': exactly one"),
    ({"table": "a..b"}, "table='a..b': must be a table's name, or schema.name"),
    ({"table": "a."}, "table='a.'"),
    ({"table": 'a"b'}, "table='a\"b'"),
    ({"table": 5}, "table=5: must be a string"),
    ({"table": ""}, "table='': must not be empty"),
    ({"table": " "}, "table=' ': must not be blank"),
    ({"table": "a. "}, "table='a. ': must be a table's name, or schema.name"),
    ({"table": '"a"." "'}, "must be a table's name, or schema.name"),
    ({"table": "a\0b"}, "table='a\\x00b': must have no NUL character"),
    ({"table": "a\ud800"}, "table='a\\ud800': must be valid Unicode"),
    (
        {"table": "a.b.c"},
        "table='a.b.c': must be a table's name, or schema.name; the database is the connection's",
    ),
    ({"table": '"a"."b"."c"'}, "schema.name; the database is the connection's"),
    ({"table": ..., "query": "  "}, "query='  ': must not be blank"),
    ({"table": ..., "query": " ;\n"}, "query=' ;\\n': must be more than semicolons and comments"),
    ({"table": ..., "query": "-- select 1\n/* select\n2 */;"}, "must be more than semicolons and comments"),
    ({"table": ..., "query": "select '\0'"}, "must have no NUL character"),
    ({"conn_id": " "}, "conn_id=' ': must not be blank"),
    ({"cursor_column": "\t"}, "cursor_column='\\t': must not be blank"),
    ({"columns": ["a\0"]}, "columns='a\\x00': must have no NUL character"),
    ({"ignore_roles": ["\udcff"]}, "ignore_roles='\\udcff': must be valid Unicode"),
    ({"where": "  "}, "where='  ': must not be blank"),
    ({"where": ";"}, "where=';': must be more than semicolons and comments"),
    ({"cursor_column": ""}, "cursor_column=''"),
    ({"cursor_column": None}, "cursor_column=None"),
    ({"where": ""}, "where=''"),
    ({"where": "day = '{{ ds }}'"}, "Airflow renders no templates"),
    ({"payload": "row"}, "payload='row': must be one of 'window', 'keys', 'rows'"),
    ({"payload": "keys"}, "primary_key=None: must name the key for payload='keys'"),
    ({"payload": "keys", "primary_key": []}, "primary_key=[]"),
    ({"payload": "rows", "primary_key": "id"}, "columns=[]: must name the columns"),
    ({"primary_key": ["id", 5]}, "primary_key=5: must be a string"),
    ({"primary_key": 5}, "primary_key=5: must be a string or a list of strings"),
    ({"primary_key": ("id",)}, "primary_key=('id',): must be a string or a list of strings"),
    ({"primary_key": ""}, "primary_key='': must not be empty"),
    ({"primary_key": ["id", " "]}, "primary_key=' ': must not be blank"),
    ({"columns": ["a"]}, "columns=['a']: means nothing without payload='rows'"),
    (
        {"payload": "keys", "primary_key": "id", "columns": ["a"]},
        "columns=['a']: means nothing without payload='rows'",
    ),
    ({"columns": "a, b"}, "columns='a, b': must be a list of strings"),
    ({"ignore_roles": "analyst"}, "ignore_roles='analyst': must be a list of strings"),
    ({"delivery": "eager"}, "delivery='eager': must be 'settled' for payload='window'"),
    ({"delivery": "at once"}, "delivery='at once'"),
    ({"max_rows_per_event": 0}, "max_rows_per_event=0"),
    ({"max_rows_per_event": 1.5}, "max_rows_per_event=1.5"),
    (
        {"max_rows_per_event": 1_000_001},
        "max_rows_per_event=1000001: must be a whole number of at least 1 and at most 1000000",
    ),
    ({"max_event_bytes": 100}, "max_event_bytes=100"),
    ({"late_arrival": 0}, "late_arrival=0"),
    ({"late_arrival": "5s"}, "late_arrival='5s'"),
    ({"max_bound_wait": 0}, "max_bound_wait=0"),
    ({"null_cursor": "skip"}, "null_cursor='skip': must be one of 'warn', 'ignore', 'error'"),
    ({"cursor_timezone": "Berlin"}, "cursor_timezone='Berlin': must be a time zone such as 'UTC'"),
    ({"cursor_timezone": "+01:00"}, "cursor_timezone='+01:00'"),
    ({"start_from": "yesterday"}, "start_from='yesterday'"),
    ({"start_from": 5}, "start_from=5"),
    ({"updated_at": "x"}, "updated_at: unknown option"),
    ({"primary_keys": "id"}, "did you mean 'primary_key'?"),
]


@pytest.mark.parametrize("arguments", GOOD, ids=repr)
def test_what_is_right_is_accepted(arguments):
    path, stored = make(**arguments).serialize()
    assert path == "airflow.providers.watermark.triggers.sql.SQLUpdatedAtTrigger"
    assert SQLUpdatedAtTrigger(**stored).serialize() == (path, stored)


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(arguments, message):
    assert message in problem(**arguments)


def test_all_mistakes_are_told_together():
    told = problem(conn_id="", payload="nonsense", max_rows_per_event=0)
    assert all(name in told for name in ("conn_id=''", "payload='nonsense'", "max_rows_per_event=0"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"cursor_timezone": ""},
        {"cursor_timezone": 5},
        {"table": ""},
        {"table": 5},
        {"table": " "},
        {"where": ""},
        {"where": ";"},
        {"table": ..., "query": "  "},
        {"payload": "nonsense"},
        {"payload": None},
        {"payload": "keys", "primary_key": ""},
        {"payload": "keys", "primary_key": 5},
        {"payload": "keys", "primary_key": False},
        {"payload": "rows", "primary_key": [], "columns": ["a"]},
        {"payload": "rows", "primary_key": "id", "columns": None},
        {"payload": "rows", "primary_key": "id", "columns": ""},
        {"payload": "keys", "primary_key": "id", "columns": "a"},
    ],
    ids=repr,
)
def test_a_mistake_is_told_once(arguments):
    assert len(list(make(**arguments).problems())) == 1


class TestWhatIsDerived:
    def test_windows_are_settled_and_changes_eager_by_default(self):
        assert not make().eager
        assert make(payload="keys", primary_key="id").eager
        assert not make(payload="keys", primary_key="id", delivery="settled").eager

    def test_the_source_names_the_connection_and_the_table(self):
        assert make(table="sales.events").source == "sql://db/sales.events"

    def test_queries_are_told_apart_and_not_shown(self):
        one = make(table=..., query="select 1 as secret")
        other = make(table=..., query="select 2")
        assert one.source != other.source
        assert "secret" not in one.source

    @pytest.mark.parametrize(
        "arguments",
        [
            {"conn_id": "other"},
            {"table": "other"},
            {"table": ..., "query": "select 1"},
            {"cursor_column": "other"},
            {"where": "a"},
        ],
        ids=repr,
    )
    def test_another_source_has_another_watermark(self, arguments):
        assert make(**arguments).key != make().key

    @pytest.mark.parametrize(
        "arguments",
        [
            {"poll_interval": 5},
            {"late_arrival": 5},
            {"max_rows_per_event": 5},
            {"null_cursor": "ignore"},
            {"ignore_roles": ["a"]},
            {"max_bound_wait": 5},
            {"cursor_timezone": "UTC"},
            {"payload": "keys", "primary_key": "id"},
            {"payload": "rows", "primary_key": "id", "columns": ["a"]},
        ],
        ids=repr,
    )
    def test_tuning_keeps_the_watermark(self, arguments):
        assert make(**arguments).key == make().key
