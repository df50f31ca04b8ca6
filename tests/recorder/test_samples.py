"""Samples that trainers write into folders of their own become media of the run, without a line of code."""

from __future__ import annotations

import io
import os
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tachograph
from tachograph.reader import open_media
from tachograph.recorder.collectors import samples as samples_module
from tachograph.recorder.collectors.sample_folders import SampleFolder, find_sample_folders
from tachograph.recorder.collectors.samples import SampleWatcher
from tests.conftest import HANG_S, lines_of, wait_for, whole_lines
from tests.media.recording import content_of, path_of

QUIET = {"console": False, "csv": False, "system_interval_s": 0}
AI_TOOLKIT = """
import io, os, sys, time
import numpy as np
from PIL import Image
import tachograph as tacho
from tachograph.recorder.collectors import samples

samples._CLOSE_S = 240.0  # for the disk of a busy machine
out, logs, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
folder = os.path.join(out, "fox", "samples")
os.makedirs(os.path.join(folder, ".tmp"), exist_ok=True)
os.makedirs(os.path.join(folder, ".thumbs"), exist_ok=True)

def sample(step, atomic):
    for index in range(2):
        pixels = np.random.default_rng(1000 * step + index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "jpeg")
        name = f"{int(time.time() * 1000)}__{step:09d}_{index}.jpg"
        path = os.path.join(folder, ".tmp" if atomic else "", name)
        with open(path, "wb", buffering=0) as file:
            for start in range(0, len(buffer.getvalue()), 500):
                file.write(buffer.getvalue()[start : start + 500])
        if atomic:
            os.rename(path, os.path.join(folder, name))
        Image.fromarray(pixels).save(os.path.join(folder, ".thumbs", name + ".jpg"))

process = {
    "type": "sd_trainer", "training_folder": out, "trigger_word": "p3r",
    "sample": {
        "seed": 42, "walk_seed": True, "guidance_scale": 4, "prompts": ["a [trigger] fox --w 512 --d 7", "wolf"],
    },
}
if not first:
    sample(0, True)  # the baseline, before the first step
run = tacho.init("fox", log_dir=logs, console=False, resume=True,
                 config={"job": "extension", "config": {"name": "fox", "process": [process]}})
for step in range(first, last):
    run.log({"train_loss": 1.0}, step=step)
    if step and step % 10 == 0:
        sample(step, step == 20)
print("trained", flush=True)
if len(sys.argv) > 5:
    time.sleep(600)
run.finish()
"""

SAMPLES = [
    ("a p3r fox", {"seed": 7, "guidance": 4, "width": 512, "prompt_id": 0}),
    ("wolf", {"seed": 43, "guidance": 4, "prompt_id": 1}),
]


@pytest.fixture(autouse=True)
def _patient_end(monkeypatch):
    """Do not take a machine that is busy for a disk that hangs."""
    monkeypatch.setattr(samples_module, "_CLOSE_S", HANG_S)


