"""Reading dumps: the commands, the API, and skipping the batch of a fault."""

from __future__ import annotations

import json
import tarfile

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import tachograph
from tachograph.black_box import Verdict
from tachograph.cli._main import main
from tachograph.server import create_app


@pytest.fixture
def run_name(logs):
    """The name of a run with a dump."""
    with tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run:
        run.log(train_loss=1.0, step=7)
        run.flush()
        layers = [{"name": "head", "shape": [2], "weight": {"rms": 1.0, "absmax": float("inf"), "non_finite": 1}}]
        run.dump_writer.add_part("layers", lambda context: {"layers": layers})
        run.dump_writer.add_part("batch", lambda context: {"indices": [3, 5], "step": 7})
        run.dump_writer.write(
            "not_finite", step=7, verdict=Verdict(kind="k", text="It was the sample.", confidence="certain")
        )
    return "x"


def tacho(*arguments):
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_commands(logs, run_name, tmp_path):
    options = ("--log-dir", str(logs))
    assert "It was the sample." in tacho("dump", "list", run_name, *options)
    text = tacho("dump", "show", run_name, *options)
    assert "certain" in text
    assert "head" in text
    shown = json.loads(tacho("dump", "show", run_name, "1", "--json", *options))
    assert shown["verdict"]["text"] == "It was the sample."
    text = tacho("doctor", run_name, *options)
    assert "It was the sample." in text
    tacho("dump", "export", run_name, "-o", str(tmp_path / "dump.tar.gz"), *options)
    with tarfile.open(tmp_path / "dump.tar.gz") as archive:
        assert "1-not_finite/dump.json" in archive.getnames()
    result = CliRunner().invoke(main, ["dump", "show", run_name, "9-other", *options])
    assert result.exit_code == 1
    assert "it has: 1-not_finite" in result.output


def test_api(logs, run_name):
    with TestClient(create_app(str(logs)), base_url="http://127.0.0.1") as client:
        page = client.get(f"/api/v1/runs/{run_name}/dumps").json()
        assert [(dump["name"], dump["cause"]["confidence"]) for dump in page["dumps"]] == [("1-not_finite", "certain")]
        detail = client.get(f"/api/v1/runs/{run_name}/dumps/1-not_finite").json()
        assert detail["content"]["layers"]["layers"][0]["weight"]["absmax"] == "Infinity"
        assert client.get(f"/api/v1/runs/{run_name}/dumps/2-other").status_code == 404


def test_batch_of_a_fault_is_skipped(logs, run_name):
    dump = tachograph.read(str(logs / run_name)).dumps[0]
    assert dump.skip_list() == [3, 5]
    assert dump.batch("abcdefgh") == ["d", "f"]
    batches = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert list(tachograph.resume_skipping(batches, dump.skip_list())) == [[0, 1], [6, 7]]
