"""Incremental event triggers for Apache Airflow: each Dag run gets exactly what is new."""

from __future__ import annotations

from airflow.providers.watermark.assets import watch

__all__ = ["__version__", "watch"]

__version__ = "0.1.0"
