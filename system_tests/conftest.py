"""One running system for all tests, the header that says what it is made of, and the table at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The settings of whoever runs the tests must not act on them, and theirs must not be written to.
for _name in list(os.environ):
    if _name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AWS_")):
        del os.environ[_name]
_HOME = tempfile.mkdtemp(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

from system_tests import services as _services  # noqa: E402
from system_tests import small_disk  # noqa: E402
from system_tests.results import Results  # noqa: E402
from system_tests.starting import running_system  # noqa: E402
from system_tests.system import System  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from system_tests.services import Services

BUILD = Path(__file__).parents[1] / "build" / "system-tests"
_RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and the table."""
    config.addinivalue_line(
        "markers", "quick: part of `make system-test`; the others only of system-test-full"
    )
    config.addinivalue_line("markers", "scale: hundreds of watchers; to be run alone")
    config.stash[_RESULTS] = Results()
    _services.end_by_sigterm_as_by_ctrl_c()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run first what needs no running system: that takes a processor and more, as long as it runs."""
    items.sort(key=lambda item: "system" in getattr(item, "fixturenames", ()))


def pytest_unconfigure() -> None:
    """Remove the scratch home."""
    shutil.rmtree(_HOME, ignore_errors=True)


def pytest_report_header() -> list[str]:
    """Say which servers are used, and what cannot be done here."""
    problem = small_disk.problem()
    disk = f"none, so the test of a full disk is skipped: {problem}" if problem else "a small one is mounted"
    return [*_services.header(), f"disk to be filled: {disk}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and write it."""
    results = config.stash[_RESULTS]
    if not results.rows:
        return
    path = BUILD / "faults.md"
    results.write(path, _services.header())
    terminalreporter.section(f"faults ({path})")
    for line in results.lines():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of Airflow's logs when a test fails, and the reason at once: the end may be far away."""
    report = yield
    if report.failed and call.excinfo is not None:
        terminal = item.config.get_terminal_writer()
        terminal.line(f"\n{report.nodeid}, {call.when}: {call.excinfo.exconly()[:2000]}", red=True)
    system = getattr(item, "funcargs", {}).get("system")
    if report.failed and isinstance(system, System):
        report.sections.append(("Airflow's logs", system.airflow.log_tails()))
    return report


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Run all servers."""
    with _services.running() as found:
        yield found


@pytest.fixture(scope="session")
def system(
    services: Services, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[System]:
    """Run Airflow on these servers, with changes that arrive all the time; compare all of them in the end."""
    results = request.config.stash[_RESULTS]
    with running_system(tmp_path_factory.mktemp("system"), services, results) as found:
        yield found
        # After Ctrl-C, an end is to be made soon.
        found.is_complete = request.session.exitstatus != pytest.ExitCode.INTERRUPTED
