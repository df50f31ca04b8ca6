"""An importer for logfmt: lines such as `step=10 loss=0.5`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class LogfmtImporter:
    """Reads `.logfmt` files."""

    def detects(self, path: Path) -> bool:
        """Return whether the file has the extension."""
        return path.suffix == ".logfmt"

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield a row per line; values that are not numbers are ignored later."""
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
