"""Generated names of runs."""

from __future__ import annotations

import secrets

__all__ = ["generate_name"]

_ADJECTIVES = (
    "amber autumn bold brave bright brisk calm clear crisp curious daring eager early fair fast fine fresh gentle glad "
    "golden grand happy honest keen kind lively lucky mellow mild neat noble patient proud quick quiet rapid ready "
    "silver smooth solid steady sunny swift tidy vivid warm wise"
)
_NOUNS = (
    "badger beaver bison crane deer dove eagle falcon finch fox gecko goose hare hawk heron horse ibex jay kestrel "
    "lark lemur lion lynx magpie marten mole moose newt otter owl panda pike pony puffin quail raven robin salmon seal "
    "shrew sparrow stork swan tern tiger toad trout turtle walrus wolf wren yak zebra"
)


def generate_name() -> str:
    """Return a name such as ``brave-otter-12``."""
    return f"{secrets.choice(_ADJECTIVES.split())}-{secrets.choice(_NOUNS.split())}-{secrets.randbelow(99) + 1}"