def picture(seed: int = 0, kind: str = "png") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (48, 48, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def samples_of(folder: Path) -> list[dict]:
    return [line for line in lines_of(folder) if line["event"] == "media"]


class Recorder:
    """Stands in for a run, and keeps what the watcher logs."""

    resumed = False
    folder = None

    def __init__(self) -> None:
        self.calls = []

    def _add_media(self, media, step):
        ((name, items),) = media.items()
        self.calls.append((name, step, [os.path.basename(item.data) for item in items]))


@pytest.fixture
def watched(tmp_path):
    """A watcher of a folder that is looked at only when the test does so."""
    watcher, folder = SampleWatcher(Recorder()), tmp_path / "fox" / "samples"
    folder.mkdir(parents=True)
    process = {"training_folder": str(tmp_path), "name": "fox"}
    watcher._configs.put((process, str(tmp_path)))
    return watcher, folder


def name_of(step: int, index: int, ext: str = "png", ahead_ms: int = 0) -> str:
    return f"{int(time.time() * 1000) + ahead_ms}__{step:09d}_{index}.{ext}"


def test_ai_toolkit_samples_are_recorded_and_resumed(script, logs, tmp_path):
    """Attempts: one that finishes, one that is killed right after it sampled, and one that samples a step again."""
    out = tmp_path / "output"
    assert "trained" in script(AI_TOOLKIT, out, logs, 0, 25).ok()
    process = script(AI_TOOLKIT, out, logs, 25, 35, "wait").process
    assert process.stdout.readline() == "trained\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    script(AI_TOOLKIT, out, logs, 29, 45).ok()
    media = samples_of(logs / "fox")
    steps = [line["global_step"] for line in media]
    assert sorted(set(steps)) == [0, 10, 20, 30, 40]
    names = [item["file_name"] for line in media for item in line["items"]]
    taken = [path.name for path in (out / "fox" / "samples").glob("*.jpg")]
    assert sorted(names) == sorted(taken) and len(taken) == 12, "each file once, also those of the killed attempt"
    for line in media:
        assert line["name"] == "samples" and line["kind"] == "image" and not line["num_dropped"]
        for item in line["items"]:
            assert content_of(logs / "fox", item) and (item["width"], item["height"]) == (64, 64)
            assert (item["caption"], item["meta"]) == SAMPLES[item["index"]]
    # A trainer that is slow between two pictures has them in two records.
    pictures = [(line["global_step"], item["index"]) for line in media for item in line["items"]]
    assert set(pictures) == {(step, index) for step in range(0, 50, 10) for index in (0, 1)}
    assert not [line for line in lines_of(logs / "fox") if line["event"] == "telemetry_error"]


def test_samples_appear_while_the_trainer_runs(script, logs, tmp_path):
    process = script(AI_TOOLKIT, tmp_path / "output", logs, 0, 25, "wait").process
    assert process.stdout.readline() == "trained\n"
    journal = logs / "fox" / "metrics.jsonl"
    wait_for(lambda: sum(line["event"] == "media" for line in whole_lines(journal)) >= 3, "samples")
    process.kill()


def test_a_file_is_taken_when_it_is_complete(watched):
    watcher, folder = watched
    data = {"png": picture(), "jpg": picture(kind="jpeg"), "webp": picture(kind="webp"), "mp4": mp4()}
    for number, (ext, content) in enumerate(data.items()):
        path = folder / name_of(number, 0, ext)
        for end in (0, 10, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:end])
            for _ in range(3):
                watcher.look()
        assert not watcher._run.calls, ext
        path.write_bytes(content)
        watcher.look()
        assert not watcher._run.calls, "its size has not rested yet"
        watcher.look()
        ((name, step, names),) = watcher._run.calls
        assert (name, step, names) == ("samples/video" if ext == "mp4" else "samples", number, [path.name])
        watcher.look()
        assert len(watcher._run.calls) == 1
        watcher._run.calls.clear()


def mp4() -> bytes:
    return b"".join(
        struct.pack(">I4s", 8 + len(body), kind) + body
        for kind, body in ((b"ftyp", b"isom0000"), (b"mdat", bytes(500)), (b"moov", bytes(100)))
    )


def test_an_incomplete_file_is_taken_in_the_end(watched, monkeypatch):
    watcher, folder = watched
    broken = folder / name_of(1, 0)
    broken.write_bytes(picture()[:-20])
    watcher.look()
    watcher.look(is_last=True)
    assert [names for _, _, names in watcher._run.calls] == [[broken.name]]
    monkeypatch.setattr(samples_module, "_MAX_INCOMPLETE_S", -1)
    stuck = folder / name_of(2, 0)
    stuck.write_bytes(picture()[:-20])
    watcher.look()
    watcher.look()
    assert watcher._run.calls[-1][2] == [stuck.name]


def test_other_files_and_older_ones_are_left_alone(watched, tmp_path):
    watcher, folder = watched
    (folder / f"1600000000000__{5:09d}_0.png").write_bytes(picture())
    for name in ("preview.png", "1__2_3.png", name_of(1, 0, "txt"), name_of(1, 0, "svg"), name_of(1, 0) + ".part"):
        (folder / name).write_bytes(picture())
    (folder / name_of(1, 1)).mkdir()
    (tmp_path / "secret.png").write_bytes(picture())
    (folder / name_of(1, 2)).symlink_to(tmp_path / "secret.png")
    os.mkfifo(folder / name_of(1, 3))
    watcher.look()
    watcher.look(is_last=True)
    assert watcher._run.calls == []


