"""Run the command line where Airflow takes none from providers (below 3.2): ``python -m``."""

from __future__ import annotations

import sys

from airflow.providers.watermark.cli import main

if __name__ == "__main__":
    sys.exit(main())
