"""Measurements: figures are for release notes and comparisons, never for tests."""