def test_a_step_that_is_sampled_twice_is_two_records(watched):
    watcher, folder = watched
    names = [name_of(5, index, ahead_ms=ms) for ms in (0, 5000) for index in (1, 0)]
    for name in names:
        (folder / name).write_bytes(picture())
    watcher.look()
    watcher.look()
    assert watcher._run.calls == [("samples", 5, names[1::-1]), ("samples", 5, names[:1:-1])]


def test_an_unchanged_folder_is_not_listed_again(watched, monkeypatch):
    watcher, folder = watched
    (folder / name_of(1, 0)).write_bytes(picture())
    watcher.look()
    watcher.look()
    os.utime(folder, (1_600_000_000, 1_600_000_000))
    watcher.look()
    monkeypatch.setattr(os, "scandir", None)
    for _ in range(3):
        watcher.look()
    assert len(watcher._run.calls) == 1


def test_names_of_files(tmp_path):
    toolkit = SampleFolder("/a", "AI Toolkit")
    scripts = SampleFolder("/a", "sd-scripts", output_name="my_lora")
    for name, expected in {
        "1703123500123__000000250_3.jpg": (250, None, 3, None, "image"),
        "rank01_sample005_1703123500123__000000250_0.webp": (250, None, 5, None, "image"),
        "1703123500123__000000250_3.flac": (250, None, 3, None, "audio"),
        "1703123500123_000000250_3.jpg": None,
    }.items():
        sample = toolkit.parse_name(name)
        assert (sample and sample[1:]) == expected, name
    for name, expected in {
        "my_lora_000250_03_20240131120000_42.png": (250, None, 3, 42, "image"),
        "my_lora_e000003_00_20240131120000.mp4": (None, 3, 0, None, "video"),
        "my_lora_20240131120000_000250_03_42.png": (250, None, 3, 42, "image"),
        "other_000250_03_20240131120000_42.png": None,
        "my_lora_000250_03_20249931120000_42.png": None,
        "my_lora-000250.safetensors": None,
    }.items():
        sample = scripts.parse_name(name)
        assert (sample and sample[1:]) == expected, name


def test_configs_that_name_a_folder(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "job.yaml").write_text(
        "job: extension\nconfig:\n  name: '[name]_v1'\n  process:\n  - training_folder: output\n    sample:\n"
        "      samples:\n      - prompt: a fox --cfg 3.5 --n blurry, dark --m 0.8\n        seed: 5\n      - prompt: b\n"
    )
    (folder,) = find_sample_folders({"config_file_list": ["job"], "name": "x"}, str(tmp_path))
    assert folder.path == str(tmp_path / "output" / "x_v1" / "samples")
    assert folder.prompts[0] == (
        "a fox",
        {"seed": 5, "guidance": 3.5, "negative_prompt": "blurry, dark", "network_multiplier": 0.8},
    )
    prompts = {
        "p.txt": "# comment\n\na red fox --n bad --d 1 --l 7.5\n--no option\n",
        "p.json": '[{"prompt": "a red fox", "negative_prompt": "bad", "seed": 1, "scale": 7.5, "enum": 0}]',
        "p.toml": '[prompt]\nnegative_prompt = "bad"\n[[prompt.subset]]\nprompt = "a red fox"\nseed = 1\nscale = 7.5\n',
    }
    for name, text in prompts.items():
        (tmp_path / name).write_text(text)
        config = {"output_dir": "out", "output_name": "o", "sample_prompts": name, "sample_every_n_steps": 5}
        (folder,) = find_sample_folders(config, str(tmp_path))
        assert folder.path == str(tmp_path / "out" / "sample") and folder.output_name == "o"
        if name != "p.toml" or folder.prompts:  # Python 3.10 reads no TOML
            assert folder.prompts[0] == ("a red fox", {"negative_prompt": "bad", "seed": 1, "guidance": 7.5})
    hostile = [
        {"process": 3},
        {"process": [None, {"training_folder": 3}]},
        {"config": ["/dev/zero", "\0", "x" * 10_000]},
        {"config_file": str(tmp_path)},
        {"process": [{"training_folder": "a", "name": "b", "sample": {"prompts": [None, {}, 3]}}]},
        {"output_dir": "a", "sample_prompts": "/dev/zero"},
        {"output_dir": "a", "sample_every_n_steps": 5, "sample_prompts": ["x"]},
    ]
    for config in hostile:
        assert all(folder.path.startswith(str(tmp_path)) for folder in find_sample_folders(config, str(tmp_path)))


