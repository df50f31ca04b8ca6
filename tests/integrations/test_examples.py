"""Every example runs to completion in an empty folder and records a finished run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tachograph.journal import list_runs
from tachograph.reader import read
from tests.conftest import HANG_S
from tests.preloaded import preloaded

# usage_telemetry.py records no run; tests/usage runs it.
FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = [path for path in sorted(FOLDER.glob("*.py")) if path.name != "usage_telemetry.py"]
NEEDS = {"ray_train.py": "ray"}  # too large to install for every test run


@pytest.mark.xdist_group("frameworks")
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_example_records_finished_run(tmp_path, path):
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"{path.name} needs {NEEDS[path.name]}, which is not installed")
    is_unmodified = "tacho" not in path.read_text(encoding="utf-8").replace("tacho run", "").replace("tacho ui", "")
    command = [sys.executable, str(path)]
    options = {
        "cwd": tmp_path,
        "env": {**os.environ, "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"},
        "text": True,
        "timeout": HANG_S,
    }
    if is_unmodified:
        command = [sys.executable, "-m", "tachograph", "run", "--name", path.stem, "--", *command]
        done = subprocess.run(command, capture_output=True, check=False, **options)
    else:
        done = preloaded("frameworks").run(command, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    runs = list(list_runs(tmp_path / "logs"))
    assert runs, "no run was recorded"
    for folder in runs:
        history = read(folder.path)
        assert history.state == "finished", history.attempts[-1].end
        assert not history.latest("telemetry_error")
        assert history.latest("event", "training_metrics_update") or history.counts.get("step"), history.counts
