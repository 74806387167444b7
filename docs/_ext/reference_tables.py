"""
Tables of the reference that are made from the code: options of triggers, configuration, commands, errors.

.. code-block:: rst

    .. trigger-options:: airflow.providers.watermark.triggers.s3.S3PrefixTrigger
    .. provider-configuration::
    .. command-line::
    .. error-tree::
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

_PARAM = re.compile(r"^:param (\w+): (.*?)(?=^:|^\s*$|\Z)", re.MULTILINE | re.DOTALL)


def option_rows(trigger: type) -> Iterator[tuple[str, str, str]]:
    """Give name, default and description of each argument: the trigger's own, then those of its bases."""
    told = _descriptions(trigger)
    fields = {field.name: field for field in dataclasses.fields(trigger)}
    declared = (name for cls in trigger.__mro__ for name in vars(cls).get("__annotations__", {}))
    for name in dict.fromkeys(name for name in declared if name in fields):
        field = fields[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        is_needed = default == "" and name in _NEEDED
        yield name, "needed" if is_needed else f"``{default!r}``", told[name]


_NEEDED = frozenset({"asset_name", "bucket_name", "conn_id"})


def _descriptions(trigger: type) -> dict[str, str]:
    told: dict[str, str] = {}
    for cls in trigger.__mro__:
        for name, text in _PARAM.findall(inspect.cleandoc(vars(cls).get("__doc__") or "")):
            told.setdefault(name, " ".join(text.split()))
    return told


def table(headers: Iterable[str], rows: Iterable[Iterable[str]], widths: str) -> str:
    """Write a list-table."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in [headers, *rows]:
        for number, cell in enumerate(row):
            begin = "   * - " if number == 0 else "     - "
            lines.append(begin + textwrap.indent(cell, " " * len(begin)).strip())
    return "\n".join(lines) + "\n"


class _Generated(SphinxDirective):
    """Parses what :meth:`text` writes."""

    optional_arguments = 1

    def text(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(self.text(), allow_section_headings=False)


class TriggerOptions(_Generated):
    """The arguments of a trigger."""

    def text(self) -> str:
        """Write it."""
        module, _, name = self.arguments[0].rpartition(".")
        trigger = getattr(importlib.import_module(module), name)
        rows = ((f"``{option}``", default, text) for option, default, text in option_rows(trigger))
        return table(("option", "default", ""), rows, "22 18 60")


class ProviderConfiguration(_Generated):
    """The options of the configuration."""

    def text(self) -> str:
        """Write it."""
        from airflow.providers.watermark.provider_info import get_provider_info

        parts = []
        for section, content in get_provider_info()["config"].items():
            for name, option in content["options"].items():
                facts = {
                    "Default": f"``{option['default']}``" if option["default"] else "none",
                    "Example": "" if option["example"] is None else f"``{option['example']}``",
                    "Environment variable": f"``AIRFLOW__{section.upper()}__{name.upper()}``",
                    "Since": option["version_added"],
                }
                lines = "\n".join(f":{key}: {value}" for key, value in facts.items())
                parts.append(
                    f".. rubric:: [{section}] {name}\n\n{option['description'].strip()}\n\n{lines}\n"
                )
        return "\n".join(parts)


class CommandLine(_Generated):
    """The commands, from their parser."""

    def text(self) -> str:
        """Write it."""
        from airflow.providers.watermark.cli import get_watermark_cli_commands

        (group,) = get_watermark_cli_commands()
        return "\n".join(map(_command, group.subcommands))


def _command(command: Any) -> str:
    parser = argparse.ArgumentParser(prog=f"airflow watermarks {command.name}", add_help=False)
    for arg in command.args:
        arg.add_to_parser(parser)
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    description = " ".join(str(command.description).replace("`", "``").split())
    rows = [
        (", ".join(f"``{flag}``" for flag in arg.flags), str(arg.kwargs.get("help") or ""))
        for arg in command.args
    ]
    arguments = table(("argument", ""), rows, "30 70") if rows else ""
    return (
        f".. rubric:: {command.name}\n\n{description}\n\n.. code-block:: text\n\n    {usage}\n\n{arguments}"
    )


class ErrorTree(_Generated):
    """The errors and what each asks for."""

    def text(self) -> str:
        """Write it."""
        from airflow.providers.watermark import exceptions

        rows = []
        for name in exceptions.__all__:
            error = getattr(exceptions, name)
            parents = ", ".join(f":class:`{base.__name__}`" for base in error.__bases__)
            rows.append(
                (f"``{name}``", parents.replace(":class:", "").replace("`", "``"), error.__doc__ or "")
            )
        return table(("error", "is a", "what to do"), rows, "25 25 50")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("trigger-options", TriggerOptions)
    app.add_directive("provider-configuration", ProviderConfiguration)
    app.add_directive("command-line", CommandLine)
    app.add_directive("error-tree", ErrorTree)
    return {"version": "1", "parallel_read_safe": True}
