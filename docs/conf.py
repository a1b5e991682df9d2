"""How Sphinx makes the documentation: ``sphinx-build -W docs docs/_build``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from reliq import __version__

project = "reliq"
author = "the reliq developers"
project_copyright = author
release = version = __version__

extensions = ["sphinx.ext.autodoc", "command_line"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"reliq {release}"
html_show_sourcelink = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
# Where pieces of the public interface stand inside of the package is nobody's business.
add_module_names = False
toc_object_entries_show_parents = "hide"

# Help texts are the same on any terminal, and come without its colours.
os.environ["COLUMNS"] = "100"
os.environ["NO_COLOR"] = "1"
