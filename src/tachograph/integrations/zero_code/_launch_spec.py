"""What the launcher asks of the processes it starts, in an environment variable; and where they leave word for it."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, NamedTuple

__all__ = ["Order", "Word", "leave_word", "words"]

_VARIABLE = "TACHO_LAUNCH"


class Order(NamedTuple):
    """How to record what is found."""

    letters: str
    """The folder where word is left for the launcher."""
    name: str | None = None
    """The name of the run, if the user chose one."""
    default_name: str | None = None
    resume: bool = False
    tags: tuple[str, ...] = ()

    def to_environment(self) -> dict[str, str]:
        """Return the variables that carry it."""
        return {_VARIABLE: json.dumps(self._asdict())}

    @classmethod
    def from_environment(cls) -> Order | None:
        """Return what was asked of this process, if anything was."""
        try:
            said = json.loads(os.environ.get(_VARIABLE, ""))
            return cls(**{**said, "tags": tuple(said.get("tags", ()))})
        except (ValueError, TypeError, AttributeError):
            return None


class Word(NamedTuple):
    """What a process told."""

    pid: int
    said: dict[str, Any]


def leave_word(order: Order, kind: str, said: dict[str, Any]) -> None:
    """Tell the launcher something; of each kind, the last of a process counts."""
    if os.path.isdir(order.letters):  # it is gone when the launcher is
        path = os.path.join(order.letters, f"{kind}-{os.getpid()}.json")
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(said, file)
        os.replace(f"{path}.tmp", path)


def words(letters: str, kind: str) -> list[Word]:
    """Return what processes told of a kind, the oldest first."""
    found: list[tuple[int, Word]] = []
    with os.scandir(letters) as entries:
        for entry in entries:
            said, _, pid = entry.name.removesuffix(".json").rpartition("-")
            if said == kind and entry.name.endswith(".json"):
                with contextlib.suppress(OSError, ValueError), open(entry.path, encoding="utf-8") as file:
                    found.append((entry.stat().st_mtime_ns, Word(int(pid), json.load(file))))
    return [word for _, word in sorted(found, key=lambda pair: pair[0])]
