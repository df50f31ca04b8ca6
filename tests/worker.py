"""A worker of pytest that starts with the frameworks imported: a fork of a preloaded process.

``pytest --tx "3*popen//python=PYTHON tests/worker.py"`` starts its workers so. Else each would import the same
packages, which takes longer than to collect the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from tests.preloaded import preloaded  # noqa: E402

sys.exit(preloaded("frameworks").popen([sys.executable, *sys.argv[1:]]).wait())
