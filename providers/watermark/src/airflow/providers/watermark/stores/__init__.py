"""Where watermarks live: one file a store."""

from __future__ import annotations

from airflow.providers.watermark.stores.base import BaseWatermarkStore, WatermarkKey, configured_store

__all__ = ["BaseWatermarkStore", "WatermarkKey", "configured_store"]
