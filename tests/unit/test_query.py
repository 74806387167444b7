"""The statements of the SQL watcher, as text for several databases."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime

import pytest

from airflow.providers.watermark.position import BEGINNING
from airflow.providers.watermark.sql.query import WatchedQuery, split_name

LOW, HIGH = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
DIALECTS = {
    "postgresql": "sqlalchemy.dialects.postgresql.asyncpg",
    "mysql": "sqlalchemy.dialects.mysql.pymysql",
    "mysql-connector": "sqlalchemy.dialects.mysql.mysqlconnector",
    "sqlite": "sqlalchemy.dialects.sqlite",
    "oracle": "sqlalchemy.dialects.oracle.oracledb",
}


@pytest.fixture(params=DIALECTS.values(), ids=DIALECTS.keys())
def dialect(request):
    return importlib.import_module(request.param).dialect()


def postgres():
    return importlib.import_module(DIALECTS["postgresql"]).dialect()


def text(question, dialect=None):
    statement = question.statement.compile(dialect=dialect or postgres())
    # All names are quoted; those that need none are easier to read without.
    found = " ".join(str(statement).split())
    for name in ("updated_at", "id", "part", "payload", "events", "sales"):
        found = re.sub(f'(?<!["`])["`]{name}["`](?!["`])', name, found)
    return found


def bound(values):
    return {f"airflow_watermark_{name}": value for name, value in values.items()}


def watched(**arguments):
    defaults = {
        "table": "events",
        "query": None,
        "cursor_column": "updated_at",
        "primary_key": ("id", "part"),
        "columns": ("payload",),
    }
    return WatchedQuery(**{**defaults, **arguments})


class TestTheNameOfATable:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("events", ["events"]),
            ("sales.events", ["sales", "events"]),
            ("my events", ["my events"]),
            ('"a.b".events', ["a.b", "events"]),
            ('"a""b"."c.d"', ['a"b', "c.d"]),
            ('sales."order"', ["sales", "order"]),
            ("Größe.100%", ["Größe", "100%"]),
        ],
    )
    def test_is_split_at_its_dots(self, name, parts):
        assert split_name(name) == parts

    @pytest.mark.parametrize(
        "name", ["", ".", "a.", ".a", "a..b", "a.b.c.d", '"', '"a', 'a"b', '"a"b', '""', 'a.""']
    )
    def test_is_refused_when_it_is_none(self, name):
        with pytest.raises(ValueError, match="is no table name"):
            split_name(name)


class TestStatements:
    def test_a_page_is_read_behind_a_row_value_and_never_with_or(self, dialect):
        """With OR the index would be read from its start: 150 times slower."""
        page = watched().page(LOW, after=(LOW, 7, "a"), before=HIGH, limit=10)
        sql = text(page, dialect)
        assert " OR " not in sql.upper()
        assert "(updated_at, id, part) >" in sql

    def test_a_page_goes_on_behind_the_row_or_else_behind_the_watermark(self):
        page = watched().page(LOW, after=(LOW, 7, "a"), before=None, limit=10)
        assert page.values == bound({"after_0": LOW, "after_1": 7, "after_2": "a", "limit": 10})
        page = watched().page(LOW, after=None, before=HIGH, limit=10)
        assert page.values == bound({"low": LOW, "before": HIGH, "limit": 10})
        page = watched().page(BEGINNING, after=None, before=None, limit=10)
        assert page.values == bound({"limit": 10})

    def test_a_page_is_in_the_order_of_the_index(self):
        sql = text(watched().page(LOW, after=None, before=HIGH, limit=10))
        assert "ORDER BY updated_at, id, part" in sql
        assert "updated_at IS NOT NULL" in sql
        assert sql.startswith("SELECT updated_at, id, part, payload FROM events")

    def test_a_window_is_exclusive_below_and_inclusive_above(self):
        sql = text(watched().window(LOW, HIGH, 10))
        assert "updated_at > $" in sql
        assert "updated_at <= $" in sql
        assert watched().window(LOW, HIGH, 10).values == bound({"low": LOW, "high": HIGH, "limit": 10})
        assert " > " not in text(watched().window(BEGINNING, HIGH, 10))

    def test_a_window_is_looked_for_in_so_many_rows(self):
        sql = text(watched().window(LOW, HIGH, 10))
        assert "ORDER BY updated_at LIMIT" in sql
        assert "count(*)" in sql

    def test_every_statement_compiles_for_every_database(self, dialect):
        for query in (watched(), watched(table=None, query="select 1"), watched(where="a > 1")):
            for question in (
                query.window(LOW, HIGH, 10),
                query.window(BEGINNING, HIGH, 10),
                query.count(LOW, HIGH),
                query.page(LOW, after=None, before=HIGH, limit=10),
                query.page(LOW, after=(LOW, 1, 2), before=None, limit=10),
                query.highest(),
                query.highest(before=HIGH),
                query.ancient(after=None, limit=10),
                query.ancient(after=(1, 2), limit=10),
                query.nulls(10),
                query.ahead(HIGH, 10),
                query.shape(),
            ):
                assert text(question, dialect).startswith("SELECT")

    @pytest.mark.parametrize("name", ["system_user", "lateral", "collation", "concurrently", "tablesample"])
    def test_words_that_sqlalchemy_does_not_know_are_quoted(self, name):
        query = watched(table=name, cursor_column=name, primary_key=(name,), columns=(name,))
        page = query.page(LOW, after=None, before=None, limit=10)
        assert text(page).count(f'"{name}"') == len(re.findall(rf"\b{name}\b", text(page))) == 8
        assert query.quoted_cursor(postgres()) == f'"{name}"'

    @pytest.mark.parametrize("name", ["low", "high", "limit", "before", "after_0"])
    def test_what_looks_like_a_bound_value_stays_as_it_is(self, name):
        query = watched(where=f"note <> '%({name})s'", columns=(f"a%({name})s",))
        page = text(query.page(LOW, after=(LOW, 7, "a"), before=HIGH, limit=10))
        assert f"note <> '%({name})s'" in page
        assert f'"a%({name})s"' in page

    def test_rows_without_a_key_are_asked_for_at_the_end_of_a_page(self):
        question = watched().keyless(LOW)
        assert "WHERE (id IS NULL OR part IS NULL) AND updated_at = $1 LIMIT 1" in text(question)
        assert question.values == bound({"low": LOW})
        assert "updated_at < 'OLD'" in text(watched(oldest="'OLD'").keyless(None))

    def test_values_are_bound_and_never_pasted(self, dialect):
        evil = "'; drop table events; --"
        for question in (
            watched().window(evil, evil, 10),
            watched().page(evil, after=(evil, evil, evil), before=evil, limit=10),
            watched().count(evil, evil),
            watched().ahead(evil, 10),
        ):
            assert "drop" not in text(question, dialect)
            assert evil in question.values.values()


class TestIdentifiers:
    def test_are_quoted_where_the_database_wants_it(self):
        query = watched(table='Sales."my ""events"""', cursor_column="order", primary_key=("Id",))
        sql = text(query.page(LOW, after=None, before=None, limit=1))
        assert 'SELECT "order", "Id", payload FROM "Sales"."my ""events"""' in sql

    def test_are_quoted_each_in_its_databases_way(self, dialect):
        opening = {"mysql": "`"}.get(dialect.name, '"')
        sql = text(watched(cursor_column="my order").count(LOW, HIGH), dialect)
        assert f"{opening}my order" in sql

    def test_of_a_schema_are_split_not_quoted_whole(self):
        assert "FROM sales.events" in text(watched(table="sales.events").highest())

    def test_of_the_cursor_are_given_to_consumers_as_sql(self):
        assert watched().quoted_cursor(postgres()) == "updated_at"
        assert watched(cursor_column="updated At").quoted_cursor(postgres()) == '"updated At"'
        assert watched(cursor_column='a"b').quoted_cursor(postgres()) == '"a""b"'

    def test_of_the_cursor_keep_their_percent_signs(self, dialect):
        """Drivers want them doubled only where values are bound, which ``ReadWindow.where`` sees to."""
        assert watched(cursor_column="100% at").quoted_cursor(dialect)[1:-1] == "100% at"


