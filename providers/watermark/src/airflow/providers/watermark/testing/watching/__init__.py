"""The parts of the watcher contract."""
