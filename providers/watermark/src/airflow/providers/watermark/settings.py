"""The ``[watermark]`` section of the Airflow configuration."""

from __future__ import annotations

from typing import Final

__all__ = ["DEFAULT_STORE", "store_class_path"]

DEFAULT_STORE: Final = "airflow.providers.watermark.stores.variable.VariableStore"


def store_class_path() -> str:
    """Give ``[watermark] store``: the class path of the watermark store."""
    from airflow.configuration import conf

    return str(conf.get("watermark", "store", fallback=DEFAULT_STORE))
