"""Contract suites for watchers and stores."""
