"""Names and phrases in the package: names say what a thing is, and sentences say what they mean.

``python -m tests.test_names [FOLDER or FILE …]`` lists the places, for a clean-up.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_package import parse

pytestmark = pytest.mark.xdist_group("sources")

SOURCE = Path(__file__).parents[1] / "src" / "tachograph"

# Words that state what happened to a thing instead of naming it. Regular participles are recognised by their ending.
BARE_WORDS = set(
    "answer bought broken brought built caught chosen cut done drawn felt found given gone grown handed heard held "
    "hidden kept known laid left lost made meant own paid place put read said seen sent shown sold sought spent spoken "
    "stuck taken thrown told torn understood wanted worn written".split()
)
NOT_PARTICIPLES = {"bed", "deepspeed", "embed", "exceed", "feed", "hundred", "need", "red", "seed", "shed", "speed"}

# Vague openings of a clause, such as "those that …" where the noun should stand again.
VAGUE_PHRASE = re.compile(
    r"\b(those (that|of|who)|that of|what (is|was|are|a|an|the|it|they|has|can)|whoever)\b", re.IGNORECASE
)


def is_bare_participle(name: str) -> bool:
    """Return whether a name is one word that is a participle or one of `BARE_WORDS`."""
    word = name.strip("_").lower()
    return word in BARE_WORDS or (word.isalpha() and word.endswith("ed") and word not in NOT_PARTICIPLES)


def assigned_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that code gives to a variable, an argument or a private function, with its line.

    Functions and arguments that are public, and fields of structs, are part of an interface that is kept.
    """
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr.startswith("_"):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("_"):
            yield node.name, node.lineno


def texts(source: str) -> Iterator[tuple[str, int]]:
    """Yield the comments and strings of a module, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from ((line, token.start[0] + number) for number, line in enumerate(token.string.splitlines()))


@pytest.mark.slow
def test_names_are_not_bare_participles():
    names = [name for path in SOURCE.rglob("*.py") for name, _ in assigned_names(parse(path))]
    participles = sorted(name for name in names if is_bare_participle(name))
    assert len(participles) <= 0.005 * len(names), participles


def test_sentences_have_few_vague_phrases():
    num_lines = num_phrases = 0
    for path in SOURCE.rglob("*.py"):
        source = path.read_text("utf-8")
        num_lines += source.count("\n")
        if VAGUE_PHRASE.search(source):  # to split code into tokens takes a hundred times as long
            num_phrases += sum(len(VAGUE_PHRASE.findall(line)) for line, _ in texts(source))
    assert num_phrases <= 0.001 * num_lines


def main(arguments: list[str]) -> None:
    roots = [Path(argument) for argument in arguments] or [SOURCE]
    for path in sorted(path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))):
        source = path.read_text("utf-8")
        places = [(line, name) for name, line in assigned_names(ast.parse(source)) if is_bare_participle(name)]
        places += [(line, text.strip()) for text, line in texts(source) if VAGUE_PHRASE.search(text)]
        for line, text in sorted(places):
            print(f"{path}:{line}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
