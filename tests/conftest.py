"""What all tests share: an Airflow home of their own, and how Hypothesis tries examples.

Airflow reads its environment when it is imported, so the environment is set up here, before any test module.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

from devtools.databases import mariadb_is_installed, pgbouncer_is_installed

# The settings of whoever runs the tests must not act on them, and theirs must not be written to.
for _name in list(os.environ):
    if _name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AWS_")):
        del os.environ[_name]
_HOME = tempfile.mkdtemp(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# Never ask the network who we are.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
_IN_CI = bool(os.environ.get("CI") or os.environ.get("WATERMARK_CI_RUN"))
settings.load_profile("ci" if _IN_CI else "default")


_SERVERS = {
    "MariaDB": ("mariadb-server", mariadb_is_installed),
    "PgBouncer": ("pgbouncer", pgbouncer_is_installed),
}
"""What PyPI cannot bring: the package of each, and whether it is there."""


def pytest_report_header():
    return [
        f"{name}: installed"
        if is_installed()
        else f"{name}: not installed (apt-get install {package}): its tests are skipped, but not in CI"
        for name, (package, is_installed) in _SERVERS.items()
    ]


def _skip_without(name):
    package, is_installed = _SERVERS[name]
    # Never in CI, which installs it: there its absence is an error.
    if not is_installed() and not _IN_CI:
        pytest.skip(f"{name} is not installed: apt-get install --no-install-recommends {package}")


@pytest.fixture(scope="session")
def mariadb_or_skip():
    """Skip where there is no MariaDB."""
    _skip_without("MariaDB")


@pytest.fixture(scope="session")
def pgbouncer_or_skip():
    """Skip where there is no PgBouncer."""
    _skip_without("PgBouncer")


def pytest_configure(config):
    # The amazon provider makes its client's coroutine in a thread; who is cancelled meanwhile never gets it.
    config.addinivalue_line(
        "filterwarnings", "ignore:coroutine 'AioSession._create_client' was never awaited:RuntimeWarning"
    )


def pytest_unconfigure():
    shutil.rmtree(_HOME, ignore_errors=True)
