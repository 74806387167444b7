"""The ``[watermark]`` section of the Airflow configuration."""

from __future__ import annotations

from typing import Final

from airflow.providers.watermark.exceptions import ConfigurationError

__all__ = ["DEFAULT_STORE", "freeze_heap", "object_storage_path", "sql_conn_id", "store_class_path"]

DEFAULT_STORE: Final = "airflow.providers.watermark.stores.variable.VariableStore"


def store_class_path() -> str:
    """Give ``[watermark] store``: the class path of the watermark store."""
    from airflow.configuration import conf

    return str(conf.get("watermark", "store", fallback=DEFAULT_STORE))


def freeze_heap() -> bool:
    """Give ``[watermark] freeze_heap``: whether a triggerer is spared full garbage collections."""
    from airflow.configuration import conf

    return bool(conf.getboolean("watermark", "freeze_heap", fallback=True))


def sql_conn_id() -> str:
    """
    Give ``[watermark] sql_conn_id``: the Airflow connection of the ``sql`` store.

    :raises ConfigurationError: It is not set.
    """
    return _needed("sql", "sql_conn_id", "the Airflow connection of the database with the watermarks")


def object_storage_path() -> str:
    """
    Give ``[watermark] object_storage_path``: the folder of the ``object_storage`` store, as a URL.

    :raises ConfigurationError: It is not set.
    """
    return _needed(
        "object_storage",
        "object_storage_path",
        "the folder for the watermarks, such as s3://aws_default@bucket/folder",
    )


def _needed(store: str, option: str, what: str) -> str:
    from airflow.configuration import conf

    value = str(conf.get("watermark", option, fallback="") or "")
    if not value:
        msg = f"[watermark] {option} is not set; the {store} store needs it: {what}"
        raise ConfigurationError(msg)
    return value
