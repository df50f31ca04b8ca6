"""What importing the package costs."""

from __future__ import annotations

from tests.test_package import modules_after


def test_import_loads_no_framework():
    """A config is read and rejected before torch is imported."""
    added = modules_after("import tachograph.train")
    assert not {"torch", "transformers", "datasets", "trl", "peft"} & added
