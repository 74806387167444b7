"""Watermarks as objects in S3, GCS or a folder: for those who want no database."""

from __future__ import annotations

from airflow.providers.watermark.stores.object_storage.store import ObjectStorageStore

__all__ = ["ObjectStorageStore"]
