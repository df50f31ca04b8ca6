"""`tacho import aim`: repositories written by the real package."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import textwrap

import PIL.Image
import pytest

import tachograph
from tachograph.importers import describe, import_runs
from tachograph.journal import RunFolder
from tachograph.reader import open_media
from tests.cli.test_cli import tacho
from tests.conftest import lines_of
from tests.importers.test_import import KILLS, check_killed_import

pytestmark = [
    pytest.mark.xdist_group("aim"),  # which is slow to import
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Aim's own
]

SCRIPT = """
    import io, json, math, sys, wave
    import aim, PIL.Image

    folder, runs = sys.argv[1], json.loads(sys.argv[2])
    for run_hash, options, begin, end in runs:
        quiet = {"system_tracking_interval": None, "log_system_params": False, "capture_terminal_logs": False}
        run = aim.Run(run_hash, repo=folder, experiment="jackets", **quiet)
        if run_hash is None:
            run["hparams"] = {"lr": 0.5, "model": {"depth": 2}, "api_key": "opaque"}
            run.name, run.description = options["name"], "a note"
            run.add_tag("t")
        for step in range(begin, end):
            run.track(1 / (step + 1), name="loss", step=step, epoch=step // 2, context={"subset": "train"})
            run.track(2 / (step + 1), name="loss", step=step, context={"subset": "val", "fold": 1})
            run.track(math.nan if step == 1 else 1, name="time", step=step)
        if options.get("objects"):
            run.track(aim.Text("hello"), name="note", step=end)
            run.track(aim.Distribution([1, 2, 2], bin_count=2), name="weights", step=end)
            pictures = [PIL.Image.new("RGB", (8, 4), (grey, grey, grey)) for grey in (0, 200)]
            captioned = [aim.Image(picture, caption=f"c{at}") for at, picture in enumerate(pictures)]
            run.track(captioned, name="samples", step=end, context={"subset": "val"})
            run.track(aim.Image(pictures[1]), name="one", step=end)
            sound = io.BytesIO()
            with wave.open(sound, "wb") as file:
                file.setparams((1, 2, 8_000, 0, "NONE", ""))
                file.writeframes(bytes(1_600))
            run.track(aim.Audio(sound.getvalue(), format="wav"), name="voice", step=end)
            run.track(50.0, name="__system__cpu", step=0, context={"gpu": 0})
        print(run.hash, flush=True)
        run.close()
"""


def write_runs(folder, *runs):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.split() if len(line) == 24]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aim")
    write_runs(folder, [None, {"name": "first", "objects": True}, 0, 4], [None, {"name": "second"}, 0, 2])
    return folder


def test_pictures_and_sounds_of_aim_become_media(repository, logs):
    tacho("import", "aim", repository, "--log-dir", logs)
    media = {record["name"]: record for record in tachograph.read(logs / "first").records("media")}
    assert {name: (record["kind"], record["global_step"]) for name, record in media.items()} == {
        "val/samples": ("image", 4),
        "one": ("image", 4),
        "voice": ("audio", 4),
    }
    assert [item["caption"] for item in media["val/samples"]["items"]] == ["c0", "c1"]
    (one,) = media["one"]["items"]
    with open_media(RunFolder(logs / "first"), one["sha256"], one["ext"]) as file, PIL.Image.open(file) as picture:
        assert (picture.size, picture.convert("RGB").getpixel((0, 0))) == ((8, 4), (200, 200, 200))
    assert media["voice"]["items"][0]["ext"] == "wav"


def test_aim_repository_becomes_runs(repository, logs):
    reports = {
        report["run"]: report for report in json.loads(tacho("import", "aim", repository, "--log-dir", logs, "--json"))
    }
    assert sorted(reports) == ["first", "second"]
    assert (reports["first"]["num_rows"], reports["first"]["metrics"]["train/loss"]) == (5, 4)
    history = tachograph.read(logs / "first")
    start = next(history.records("start"))
    assert (start["project"], start["notes"], start["tags"]) == ("jackets", "a note", ["t"])
    assert history.config == {"hparams": {"lr": 0.5, "model": {"depth": 2}, "api_key": "[masked]"}}
    loss = history.series("train/loss")
    assert (list(loss.steps), list(loss.values)) == ([0, 1, 2, 3], [1, 1 / 2, 1 / 3, 1 / 4])
    assert start["time"] <= loss.times[0] <= loss.times[-1]
    assert list(history.series("val/loss [fold=1]").values) == [2, 1, 2 / 3, 1 / 2]
    assert list(history.series("epoch").values) == [0, 0, 1, 1]
    assert math.isnan(history.series("time_").values[1])
    events = {record["name"]: record for record in history.records("event")}
    assert (events["text"]["tag"], events["text"]["text"]) == ("note", "hello")
    assert events["histogram"]["counts"] == [1, 2]
    assert [record["gpu0_cpu"] for record in history.records("system")] == [50.0]
    assert str(history.state) == "finished"
    assert describe(repository) == describe(repository / ".aim") == "aim"
    assert {report.outcome for report in import_runs("aim", [repository / ".aim"], str(logs))} == {"unchanged"}


def test_aim_run_that_has_grown_gets_only_what_is_new(repository, tmp_path, logs):
    folder = tmp_path / "aim"
    shutil.copytree(repository, folder)
    grown = {report.run: report for report in import_runs("aim", [folder], str(logs))}["second"]
    run_hash = next(tachograph.read(logs / grown.run).records("start"))["imported_from"]["id"]
    write_runs(folder, [run_hash, {}, 2, 6])
    dry = {report.run: report for report in import_runs("aim", [folder], str(logs), dry_run=True)}
    reports = {report.run: report for report in import_runs("aim", [folder], str(logs))}
    assert (reports["second"].outcome, reports["second"].num_rows, dry["second"].num_rows) == ("updated", 4, 4)
    assert reports["first"].outcome == "unchanged"
    steps = [record["global_step"] for record in lines_of(logs / "second") if record["event"] == "step"]
    assert steps == list(range(6))


def test_killed_import_of_aim_continues(tmp_path, script):
    write_runs(tmp_path / "aim", [None, {"name": "a"}, 0, 300])
    check_killed_import(script, "aim", tmp_path / "aim", tmp_path, KILLS[8], 5_000)


def test_damaged_aim_run_does_not_hide_the_others(repository, tmp_path, logs):
    folder = tmp_path / "aim"
    shutil.copytree(repository, folder)
    import_runs("aim", [folder], str(tmp_path / "before"))
    run_hash = next(tachograph.read(tmp_path / "before" / "first").records("start"))["imported_from"]["id"]
    for file in (folder / ".aim" / "seqs" / "chunks" / run_hash).glob("*.sst"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    reports = {report.run: report for report in import_runs("aim", [folder], str(logs))}
    assert (reports["first"].outcome, reports["second"].outcome) == ("failed", "created")
    assert f"run {run_hash} cannot be read" in reports["first"].error


def test_missing_aim_package_is_named_with_its_remedy(repository, logs, tmp_path, script):
    (tmp_path / "aim.py").write_text("raise ModuleNotFoundError('as if it were not installed')")
    code, _, err = script(
        "import sys\nfrom tachograph.importers import import_runs\nimport_runs('aim', [sys.argv[1]], sys.argv[2])",
        repository,
        logs,
        env={"PYTHONPATH": str(tmp_path)},
    ).wait()
    assert code == 1
    assert "pip install 'tachograph[aim]'" in err.strip().splitlines()[-1]
