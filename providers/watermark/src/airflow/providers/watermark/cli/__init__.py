"""
The command line of an operator: ``airflow watermarks``, or ``python -m airflow.providers.watermark``.

Airflow asks for the commands in each of its processes that has a command line; so what they do is imported
only when one is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, GroupCommand

__all__ = ["get_watermark_cli_commands", "main"]

_CHOOSING = """
A watermark is named by its asset; where an asset has several, by --namespace or --key as well: see
`watermarks list`. Commands ask before they change anything; --yes does not ask, --dry-run only tells.
"""


def _action(module: str, name: str) -> Callable[[argparse.Namespace], None]:
    def run(args: argparse.Namespace) -> None:
        from airflow.providers.watermark.cli.running import run_command

        run_command(getattr(import_module(f"{__name__}.{module}"), name), args)

    run.__name__ = name
    return run


def _commands() -> tuple[ActionCommand, ...]:
    from airflow.cli.cli_config import ARG_OUTPUT, ActionCommand, Arg

    yes = Arg(("-y", "--yes"), help="Do not ask", action="store_true")
    dry_run = Arg(("-n", "--dry-run"), help="Tell what would be done, and do nothing", action="store_true")
    store = Arg(
        ("--store",),
        help="variable, sql, object_storage, asset_state or a class path; by default the configured store",
    )
    asset = Arg(("asset",), help="The name of the asset")
    which = (
        asset,
        Arg(("--namespace",), help="The namespace of the watermark, by default the watcher's short name"),
        Arg(("--key",), help="The key of the watermark"),
        store,
    )
    change = (*which, yes, dry_run)

    def command(name: str, module: str, text: str, *args: Arg, more: str = "") -> ActionCommand:
        action: Any = _action(module, name)
        return ActionCommand(name=name, help=text, func=action, args=args, description=f"{text}. {more}")

    return (
        command("list", "looking", "List the watermarks and how their watchers fare", store, ARG_OUTPUT),
        command("show", "looking", "Show a watermark with all that is stored", *which, ARG_OUTPUT),
        command(
            "set",
            "changing",
            "Set a low watermark, back or ahead",
            *change,
            Arg(
                ("position",),
                help="The new cut, inclusive: 'beginning', a time with an offset, or a position",
            ),
            more=f"What is skipped by setting it ahead is never delivered. {_CHOOSING}",
        ),
        command(
            "rewind",
            "changing",
            "Set a low watermark back",
            *change,
            Arg(("--to",), required=True, help="The new cut, inclusive: as for `set`"),
            more=f"All that comes after it is delivered again, in a new epoch. {_CHOOSING}",
        ),
        command(
            "reset",
            "changing",
            "Let a watcher start anew, by its start_from",
            *change,
            more=f"It does so with its next poll. {_CHOOSING}",
        ),
        command(
            "copy",
            "moving",
            "Copy watermarks to another store, or to an asset's new name",
            Arg(("asset",), nargs="?", help="Only those of this asset"),
            Arg(("--from",), dest="source", help="The store to copy from; by default the configured one"),
            Arg(("--to",), dest="target", help="The store to copy to; by default the configured one"),
            Arg(("--as",), dest="new_name", help="The asset's new name"),
            yes,
            dry_run,
            more="Each copy is read back. One that is newer or further ahead is never overwritten.",
        ),
        command(
            "delete",
            "moving",
            "Delete the watermark of a watcher that is no more",
            *change,
            more=f"To let a watcher that there is start anew, use `reset`. {_CHOOSING}",
        ),
        command(
            "prune",
            "moving",
            "Delete the watermarks of assets that no Dag uses",
            store,
            yes,
            dry_run,
        ),
        command("migrate", "moving", "Create or upgrade the table of the sql store"),
        command(
            "check",
            "checking",
            "Try a watcher of a Dag: connect, and count what is waiting, without delivering it",
            asset,
            Arg(("-f", "--dag-file"), help="The Dag file, or a folder of them; by default the Dags folder"),
            Arg(("--watcher",), help="The name of the watcher, if the asset has several"),
            ARG_OUTPUT,
        ),
    )


def get_watermark_cli_commands() -> list[GroupCommand]:
    """Give the commands to Airflow, as its ``provider_info`` asks for."""
    from airflow.cli.cli_config import GroupCommand

    return [
        GroupCommand(
            name="watermarks",
            help="See and change how far asset watchers have come",
            subcommands=_commands(),
        )
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run a command as ``python -m airflow.providers.watermark`` does.

    :param argv: The arguments; by default those of the process.
    :return: The exit code: 0, or 1 for an error, which has been told.
    """
    parser = argparse.ArgumentParser(
        prog="python -m airflow.providers.watermark",
        description="See and change how far asset watchers have come.",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _commands():
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.description)
        subparser.set_defaults(func=command.func)
        for arg in command.args:
            arg.add_to_parser(subparser)
    args = parser.parse_args(argv)
    try:
        args.func(args)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0
