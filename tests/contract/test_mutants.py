"""The contract suites find what is wrong, and nothing else: mutants fail the tests meant for them."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.contract import mutants

pytestmark = pytest.mark.timeout(660)


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> dict[str, set[str]]:
    """Run all mutants, in a process of its own; give the tests that failed, by test class."""
    report = tmp_path_factory.mktemp("mutants") / "report.xml"
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:logging", f"--junitxml={report}"]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", mutants.__file__, *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED, finished.stdout[-4000:] + finished.stderr
    found: dict[str, set[str]] = defaultdict(set)
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        outcomes = {outcome.tag for outcome in case} & {"failure", "error", "skipped"}
        assert outcomes <= {"failure"}, (case.attrib, outcomes)
        name = case.attrib["classname"].rpartition(".")[2]
        found[name] |= {case.attrib["name"].partition("[")[0]} if outcomes else set()
    return found


@pytest.mark.parametrize("name", sorted(name for name in vars(mutants) if name.startswith("Test")))
def test_a_mutant_fails_the_tests_meant_for_it_and_no_other(failed, name):
    assert failed[name] == mutants.FAILS.get(name, frozenset())


def test_every_mutant_is_meant_to_fail_something():
    meant = [*mutants.WATCHERS, *mutants.WINDOWS, *mutants.STORES]
    names = {f"Test{mutant.__name__}" for mutant in meant}
    assert names - mutants.FAILS.keys() == {"TestTextStore"}
