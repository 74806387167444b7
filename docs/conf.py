"""Configuration of the documentation; build it with `make docs`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from inventories import write_inventories  # noqa: E402

project = "airflow-provider-watermark"
author = "the airflow-provider-watermark authors"
release = version = importlib.metadata.version(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "reference_tables",
]
exclude_patterns = ["_ext"]
smartquotes = False  # two hyphens are two hyphens, in options

# --- pages ------------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"
html_theme = "furo"
html_title = f"airflow-provider-watermark {release}"
html_static_path = ["_static"]
html_theme_options = {"navigation_with_keys": True}

# --- API --------------------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types are read in the code; the docstrings say units, bounds and meaning
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True

# --- links to other projects ------------------------------------------------------------------------------

# The build asks no network: it links by the short lists in `inventories/`, and gives the same pages anywhere.
_inventories = write_inventories(HERE / "inventories", HERE.parent / "build" / "inventories")
intersphinx_mapping = {name: (url, (str(file),)) for name, (url, file) in _inventories.items()}

nitpicky = True
