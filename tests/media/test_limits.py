"""What does not fit, and what goes wrong: the training continues, and the journal says what is missing."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tachograph as tacho
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tests.conftest import lines_of, wait_for, wait_for_lines, whole_lines
from tests.media.recording import content_of, media_records, path_of, record, stored_files

RNG = np.random.default_rng(0)


def noise(size: int = 300) -> np.ndarray:
    return RNG.integers(0, 256, (size, size, 3), dtype=np.uint8)


def test_a_call_beyond_the_limits_is_a_gap(logs):
    def log(run):
        run.log({"many": [tacho.Image(noise(8)) for _ in range(70)]}, step=1)
        run.log({"batch": tacho.Image(np.zeros((70, 4, 4, 3), np.uint8))}, step=2)
        run.log({"train_loss": 1.0, "large": tacho.Image(np.zeros((8_000, 8_000, 3), np.uint8))}, step=3)
        run.log({"h": tacho.Histogram(np.zeros(30_000_000, np.float32))}, step=4)
        run.log({"mixed": [tacho.Image(noise(8)), tacho.Text("a"), 3]}, step=5)

    lines = record(logs, log)
    media = {line["name"]: line for line in lines if line["event"] == "media"}
    for name in ("many", "batch"):
        assert len(media[name]["items"]) == 64 and media[name]["num_dropped"] == 6
    assert media["large"]["items"] == [] and media["large"]["num_dropped"] == 1 and media["large"]["global_step"] == 3
    assert "183 MB" in media["large"]["reason"]
    assert len(media["mixed"]["items"]) == 1 and media["mixed"]["num_dropped"] == 2
    errors = [line for line in lines if line["event"] == "telemetry_error"]
    reasons = {line["field"]: line["reason"] for line in errors if line["kind"] == "media_not_stored"}
    assert reasons["many"] == reasons["batch"] == "70 items in one call; the first 64 were recorded"
    assert sum(line["num_records"] for line in errors if line["kind"] == "records_lost") == 2
    assert [line["train_loss"] for line in lines_of(logs / "media") if line["event"] == "step"] == [1.0]


def test_problems_after_the_first_twenty_are_counted(logs):
    def log(run):
        for number in range(20):
            run.log({f"bad{number}": tacho.Image(np.zeros((3, 3, 9)))}, step=1)
        run.log(
            {"good": tacho.Histogram([1.0]), "bad": tacho.Histogram(["a"]), "worse": tacho.Histogram(["b"])}, step=1
        )
        run.flush()
        run.log({"large": tacho.Histogram(np.zeros(30_000_000, np.float32))}, step=2)  # counted only once

    lines = record(logs, log)
    (histograms,) = [line["values"] for line in lines if line["event"] == "histograms"]
    assert list(histograms) == ["good"]
    errors = [line for line in lines if line["event"] == "telemetry_error"]
    assert sum(line["kind"] == "media_not_stored" for line in errors) == 20
    assert sum(line["num_records"] for line in errors if line["kind"] == "records_lost") == 3


def test_a_large_file_does_not_delay_what_follows(logs, tmp_path):
    """Its holes are read as zeros, which takes longer than any test."""
    large = tmp_path / "large.bin"
    for keep in (False, True):
        run = tacho.init(f"keep-{keep}", log_dir=logs, console=False, exit_timeout_s=1, media_max_mb=1 << 40)
        with large.open("wb") as file:
            file.truncate(1 << 40)
        run.log_file(large, keep=keep)
        run.log_file(large, name="again", keep=keep)
        for step in range(7):
            run.log({"picture": tacho.Image(noise(8)), "note": tacho.Text("a")}, step=step)
        small = tmp_path / "small.txt"
        small.write_text("a")
        run.log_file(small, keep=keep)
        folder = Path(run.path)
        wait_for(lambda folder=folder: len(media_records(folder)) == 15, "the small records")
        assert run.media_pending() == 2
        run.finish()
        gaps = [line for line in media_records(folder) if line["event"] == "media" and not line["items"]]
        assert [line["name"] for line in gaps] == ["large.bin", "again"]
        assert all("exit_timeout_s" in line["reason"] for line in gaps)
        assert json.loads((folder / ".tacho" / "heartbeat.json").read_bytes())["media_pending"] == 0


def test_a_full_queue_drops_whole_calls(logs):
    array = np.zeros((600, 600, 3), np.uint8)  # a megabyte

    def log(run):
        for step in range(200):
            run.log({"image": tacho.Image(array + (step % 7))}, step=step)

    lines = [line for line in record(logs, log, media_queue_mb=2) if line["event"] == "media"]
    assert sorted(line["global_step"] for line in lines) == list(range(200))
    gaps = [line for line in lines if not line["items"]]
    assert gaps and all("media_queue_mb" in line["reason"] and line["num_dropped"] == 1 for line in gaps)
    assert len(gaps) < 200


def record_pictures(logs, num_steps, **settings):
    """Log a picture of about 80 kB at each step, and the same small one; return the records and what is left."""
    small = noise(16)

    def log(run):
        for step in range(num_steps):
            run.log({"photo": tacho.Image(noise()), "small": tacho.Image(small)}, step=step)
            run.flush()

    lines = record(logs, log, **settings)
    photos = [line for line in lines if line["event"] == "media" and line["name"] == "photo"]
    stored_steps = [
        line["global_step"] for line in photos if line["items"] and path_of(logs / "media", line["items"][0]).exists()
    ]
    return lines, photos, stored_steps


@pytest.mark.slow
def test_thinning_keeps_first_newest_and_thumbnails(logs):
    lines, photos, stored_steps = record_pictures(logs, 30, media_max_mb=1)
    assert 0 in stored_steps and 29 in stored_steps and 2 < len(stored_steps) < 30
    assert sum(path.stat().st_size for path in stored_files(logs / "media")) < 1.2 * 2**20
    events = [line for line in lines_of(logs / "media") if line.get("name") == "media_thinned"]
    assert len(events) == 1
    for line in photos:
        item = line["items"][0]
        if line["global_step"] not in stored_steps:
            assert (logs / "media" / ".tacho" / "thumbs" / f"{item['sha256']}-320.webp").exists()
    small = next(line for line in lines if line["event"] == "media" and line["name"] == "small")["items"][0]
    assert content_of(logs / "media", small)
    assert not [line for line in lines if line["event"] == "telemetry_error"]


def test_the_number_of_files_is_limited(logs):
    record_pictures(logs, 20, media_max_files=8)
    assert len(stored_files(logs / "media")) <= 10


def test_keeping_all_stops_at_the_limit(logs):
    lines, photos, stored_steps = record_pictures(logs, 20, media_max_mb=1, media_keep="all")
    assert stored_steps == list(range(len(stored_steps))) and 5 < len(stored_steps) < 20
    assert all("media_max_mb" in line["reason"] for line in photos if line["global_step"] not in stored_steps)
    assert [line["kind"] for line in lines if line["event"] == "telemetry_error"].count("media_not_stored") == 2


def test_keeping_the_latest_removes_older_ones(logs):
    _, _, stored_steps = record_pictures(logs, 8, media_keep="latest:3")
    assert stored_steps == [5, 6, 7]
    assert len(stored_files(logs / "media")) == 4


def test_media_can_be_turned_off(logs, monkeypatch):
    for place, settings in enumerate(({"media": False}, {"media_keep": "off"})):
        assert record(logs / str(place), lambda run: run.log({"a": tacho.Image(noise(8))}, step=1), **settings) == []
    monkeypatch.setenv("TACHO_MEDIA", "0")
    assert record(logs, lambda run: run.log({"train_loss": 1.0, "a": tacho.Text("x")}, step=1)) == []
    assert not (logs / "media" / "media").exists()
    for keep in ("some", "latest:0", "latest:", 3):
        with pytest.raises(ConfigError, match="media_keep"):
            tacho.init("x", log_dir=logs, media_keep=keep)


def test_disabled_runs_and_other_ranks_take_media(logs, monkeypatch, script):
    with tacho.init("off", log_dir=logs, enabled=False) as run:
        run.log({"a": tacho.Image(noise(8))}, step=1)
        run.log_file("/none")
        run.log_validation({"a": tacho.Image(noise(8))})
    assert not (logs / "off").exists()
    program = """
        import sys, numpy as np, tachograph as tacho
        with tacho.init("ranks", log_dir=sys.argv[1], console=False) as run:
            for step in range(3):
                run.log({"train_loss": 1.0, "a": tacho.Image(np.zeros((8, 8)))}, step=step)
            run.log_file(__file__)
    """
    for rank in ("0", "1"):
        started = script(program, logs, env={"RANK": rank, "WORLD_SIZE": "2"}, preload="tachograph")
        code, _, errors = started.wait()
        assert code == 0, errors
        assert ("4 records" in errors) == (rank == "1")
    assert len(media_records(logs / "ranks")) == 4


def test_the_end_of_a_run_waits_and_counts_the_rest(script, logs):
    program = """
        import pathlib, sys, threading, time, numpy as np, tachograph as tacho
        run = tacho.init("slow", log_dir=sys.argv[1], console=False, exit_timeout_s=float(sys.argv[2]))
        frames = np.random.default_rng(0).integers(0, 256, (120, 256, 256, 3), dtype=np.uint8)
        for step in range(8):
            run.log({"clip": tacho.Video(frames)}, step=step)
        started_s = time.monotonic()
        run.finish()
        duration_s = time.monotonic() - started_s
        run.finish(timeout_s=120)  # only waits for the journal
        names = sorted(pathlib.Path(run.path).rglob("*"))
        for thread in threading.enumerate():
            if thread.name == "tachograph-media":
                thread.join()
        assert sorted(pathlib.Path(run.path).rglob("*")) == names  # nothing is stored after the end
        print(duration_s)
    """
    seconds = float(script(program, logs, 1.0, preload="tachograph").ok().split()[-1])
    assert seconds < 60  # not as long as all clips take
    lines = media_records(logs / "slow")
    media = [line for line in lines if line["event"] == "media"]
    gaps = [line for line in media if not line["items"]]
    assert gaps and all("exit_timeout_s" in line["reason"] for line in gaps)
    assert sorted(line["global_step"] for line in media) == list(range(8))
    lost = [line for line in lines if line["event"] == "telemetry_error" and line["kind"] == "records_lost"]
    assert sum(line["num_records"] for line in lost) == len(gaps)


def test_after_a_kill_everything_in_the_journal_is_on_disk(script, logs):
    program = """
        import sys, numpy as np, tachograph as tacho
        run = tacho.init("killed", log_dir=sys.argv[1], console=False, resume=True)
        rng = np.random.default_rng()
        for step in range(100_000):
            array = rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)
            run.log({"train_loss": 1.0, "image": tacho.Image(array)}, step=step)
            run.flush(0.01)
    """
    folder = logs / "killed"
    for num_files in (3, 6, 9):
        process = script(program, logs, preload="tachograph").process
        wait_for(lambda n=num_files: len(stored_files(folder)) > n, "pictures")
        process.send_signal(signal.SIGKILL)
        process.wait()
        media = [line for line in whole_lines(folder / "metrics.jsonl") if line["event"] == "media"]
        for line in media:
            assert all(content_of(folder, item) for item in line["items"])
    leftover = folder / "media" / "ab" / ".abc.webp.0011223344556677.tmp"
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"half")
    process = script(program, logs, preload="tachograph").process
    wait_for(lambda: not leftover.exists(), "the removal of a temporary file")
    process.kill()
    process.wait()


def test_a_full_disk_does_not_end_the_training(script, logs):
    program = """
        import resource, sys, numpy as np, tachograph as tacho
        run = tacho.init("full", log_dir=sys.argv[1], console=False, csv=False)
        rng = np.random.default_rng(0)
        pictures = [rng.integers(0, 256, (500, 500, 3), dtype=np.uint8) for _ in range(4)]
        run.log({"image": tacho.Image(pictures[0])}, step=0)
        run.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        run.log({"image": tacho.Image(pictures[1]), "train_loss": 1.0}, step=1)
        run.log({"image": tacho.Image(pictures[2][:50, :50])}, step=2)
        run.log({"file": tacho.File(sys.argv[2])}, step=3)
        run.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.log({"image": tacho.Image(pictures[3])}, step=4)
        run.finish()
        print("trained")
    """
    large = logs.parent / "large.bin"
    large.write_bytes(bytes(100_000))
    assert "trained" in script(program, logs, large, preload="tachograph").ok()
    lines = media_records(logs / "full")
    media = {line["global_step"]: line for line in lines if line["event"] == "media"}
    assert [bool(media[step]["items"]) for step in range(5)] == [True, False, True, False, True]
    assert "File too large" in media[1]["reason"]
    assert {line["kind"] for line in lines if line["event"] == "telemetry_error"} == {
        "media_not_stored",
        "records_lost",
    }
    assert all(content_of(logs / "full", item) for line in media.values() for item in line["items"])
    assert not [path for path in stored_files(logs / "full") if path.name.endswith(".tmp")]


def test_a_fork_does_not_hang(script, logs):
    program = """
        import os, sys, numpy as np, tachograph as tacho
        run = tacho.init("forked", log_dir=sys.argv[1], console=False)
        array = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
        for step in range(6):
            run.log({"image": tacho.Image(array + step)}, step=step)
            child = os.fork()
            if not child:
                run.log({"image": tacho.Image(array)}, step=99)
                run.log_file(__file__)
                run.flush()
                run.finish()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        run.finish()
    """
    script(program, logs, preload="tachograph", env={"TACHO_EXIT_TIMEOUT_S": "60"}).ok()
    media = media_records(logs / "forked")
    assert [line["global_step"] for line in media] == list(range(6))


def test_readers_say_how_much_waited_when_a_process_was_killed(script, logs):
    program = """
        import sys, numpy as np, tachograph as tacho
        run = tacho.init("busy", log_dir=sys.argv[1], console=False)
        frames = np.random.default_rng(0).integers(0, 256, (150, 256, 256, 3), dtype=np.uint8)
        for step in range(1_000_000):
            run.log({"clip": tacho.Video(frames)}, step=step)
    """
    process = script(program, logs, preload="tachograph").process
    heartbeat = logs / "busy" / ".tacho" / "heartbeat.json"
    wait_for_lines(logs / "busy")
    wait_for(heartbeat.exists, "the heartbeat")
    wait_for(lambda: json.loads(heartbeat.read_bytes())["media_pending"] > 0, "a heartbeat with media")
    assert tacho.read("busy", logs).num_media_lost == 0  # not yet
    process.kill()
    process.wait()
    number = json.loads(heartbeat.read_bytes())["media_pending"]
    assert tacho.read("busy", logs).num_media_lost == number
    for command in ("show", "media"):
        result = CliRunner().invoke(main, [command, "busy", "--log-dir", str(logs)], env={"COLUMNS": "200"})
        assert f"about {number} media record" in result.output and "not stored when the process ended" in result.output
    # The end of a run counts what it gives up; another process has no part in it.
    with (logs / "busy" / "metrics.jsonl").open("ab") as journal:
        journal.write(
            b'{"event":"start","time":1e10,"run_name":"busy"}\n{"event":"end","time":1e10,"status":"failed"}\n'
        )
    assert tacho.read("busy", logs).num_media_lost == 0


def test_files_that_change_or_vanish_are_recorded_as_such(logs, tmp_path):
    growing, gone = tmp_path / "growing.log", tmp_path / "gone.log"
    growing.write_bytes(b"a")
    gone.write_bytes(b"b")
    blocker = tacho.Video(RNG.integers(0, 256, (40, 200, 200, 3), dtype=np.uint8))

    def log(run):
        run.log({"clip": blocker})
        run.log_file(growing)
        run.log_file(gone)
        growing.write_bytes(b"more")
        gone.unlink()
        os.mkfifo(gone)  # would block for ever

    media = {line["name"]: line["items"][0] for line in record(logs, log) if line["event"] == "media"}
    assert media["growing.log"]["changed"] is True
    assert content_of(logs / "media", media["growing.log"]) == b"more"
    assert "problem" in media["gone.log"]


def test_a_resumed_run_counts_the_files_of_earlier_attempts(logs):
    for _, step in itertools.product(range(2), range(12)):
        with tacho.init("again", log_dir=logs, console=False, resume=True, media_max_mb=1, media_keep="all") as run:
            run.log({"photo": tacho.Image(noise())}, step=step)
    assert sum(path.stat().st_size for path in stored_files(Path(run.path))) < 1.2 * 2**20
