"""``python -m reliq``: the same as the ``reliq`` command."""

from __future__ import annotations

import sys

from .cli.main import main

sys.exit(main())
