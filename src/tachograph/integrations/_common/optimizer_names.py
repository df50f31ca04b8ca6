"""Names for the optimizers of a loop, from the variables of the script that hold them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import Any

from tachograph._base.program_code import is_program_file

__all__ = ["optimizer_names"]

_MAX_FRAMES = 50
_MAX_VARIABLES = 2_000
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_GENERAL_WORDS = frozenset(
    {"optimizer", "optimizers", "optimiser", "optimisers", "optim", "optims", "opt", "opts", "solver", "net", "model"}
)
_LONG_NAMES = {
    "g": "generator",
    "gen": "generator",
    "netg": "generator",
    "d": "discriminator",
    "dis": "discriminator",
    "disc": "discriminator",
    "netd": "discriminator",
}
_SHORT_NAME = re.compile(
    r"(?:optimi[sz]er|optim|opt|o)(g|gen|d|dis|disc)|(g|gen|d|dis|disc)(?:optimi[sz]er|optim|opt|o)"
)
"""A name in one word, such as `og` or `dopt`."""
_MAIN_NAMES = frozenset({"generator", "actor"})
"""One of these has to be among the names; otherwise nothing would tell which loss is the one of the run."""


def optimizer_names(frame: FrameType | None, optimizers: Collection[int]) -> dict[int, str]:
    """Return the names of optimizers, by their ids; empty unless all have one.

    `optimizerG`, `self.g_optim`, `og` and `optimizers["gen"]` are all `generator`.

    Args:
        frame: the innermost frame to look at; those of installed packages are passed over.
        optimizers: the ids of the optimizers.
    """
    names: dict[int, str] = {}
    for _ in range(_MAX_FRAMES):
        if frame is None or len(names) == len(optimizers):
            break
        if is_program_file(frame.f_code.co_filename):
            for variable, value in _variables(frame.f_locals):
                if id(value) in optimizers and (name := _name_of(variable)):
                    names.setdefault(id(value), name)
        frame = frame.f_back
    is_complete = len(set(names.values())) == len(optimizers) and not _MAIN_NAMES.isdisjoint(names.values())
    return names if is_complete else {}


def _variables(local_variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield local variables, and what the dicts among them and the attributes of `self` contain."""
    for variable, value in list(local_variables.items())[:_MAX_VARIABLES]:
        yield variable, value
        inner = getattr(value, "__dict__", None) if variable == "self" else value
        if type(inner) is dict:
            for key, item in list(inner.items())[:_MAX_VARIABLES]:
                if isinstance(key, str):
                    yield key, item
                    if variable == "self" and type(item) is dict:
                        yield from ((name, part) for name, part in list(item.items()) if isinstance(name, str))


def _name_of(variable: str) -> str:
    words = [word.lower() for word in _WORDS.findall(variable)]
    rest = [word for word in words if word not in _GENERAL_WORDS]
    if short_name := _SHORT_NAME.fullmatch("".join(rest)):
        rest = [short_name[1] or short_name[2]]
    return _LONG_NAMES.get("_".join(rest), "_".join(rest))
