"""``migrate`` by Airflow's own command, in each database; what is said before it, and without rights."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest

from airflow.providers.watermark.cli import main
from devtools.databases import mariadb, postgres


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database(request, tmp_path, monkeypatch):
    """Configure the ``sql`` store for a database without its table; give the server, if there is one."""
    with contextlib.ExitStack() as stack:
        server = None
        if request.param == "sqlite":
            connection = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "watermarks.db")})
        else:
            if request.param == "mariadb":
                request.getfixturevalue("mariadb_or_skip")
            server = stack.enter_context(postgres() if request.param == "postgres" else mariadb())
            connection = server.airflow_connection_json()
        monkeypatch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "watermarks")
        monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", connection)
        yield server


def airflow(*argv):
    line = [sys.executable, "-m", "airflow", "watermarks", *argv]
    done = subprocess.run(line, capture_output=True, check=False, text=True, env=os.environ)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_airflows_own_command_makes_the_table_and_leaves_one_that_is_there(database, capfd):
    assert main(["list", "--store", "sql"]) == 1
    assert "run 'airflow watermarks migrate'" in capfd.readouterr().err
    for _ in range(2):
        code, out, err = airflow("migrate")
        assert (code, out) == (0, ""), err
        assert "has the revision 0001" in err
    assert main(["list", "--store", "sql", "-o", "json"]) == 0
    assert capfd.readouterr().out == "[]\n"


def test_who_may_not_make_a_table_is_told_so_in_a_line(database, monkeypatch, capfd):
    if database is None:
        pytest.skip("a file has no roles")
    role = database.create_role("reader")
    monkeypatch.setenv("AIRFLOW_CONN_WATERMARKS", role.airflow_connection_json())
    assert main(["migrate"]) == 1
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: the database of the connection 'watermarks' could not be migrated (")
    assert last.endswith("correct the connection, or its privileges")
    assert role.password not in last
