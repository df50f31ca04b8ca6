"""Patching other libraries' code and undoing it."""

from __future__ import annotations

import pickle
import sys
import types

import pytest

from tachograph._base.patching import Patches, is_wrapped


class Library:
    def save(self, path: str) -> str:
        return f"saved {path}"

    @staticmethod
    def load(path: str) -> str:
        return f"loaded {path}"


def shout(original):
    return lambda *arguments: original(*arguments).upper()


def test_wrap_and_undo_on_class():
    patches = Patches()
    original = vars(Library)["save"]
    assert patches.wrap(Library, "save", shout)
    assert Library().save("a") == "SAVED A"
    assert is_wrapped(Library.save)
    patches.undo()
    assert vars(Library)["save"] is original


def test_undo_keeps_a_static_method_static():
    with Patches() as patches:
        patches.wrap(Library, "load", shout)
        assert Library.load("a") == "LOADED A"
    assert isinstance(vars(Library)["load"], staticmethod)
    assert Library().load("a") == "loaded a"


def test_undo_on_object_removes_the_attribute():
    library = Library()
    with Patches() as patches:
        patches.wrap(library, "save", shout)
        assert library.save("a") == "SAVED A"
    assert "save" not in vars(library)


def test_function_is_not_wrapped_twice():
    with Patches() as patches:
        assert patches.wrap(Library, "save", shout)
        assert not patches.wrap(Library, "save", shout)
        assert not patches.wrap(Library, "missing", shout)


def test_undo_leaves_a_later_wrapper_alone():
    library = Library()
    patches = Patches()
    patches.wrap(library, "save", shout)
    ours = library.save
    library.save = theirs = lambda path: ours(path) + "!"  # type: ignore[method-assign]
    patches.undo()
    assert library.save is theirs


def test_patches_are_undone_in_reverse():
    order = []
    with Patches() as patches:
        patches.on_undo(lambda: order.append(1))
        patches.on_undo(lambda: order.append(2))
    assert order == [2, 1]


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("a_library")
    exec("def save(path):\n    return path", vars(module))
    monkeypatch.setitem(sys.modules, "a_library", module)
    return module


def test_wrapped_function_can_be_pickled(module):
    face = types.SimpleNamespace(save=module.save)
    original = module.save
    with Patches() as patches:
        patches.wrap(face, "save", shout, where_defined=True)
        assert pickle.loads(pickle.dumps(face.save)) is face.save
    assert face.save is module.save is original
