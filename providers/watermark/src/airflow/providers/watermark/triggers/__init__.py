"""Watermark triggers: one file a watcher."""
