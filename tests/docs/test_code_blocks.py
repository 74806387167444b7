"""All code in the documentation runs, or a comment above it says why it does not."""

from __future__ import annotations

import configparser
import inspect
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow.providers.watermark.cli import _commands
from airflow.providers.watermark.provider_info import get_provider_info
from tests.docs.events import triggering_events
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks_of

LANGUAGES = {"bash", "console", "ini", "json", "postgresql", "python", "sql", "text", "toml", "yaml"}
FREE = {"console", "text"}
"""Shows what is printed or drawn."""

CONSUMERS = {
    "README.md": {"load_orders.load"},
    "consume.md": {
        *(
            "join_orders.join",
            "orders_and_nightly.work",
            "one_run_per_file.runs",
            "once_per_change.load_once",
        ),
    },
    "move.md": {"new.load", "new_copy.window"},
}
"""Tasks whose code is run with events, by the page that shows them."""

PYTHON_PAGES = [page for page in PAGES if any(not block.word for block in blocks_of(page, "python"))]


def _id(block: Block) -> str:
    return block.name


def test_there_are_pages_and_blocks() -> None:
    assert len(PAGES) > 20
    assert len(all_blocks("python")) > 20


@pytest.mark.parametrize("block", all_blocks(), ids=_id)
def test_each_block_is_of_a_known_language_and_an_excuse_has_a_reason(block: Block) -> None:
    assert block.language in LANGUAGES
    if block.word == "not run":
        assert len(block.note.split()) >= 3, "say why in a few words"
    if block.word == "run by":
        tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
        names = {path.stem for path in Path(__file__).parent.glob("*.py")}
        test = block.note.partition(",")[0]
        assert test in names or f"def {test}(" in tests, "names no test"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_fence_escapes_the_tests(page: Path) -> None:
    fences = re.findall(r"^ *```+(?!\{)([a-z]*)$", page.read_text(), re.MULTILINE)
    assert len([language for language in fences if language]) == len(blocks_of(page))


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dags = _record_dags(monkeypatch)
    module = ModuleType("a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks_of(page, "python"):
        if not block.word:
            code = "\n" * block.line + block.code  # so that a traceback tells the line
            exec(compile(code, str(page), "exec"), vars(module))  # noqa: S102 - our own pages
    ran = []
    for dag in dags:
        for name, function in _tasks(dag):
            function(triggering_asset_events=triggering_events(dag.schedule))
            function(triggering_asset_events={})
            ran.append(f"{dag.dag_id}.{name}")
    if page.name in CONSUMERS:
        assert set(ran) >= CONSUMERS[page.name]


def _record_dags(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note each Dag that a page writes; most have no name there."""
    from airflow.sdk import DAG

    dags = []
    enter = DAG.__enter__

    def record(dag: Any) -> Any:
        dags.append(dag)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", record)
    return dags


def _tasks(dag: Any) -> list[tuple[str, Any]]:
    functions = ((task.task_id, getattr(task, "python_callable", None)) for task in dag.tasks)
    return [
        (name, function)
        for name, function in functions
        if function is not None and "triggering_asset_events" in inspect.signature(function).parameters
    ]


@pytest.mark.parametrize("block", all_blocks("json"), ids=_id)
def test_json_is_json(block: Block) -> None:
    json.loads(block.code)


@pytest.mark.parametrize("block", all_blocks("ini"), ids=_id)
def test_configuration_has_options_that_exist(block: Block) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(block.code)
    known = get_provider_info()["config"]["watermark"]["options"]
    for section in parser.sections():
        assert section == "watermark"
        assert parser[section].keys() <= known.keys()


def test_sql_is_run_or_excused() -> None:
    assert [
        block.name
        for block in all_blocks("postgresql", "sql", "yaml")
        if block.word not in {"run by", "not run"}
    ] == []


@pytest.mark.parametrize("block", [each for each in all_blocks("bash") if not each.word], ids=_id)
def test_commands_can_be_given(block: Block) -> None:
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        match words:
            case []:
                pass
            case ["airflow", "watermarks", *args] | ["python", "-m", "airflow.providers.watermark", *args]:
                _parse(args)
            case ["pip", "install", *requirements]:
                _require_extras(requirements)
            case ["make", target, *_]:
                assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            case ["python", "-m", "pytest", *_]:
                pass  # by test_own_watcher
            case ["python", "-m", name, *_] if name.startswith(("benchmarks.", "devtools.")):
                assert (ROOT / name.replace(".", "/")).exists() or (
                    ROOT / f"{name.replace('.', '/')}.py"
                ).exists()
            case _:
                pytest.fail(f"{line!r} is not checked: excuse the block with a reason")


def _parse(args: list[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for command in _commands():
        subparser = commands.add_parser(command.name)
        for arg in command.args:
            arg.add_to_parser(subparser)
    parser.parse_args(args)  # exits with a usage message


def _require_extras(requirements: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in requirements:
        match = re.fullmatch(r"([a-z-]+)(?:\[([a-z,-]+)\])?", requirement)
        assert match, requirement
        if match[1] == project["name"]:
            assert set((match[2] or "").split(",")) <= {*project["optional-dependencies"], ""}


@pytest.mark.parametrize("block", all_blocks("toml"), ids=lambda block: block.name)
def test_toml_can_be_read_and_names_the_entry_point_that_airflow_looks_for(block):
    assert "apache_airflow_provider" in tomllib.loads(block.code)["project"]["entry-points"]
