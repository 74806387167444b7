"""The core does no I/O, reads no clock and knows no Airflow, whatever it imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow.providers.watermark

PACKAGE = "airflow.providers.watermark"
CORE = (
    *(
        "change",
        "events",
        "exceptions",
        "objects.landmarks",
        "objects.listing",
        "objects.templates",
        "position",
        "s3.pages",
    ),
    *("sql.query", "sql.settling", "values", "watermark"),
)
IMPURE = ("airflow", "aiobotocore", "asgiref", "asyncio", "os", "pathlib", "socket", "subprocess", "time")
CLOCKS = {"now", "today", "utcnow"}


def parse(module: str) -> ast.Module:
    folder = Path(airflow.providers.watermark.__file__).parent
    return ast.parse(folder.joinpath(*module.split(".")).with_suffix(".py").read_text())


def walk_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what is executed: all but the bodies of ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from walk_run_time(node)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in walk_run_time(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_imports_nothing_impure(module):
    own = tuple(f"{PACKAGE}.{name}" for name in CORE)

    impure = [
        name for name in imported(parse(module)) if name.partition(".")[0] in IMPURE and name not in own
    ]

    assert impure == []


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_reads_no_clock(module):
    calls = [
        ast.unparse(node.func)
        for node in walk_run_time(parse(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
    ]

    assert calls == []


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import airflow.sdk", id="plain"),
        pytest.param("def f():\n    from airflow.sdk import Asset", id="inside a function"),
        pytest.param("if True:\n    import airflow.sdk", id="under a condition"),
    ],
)
def test_the_check_itself_sees_an_import(code):
    assert list(imported(ast.parse(code))) == ["airflow.sdk"]


def test_the_check_itself_passes_over_imports_for_types():
    assert list(imported(ast.parse("if TYPE_CHECKING:\n    from airflow.sdk import Asset"))) == []
