"""`tachograph.testing` and the pytest plugin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tachograph.testing import MemoryRun


@pytest.mark.slow
def test_fixture_works_in_another_project(tmp_path):
    (tmp_path / "test_theirs.py").write_text(
        """
import pytest

import tachograph

def train():
    for step in range(3):
        tachograph.log(train_loss=1.0 / (step + 1), step=step)

def test_training_logs_its_loss(tacho_run):
    train()
    assert [record["train_loss"] for record in tacho_run.records] == [1.0, 0.5, 1 / 3]

def test_each_test_has_a_fresh_run(tacho_run):
    assert tacho_run.records == []
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_memory_run_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = MemoryRun("x")
    run.log(a=1.0)
    run.finish()
    assert list(tmp_path.iterdir()) == []
    assert run.path is None


def test_plugin_imports_nothing_until_used():
    code = "import tachograph.testing.pytest_plugin, sys; print('tachograph.recorder' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
