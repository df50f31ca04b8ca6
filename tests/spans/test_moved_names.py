"""Names that moved from `tachograph.spans` to `tachograph.one_logger`."""

from __future__ import annotations

import pytest

from tachograph import one_logger, spans


def test_moved_names_still_work_and_warn():
    for name in sorted(spans._MOVED):
        with pytest.warns(DeprecationWarning, match=f"tachograph.one_logger.{name}"):
            assert getattr(spans, name) is getattr(one_logger, name)


def test_unknown_name_raises():
    for name in ("on_nothing", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(spans, name)
