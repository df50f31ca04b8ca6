"""Importing without collections."""

from __future__ import annotations

import gc

import pytest

from tachograph._base.importing import without_collection


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_as_before_afterwards(was_enabled):
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), without_collection():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is was_enabled
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
