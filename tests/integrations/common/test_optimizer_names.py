"""The names of optimizers come from the variables of the script that hold them."""

from __future__ import annotations

import sys

from tachograph.integrations._common.optimizer_names import optimizer_names


def names_of(**variables: object) -> list[str]:
    """Return the names of objects in local variables, in their order."""
    source = "".join(f"{name} = variables[{name!r}]\n" for name in variables)
    scope: dict[str, object] = {"variables": variables, "sys": sys, "frames": []}
    exec(compile(f"{source}frames.append(sys._getframe())", "/program/train.py", "exec"), scope)
    del scope["variables"]
    (frame,) = scope["frames"]  # type: ignore[misc]
    names = optimizer_names(frame, [id(value) for value in variables.values()])
    return [names[id(value)] for value in variables.values() if id(value) in names]


def test_optimizers_are_named_after_variables():
    expected = ["generator", "discriminator"]
    for first, second in (
        ("og", "od"),
        ("o_g", "o_d"),
        ("optg", "optd"),
        ("gopt", "dopt"),
        ("G_opt", "D_opt"),
        ("optimizerG", "optimizerD"),
        ("optim_gen", "optim_disc"),
        ("optimgen", "optimdisc"),
    ):
        assert names_of(**{first: object(), second: object()}) == expected, first
    assert names_of(og=object(), opt_critic=object()) == ["generator", "critic"]


def test_optimizers_without_telling_names_have_none():
    """Numbers say as much as such names, and which loss comes first."""
    assert names_of(o1=object(), o2=object()) == []
    assert names_of(ox=object(), oy=object()) == []
