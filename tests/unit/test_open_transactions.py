"""What MySQL and MariaDB say of their sessions, and up to when all is settled by that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow.providers.watermark.sql.settling import Activity, Server

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds):
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(Server, "known", {})
    return Server.find("db", NOON, uptime=1000)


@pytest.fixture
def settled(server):
    """Tell what is settled at a time, in seconds after noon; ``None``: it is unknown."""

    def see(now, statements=(), transactions=()):
        seen = Activity(
            [(session, at(began), waits) for session, began, waits in statements],
            [(session, None if began is None else at(began)) for session, began in transactions],
        )
        found, trouble = server.see(at(now), seen)
        assert (trouble is None) == (found is not None and found > at(now - 60))
        return None if found is None else (found - NOON).total_seconds()

    return see


def test_without_transactions_all_is_settled_now(settled):
    assert settled(10) == 10
    assert settled(10, [(7, 1, False)]) == 10


def test_the_oldest_transaction_counts(settled):
    assert settled(100, transactions=[(7, 90), (8, 30), (8, 60), (9, 95)]) == 30


def test_what_is_prepared_counts_by_its_age_if_it_began_since_the_server_was_reached(settled):
    assert settled(100, transactions=[(0, 50), (7, 70)]) == 50
    assert settled(100, transactions=[(0, 50), (0, 0)]) is None
    assert settled(100, transactions=[(0, -5)]) is None
    assert settled(100, transactions=[(7, -5)]) == -5


def test_an_unknown_age_hides_no_other(settled):
    assert settled(10, [(7, 3, True)], [(8, None)]) is None
    assert settled(20, [(7, 3, False)]) == 3


class TestAStatementThatWaited:
    def test_counts_while_it_waits(self, settled):
        assert settled(10, [(7, 3, True)]) == 3
        assert settled(20, [(7, 3, True)]) == 3

    def test_counts_until_its_transaction_has_ended(self, settled):
        assert settled(10, [(7, 3, True)]) == 3
        assert settled(20, [(7, 3, False)]) == 3, "it has its lock, and no transaction yet"
        assert settled(30, [(7, 3, False)], [(7, 21)]) == 3
        assert settled(40, [], [(7, 22)]) == 3, "ages are whole seconds"
        assert settled(50) == 50

    def test_does_not_count_for_the_next_statement_or_transaction_of_its_session(self, settled):
        assert settled(10, [(7, 3, True), (8, 4, True)]) == 3
        assert settled(20, [(7, 15, False), (8, 4, False)], [(8, 16)]) == 4
        assert settled(30, [(8, 29, False)], [(8, 29)]) == 29

    def test_is_not_taken_for_another_transaction_of_its_session(self, settled):
        """It is about to commit, say: its own one is open already."""
        assert settled(10, [(7, 9, True)], [(7, 9)]) == 9
        assert settled(72, [], [(7, 71)]) == 71
        assert settled(80, [(8, 78, True)], [(8, 79)]) == 78
        assert settled(90, [], [(8, 79)]) == 78
        assert settled(100, [], [(8, 99)]) == 99

    def test_is_not_ended_by_a_look_that_a_newer_one_has_overtaken(self, settled):
        assert settled(20, [(7, 3, True)]) == 3
        assert settled(19) == 3
        assert settled(21) == 21

    def test_is_followed_by_another_one_that_waits(self, settled):
        assert settled(10, [(7, 3, True)]) == 3
        assert settled(20, [(7, 15, True)]) == 15

    def test_in_an_older_transaction_adds_nothing(self, settled):
        assert settled(10, [(7, 3, True)], [(7, 1)]) == 1
        assert settled(20, [], [(7, 1)]) == 1
        assert settled(30, [], [(7, 25)]) == 25


def test_a_server_is_the_same_until_it_is_started_anew(server):
    assert Server.find("db", at(100), uptime=1101) is server
    assert Server.find("other", at(100), uptime=1100) is not server
    restarted = Server.find("db", at(100), uptime=40)
    assert restarted is not server
    assert restarted.reached == at(100)