def test_runs_without_such_a_config_start_no_thread(logs, tmp_path):
    for config in ({"lr": 1.0, "output_dir": "x"}, {"process": "x"}, None):
        with tachograph.init("plain", log_dir=logs, config=config, **QUIET) as run:
            assert bool(run._sample_watcher) == bool(config and "process" in config)
    config = {"process": [{"training_folder": str(tmp_path), "name": "x"}]}
    with tachograph.init("off", log_dir=logs, config=config, media=False, **QUIET) as run:
        assert not run._sample_watcher


def write_sample(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name_of(step, 0)
    path.write_bytes(picture(step))
    return path


def test_a_config_that_comes_later_is_looked_at(logs, tmp_path):
    with tachograph.init("late", log_dir=logs, config={"output_dir": str(tmp_path)}, **QUIET) as run:
        run.update_config({"sample_prompts": "none.txt"})
        run.log({"train_loss": 1.0}, step=7)
        folder = tmp_path / "sample"
        folder.mkdir()
        name = f"e000002_01_{time.strftime('%Y%m%d%H%M%S')}_9.png"
        (folder / name).write_bytes(picture())
    (line,) = samples_of(logs / "late")
    (item,) = line["items"]
    assert (line["global_step"], item["index"]) == (7, 1)
    assert item["meta"] == {"prompt_id": 1, "seed": 9, "epoch": 2}


def test_samples_are_stored_without_a_copy(logs, tmp_path):
    out = tmp_path / "out"
    config = {"process": [{"training_folder": str(out), "name": "x"}]}
    with tachograph.init("linked", log_dir=logs, config=config, **QUIET) as run:
        kept, changed = (write_sample(out / "x" / "samples", step) for step in (1, 2))
    items = {line["global_step"]: line["items"][0] for line in samples_of(logs / "linked")}
    if not items[1].get("linked"):
        pytest.skip("this file system clones files, or has no hard links")
    assert os.path.samefile(path_of(logs / "linked", items[1]), kept)
    content = kept.read_bytes()
    kept.unlink()
    assert content_of(logs / "linked", items[1]) == content
    with changed.open("r+b") as file:
        file.write(b"overwritten")
    file = open_media(run.folder, items[1]["sha256"], "png")
    with file:
        assert file.read() == content
    assert open_media(run.folder, items[2]["sha256"], "png") is None, "never other bytes than the ones of the hash"


def test_samples_on_another_disk_are_copied(logs, tmp_path):
    import shutil
    import tempfile

    other = Path(tempfile.mkdtemp(dir="/dev/shm")) if os.path.isdir("/dev/shm") else tmp_path
    if os.stat(other).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("no other file system")
    try:
        config = {"process": [{"training_folder": str(other), "name": "x"}]}
        with tachograph.init("copied", log_dir=logs, config=config, **QUIET):
            path = write_sample(other / "x" / "samples", 1)
        (line,) = samples_of(logs / "copied")
        assert "linked" not in line["items"][0]
        assert content_of(logs / "copied", line["items"][0]) == path.read_bytes()
    finally:
        shutil.rmtree(other)


def test_a_second_run_of_a_process_takes_only_its_own(logs, tmp_path):
    config = {"process": [{"training_folder": str(tmp_path), "name": "x"}]}
    for step in (1, 2):
        with tachograph.init(f"run-{step}", log_dir=logs, config=config, **QUIET):
            write_sample(tmp_path / "x" / "samples", step)
    for step in (1, 2):
        assert [line["global_step"] for line in samples_of(logs / f"run-{step}")] == [step]
