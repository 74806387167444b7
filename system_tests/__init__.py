"""Tests of the whole system: a real Airflow, real services, real failures."""
