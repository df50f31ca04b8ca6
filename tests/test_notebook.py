"""`tachograph.show`: a run as a card in a notebook."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

import tachograph
from tachograph.exceptions import NoRunError, RunNotFoundError


def html_of(card):
    html = card._repr_html_()
    return html, ET.fromstring(html)  # well-formed, whatever names and texts contain


def test_card_of_a_live_run_draws_important_metrics_first(tmp_path):
    with tachograph.init("a & c", log_dir=tmp_path, console=False) as run:
        for step in range(50):
            loss = math.nan if step == 20 else 1 / (step + 1)
            run.log({'z<&"': 1.0, "lr": 1e-3, "train_loss": loss, "val_loss": 2.0}, step=step)
        card = tachograph.show()
        html, tree = html_of(card)
    assert [each.get("aria-label") for each in tree.iter("svg")][:3] == ["train_loss", "val_loss", "lr"]
    assert "a &amp; c" in html and "running" in html and "step 49" in html
    path = next(tree.iter("path")).get("d")
    assert path.count("M") == 2  # the line is broken at NaN
    assert repr(card).startswith("a & c: running, step 49")
    assert "tacho ui --log-dir" in html


def test_card_shows_the_failure_and_chosen_metrics(tmp_path):
    with pytest.raises(ZeroDivisionError), tachograph.init("r", log_dir=tmp_path, console=False) as run:
        run.log({"a": 1.0, "b": 2.0}, step=0)
        raise ZeroDivisionError("division by zero")
    html, tree = html_of(tachograph.show("r", "b", "typo", log_dir=tmp_path))
    assert [each.get("aria-label") for each in tree.iter("svg")] == ["b"]
    assert "failed" in html and "ZeroDivisionError: division by zero" in html
    assert "no metric 'typo' in this run" in "".join(tree.itertext())


def test_missing_runs_are_errors(tmp_path):
    with pytest.raises(RunNotFoundError, match="no run 'x'"):
        tachograph.show("x", log_dir=tmp_path)
    with pytest.raises(NoRunError):
        tachograph.show()