class TestTheAuthorsOwnSql:
    @pytest.mark.parametrize(
        "where",
        [
            "a::text = ':x'",
            "t = '12:30:45'",
            "a ? 'b'",
            r"b ~ '\:'",
            "c = 'a:b::c'",
            "x[1:2] = y",
            "a % 2 = 1",
        ],
    )
    def test_stands_as_it_is(self, where):
        assert where in text(watched(where=where).highest())
        query = f"select * from t where {where}"  # noqa: S608
        assert where in text(watched(table=None, query=query).highest())

    def test_has_its_percent_signs_doubled_for_drivers_that_want_it(self):
        dialect = importlib.import_module(DIALECTS["mysql"]).dialect()
        assert "a %% 2 = 1" in text(watched(where="a % 2 = 1").highest(), dialect)

    def test_of_a_predicate_is_one_operand(self):
        sql = text(watched(where="a or b").count(LOW, HIGH))
        assert "(a or b )" in sql

    def test_may_end_in_a_comment(self):
        statement = watched(where="a -- b").highest().statement.compile(dialect=postgres())
        assert "a -- b\n)" in str(statement)
        statement = watched(table=None, query="select 1 -- b").highest().statement.compile(dialect=postgres())
        assert "select 1 -- b\n)" in str(statement)

    def test_of_a_query_is_a_derived_table_without_its_semicolon(self):
        sql = text(watched(table=None, query="select * from t ; \n").highest())
        assert "(select * from t ) AS watched" in sql


def test_texts_are_compared_by_code_points_where_a_collation_says_so():
    sql = text(watched(collation="C").page("a", after=("a", 1, 2), before=None, limit=1))
    assert '(updated_at COLLATE "C", id, part) >' in sql
    assert 'ORDER BY updated_at COLLATE "C", id, part' in sql


class TestTimesThatCannotBeRead:
    OLD = "'0001-01-02'"

    def test_are_left_out_of_pages_and_read_by_key_instead(self):
        query = watched(oldest=self.OLD)
        assert f"updated_at >= {self.OLD}" in text(query.page(BEGINNING, after=None, before=HIGH, limit=1))
        assert self.OLD not in text(query.page(LOW, after=None, before=HIGH, limit=1))
        sql = text(query.ancient(after=(7, "a"), limit=1))
        assert f"updated_at < {self.OLD} AND (id, part) > ($1, $2) ORDER BY id, part LIMIT" in sql
        assert sql.startswith("SELECT id, part, payload FROM events")
        assert query.ancient(after=(7, "a"), limit=1).values == bound(
            {"after_1": 7, "after_2": "a", "limit": 1}
        )

    def test_are_no_ends_of_windows(self):
        query = watched(oldest=self.OLD)
        assert f"greatest(rows_found.position, {self.OLD})" in text(query.window(BEGINNING, HIGH, 1))
        assert self.OLD not in text(query.window(LOW, HIGH, 1))
        assert "greatest" not in text(watched().window(BEGINNING, HIGH, 1))
