"""What Airflow's providers manager reads about this package: its triggers and its ``[watermark]`` options.

Airflow calls this in every process that asks for providers or for a provider's configuration. So it imports
nothing but the standard library, and finds the watchers by their file names instead of importing them.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

_PACKAGE = "airflow.providers.watermark"
_INTEGRATION = "Asset Watermarks"
_NOT_WATCHERS = frozenset({"arguments", "base", "dataclass", "globs", "health", "object_store", "watching"})


def _trigger_modules() -> list[str]:
    """Name the modules in ``triggers/`` that hold a watcher: every public one but the base and its tools."""
    folder = Path(__file__).parent / "triggers"
    names = sorted(module.name for module in pkgutil.iter_modules([str(folder)]))
    return [
        f"{_PACKAGE}.triggers.{name}"
        for name in names
        if name not in _NOT_WATCHERS and not name.startswith("_")
    ]


def get_provider_info() -> dict[str, Any]:
    """Describe the provider in the terms of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-watermark",
        "name": "Asset Watermarks",
        "description": "Start a Dag with exactly what is new in an object store or a table.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": _trigger_modules()}],
        "cli": [f"{_PACKAGE}.cli.get_watermark_cli_commands"],
        "config": {
            "watermark": {
                "description": "Options of the asset watchers of airflow-provider-watermark.",
                "options": {
                    "store": {
                        "description": (
                            "Class path of the store that keeps the watermarks. It must be importable in the "
                            "triggerer, and the same in every component.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "my_company.watermarks.RedisStore",
                        "default": "airflow.providers.watermark.stores.variable.VariableStore",
                    },
                    "sql_conn_id": {
                        "description": (
                            "The Airflow connection, of type postgres, mysql or sqlite, of the database in "
                            "which airflow.providers.watermark.stores.sql.SqlStore keeps watermarks. Create "
                            "its table with 'airflow watermarks migrate'.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "watermarks",
                        "default": "",
                    },
                    "object_storage_path": {
                        "description": (
                            "The folder in which "
                            "airflow.providers.watermark.stores.object_storage.ObjectStorageStore keeps "
                            "watermarks, one object each, as a URL that Airflow's ObjectStoragePath takes.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "s3://aws_default@bucket/watermarks",
                        "default": "",
                    },
                    "freeze_heap": {
                        "description": (
                            "Whether watchers, in the first minutes of a triggerer, take what is in its "
                            "memory out of Python's garbage collection (gc.freeze). Without it full "
                            "collections hold the event loop, and so all triggers, for a tenth of a second "
                            "or more, the more often the more is delivered.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                },
            },
        },
    }
