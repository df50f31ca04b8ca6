"""`tacho import tensorboard`: files written by the real package, read without it."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

import tachograph
from tachograph.bridges.tensorboard._event_file import _parse_any_event, _parse_scalar_event
from tachograph.importers import import_runs
from tests.cli.test_cli import tacho
from tests.conftest import lines_of
from tests.importers.test_import import KILLS, check_killed_import
from tests.media.recording import content_of


def write_events(folder, events, begin_s=1e9):
    """Write `(step, {tag: value})` into a new file and return its path."""
    before = set(folder.iterdir()) if folder.exists() else set()
    writer = EventFileWriter(str(folder), filename_suffix=f".{len(before)}")
    for number, (step, values) in enumerate(events):
        summary = Summary(value=[as_value(tag, value) for tag, value in values.items()])
        writer.add_event(Event(step=step, wall_time=begin_s + number, summary=summary))
    writer.close()
    (file,) = set(folder.iterdir()) - before
    return file


def as_value(tag, value):
    if isinstance(value, (int, float)):
        return Summary.Value(tag=tag, simple_value=value)
    if isinstance(value, str):
        tensor = TensorProto(dtype=7, string_val=[value.encode()], tensor_shape=TensorShapeProto())
        return Summary.Value(tag=tag, tensor=tensor, metadata=text_metadata("", ""))
    if isinstance(value, TensorProto):
        return Summary.Value(tag=tag, tensor=value)
    if isinstance(value, HistogramProto):
        return Summary.Value(tag=tag, histo=value)
    return Summary.Value(tag=tag, image=Summary.Image(height=1, width=1, encoded_image_string=value))


def rows_of(folder):
    return [record for record in lines_of(folder) if record["event"] == "step"]


def test_every_scalar_arrives_as_the_package_reads_it(tmp_path, logs):
    rng = random.Random(5)
    events = []
    for step in range(0, 900, 3):
        events.append((step, {"train/loss": rng.uniform(-1e30, 1e30), "time": rng.random()}))
        events.append((step, {"lr": math.inf if step == 30 else rng.random()}))
        if step % 9 == 0:
            content = struct.pack("<d", rng.random())
            tensor = TensorProto(dtype=2, tensor_content=content, tensor_shape=TensorShapeProto())
            events.append((step, {"val/loss": tensor, "val/nan": math.nan}))
    write_events(tmp_path / "board", events)
    tacho("import", "tensorboard", tmp_path / "board", "--log-dir", logs)
    accumulator = EventAccumulator(str(tmp_path / "board"), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    history = tachograph.read(logs / "board")
    assert set(accumulator.Tags()["scalars"]) == {"train/loss", "time", "lr", "val/nan"}
    for tag in accumulator.Tags()["scalars"]:
        series = history.series("time_" if tag == "time" else tag)
        expected = accumulator.Scalars(tag)
        assert list(series.steps) == [event.step for event in expected]
        assert repr(series.values.tolist()) == repr([event.value for event in expected])
    tensors = [struct.unpack("<d", event.tensor_proto.tensor_content)[0] for event in accumulator.Tensors("val/loss")]
    assert history.series("val/loss").values.tolist() == tensors
    assert len(rows_of(logs / "board")) == 300  # the scalars of a step are one row
    assert history.attempts[0].start["time"] == 1e9


@pytest.mark.parametrize(
    ("field", "dtype", "number"),
    [
        *((field, dtype, number) for field, dtype in (("float_val", 1), ("double_val", 2)) for number in (0, -3, 2.5)),
        *((field, dtype, number) for field, dtype in (("int_val", 3), ("int64_val", 9)) for number in (0, 1, -3)),
        ("double_val", 2, 1e200),
        ("int64_val", 9, 2**40),
    ],
)
def test_scalars_stored_as_tensors_arrive(tmp_path, logs, field, dtype, number):
    write_events(tmp_path / "board", [(7, {"a": TensorProto(dtype=dtype, **{field: [number]})})])
    import_runs("tensorboard", [tmp_path / "board"], str(logs))
    (row,) = rows_of(logs / "board")
    assert (row["global_step"], row["a"]) == (7, number)


@settings(deadline=None)
@given(
    st.floats(),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.tuples(st.text(max_size=130), st.floats(width=32)), max_size=2),
    st.binary(max_size=3),
)
def test_short_way_reads_an_event_as_the_long_one(time_s, step, scalars, rest):
    values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars]
    data = Event(wall_time=time_s, step=step, summary=Summary(value=values)).SerializeToString()
    found = _parse_scalar_event(data, 5)
    assert found is None or repr(found) == repr(_parse_any_event(data, 5))
    if len(scalars) == 1 and 0 < len(scalars[0][0].encode()) < 100 and time_s:
        assert found is not None
    with contextlib.suppress(ValueError):
        changed = _parse_scalar_event(data + rest, 5)
        assert changed is None or repr(changed) == repr(_parse_any_event(data + rest, 5))


def test_text_histogram_and_hyperparameters_arrive(tmp_path, logs):
    histogram = HistogramProto(min=-1, max=3, num=3, bucket_limit=[0, 3], bucket=[1, 2])
    write_events(tmp_path / "board", [(1, {"loss": 1.0}), (1, {"note": "hello", "h": histogram, "i": b"png"})])
    writer = EventFileWriter(str(tmp_path / "board" / "1700000000.25"))
    started = hparams.hparams_pb({"lr": 0.5, "name": "x", "is_big": True}, start_time_secs=1e9)
    writer.add_event(Event(wall_time=1e9 + 5, summary=started))
    writer.add_event(Event(wall_time=1e9 + 6, summary=Summary(value=[as_value("accuracy", 0.75)])))
    writer.close()
    (report,) = import_runs("tensorboard", [tmp_path / "board"], str(logs))
    history = tachograph.read(logs / "board")
    (text,) = history.latest("event", "text")
    assert (text["tag"], text["text"], text["global_step"]) == ("note", "hello", 1)
    (found,) = history.latest("event", "histogram")
    assert (found["tag"], found["counts"], found["edges"]) == ("h", [1, 2], [-1, 0, 3])
    assert history.config == {"lr": 0.5, "name": "x", "is_big": True}
    assert history.summary == {"accuracy": 0.75}
    assert report.left_out == {"image: a file that is no image, or of an unknown type": 1}


def test_folder_with_many_runs_becomes_many_runs(tmp_path, logs):
    board = tmp_path / "lightning_logs"
    for name in ("version_0", "version_1", "sweep/a", "sweep/b"):
        write_events(board / name, [(step, {"loss": 1.0}) for step in range(3)])
    write_events(board / "keras" / "train", [(0, {"loss": 1.0}), (1, {"loss": 2.0})])
    write_events(board / "keras" / "validation", [(0, {"loss": 3.0}), (1, {"loss": 4.0})])
    tacho("import", "tensorboard", board, "--log-dir", logs)
    names = ["keras", "sweep-a", "sweep-b", "version_0", "version_1"]
    assert sorted(run["name"] for run in json.loads(tacho("ls", "--log-dir", logs, "--json"))) == names
    rows = [{name: row[name] for name in row if "/" in name} for row in rows_of(logs / "keras")]
    assert rows == [{"train/loss": 1, "validation/loss": 3}, {"train/loss": 2, "validation/loss": 4}]
    assert [report.outcome for report in import_runs("tensorboard", [board], str(logs))] == ["unchanged"] * 5


def test_restart_in_the_same_folder_is_an_attempt(tmp_path, logs):
    write_events(tmp_path / "a", [(step, {"loss": 1.0}) for step in range(10)])
    write_events(tmp_path / "a", [(step, {"loss": 2.0}) for step in range(6, 12)], begin_s=1e9 + 100)
    import_runs("tensorboard", [tmp_path / "a"], str(logs))
    history = tachograph.read(logs / "a")
    assert [(attempt.first_step, attempt.last_step) for attempt in history.attempts] == [(0, 9), (6, 11)]
    assert history.series("loss", overlap="latest").values.tolist() == [1.0] * 6 + [2.0] * 6


def test_writers_at_the_same_time_are_one_attempt(tmp_path, logs):
    write_events(tmp_path / "a", [(step, {"loss": 1.0}) for step in range(10)])
    write_events(tmp_path / "a", [(step, {"accuracy": 2.0}) for step in range(10)])
    import_runs("tensorboard", [tmp_path / "a"], str(logs))
    assert len(tachograph.read(logs / "a").attempts) == 1
    assert [(row["loss"], row["accuracy"]) for row in rows_of(logs / "a")] == [(1, 2)] * 10


def test_import_of_a_growing_file_equals_one_of_the_whole(tmp_path):
    events = [(step, {f"m{tag}": step + tag / 8}) for step in range(6) for tag in range(3)]
    file = write_events(tmp_path / "a", [*events, (9, {"note": "hello"}), (9, {"loss": 1.0})])
    whole = file.read_bytes()
    import_runs("tensorboard", [tmp_path / "a"], str(tmp_path / "whole"))
    expected = (tmp_path / "whole" / "a" / "metrics.jsonl").read_bytes()
    for end in range(0, len(whole), 23):
        logs = tmp_path / f"logs{end}"
        for part in (whole[:end], whole[: end + 150], whole):
            file.write_bytes(part)
            import_runs("tensorboard", [tmp_path / "a"], str(logs))
        assert (logs / "a" / "metrics.jsonl").read_bytes() == expected, end


@pytest.mark.parametrize("kill", KILLS)
def test_killed_import_continues_to_the_same_journal(tmp_path, script, kill):
    train = [(step // 2, {f"m{step % 2}": step / 8}) for step in range(600)]
    write_events(tmp_path / "a" / "train", train)
    write_events(tmp_path / "a" / "validation", [(step, {"note": "x", "loss": 1.0}) for step in range(0, 300, 7)])
    check_killed_import(script, "tensorboard", tmp_path / "a", tmp_path, kill, 4_000)


def test_any_damage_ends_the_import_at_its_place(tmp_path):
    """Whatever byte is changed, the records before it arrive, and the report says where it stopped."""
    file = write_events(tmp_path / "a", [(step, {"loss": step / 3}) for step in range(12)])
    whole = file.read_bytes()
    import_runs("tensorboard", [file], str(tmp_path / "whole"), name="a")
    expected = rows_of(tmp_path / "whole" / "a")
    for offset in range(0, len(whole), 3):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        logs = tmp_path / f"logs{offset}"
        (report,) = import_runs("tensorboard", [file], str(logs), name="a")
        (damage,) = report.damage
        stopped = int(damage.where.removeprefix("byte "))
        assert stopped <= offset < stopped + 100
        rows = rows_of(logs / "a") if report.num_rows else []
        assert rows == expected[: len(rows)]
        assert (len(rows) < 12, report.outcome) == (True, "created" if rows else "empty")


def test_torn_tail_is_a_warning_and_no_failure(tmp_path, logs):
    file = write_events(tmp_path / "a", [(step, {"loss": 1.0}) for step in range(12)])
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    out = tacho("import", "tensorboard", tmp_path / "a", "--log-dir", logs, columns=500)
    assert "the file ends inside an event" in out
    assert len(rows_of(logs / "a")) == 11
    file.write_bytes(b"")
    assert tacho("import", "tensorboard", tmp_path / "a", "--log-dir", logs, check=False).returncode == 1


def test_file_of_garbage_is_rejected(tmp_path, logs):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(random.Random(1).randbytes(5_000))
    done = tacho("import", "tensorboard", tmp_path, "--log-dir", logs, check=False, columns=500)
    assert (done.returncode, "damaged at byte 0" in done.stdout) == (1, True)
    assert not logs.exists()


def test_memory_does_not_grow_with_the_file(tmp_path, script):
    """Four times as many events need no more memory; one picture at a time is loaded."""
    for name, num_events in (("small", 10_000), ("large", 40_000)):
        events = [(step, {"loss": 1.0, "lr": 2.0}) for step in range(num_events)]
        write_events(tmp_path / name, [*events, (1, {"i": bytes(3_000_000)}), (1, {"loss": 1.0})])
    out = script(
        """
        import sys, tracemalloc
        from tachograph.importers import import_runs
        import_runs("tensorboard", [sys.argv[1] + "/small"], sys.argv[1] + "/logs", dry_run=True)
        for name in ("small", "large"):
            tracemalloc.start()
            (report,) = import_runs("tensorboard", [f"{sys.argv[1]}/{name}"], sys.argv[1] + "/logs")
            assert report.left_out == {"image: a file that is no image, or of an unknown type": 1}, report
            print(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        """,
        tmp_path,
    ).ok()
    small, large = map(int, out.split())
    assert large < 2 * small
    assert large < 30_000_000


def encoded(kind, size=8):
    """Return a picture or a sound as a file."""
    buffer = io.BytesIO()
    if kind == "wav":
        with wave.open(buffer, "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(80))
    else:
        pixels = np.random.default_rng(size).integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def of_plugin(tag, plugin, texts=(), content=b""):
    """Return a value of TensorBoard 2, which is a tensor that a plugin shows."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    tensor = TensorProto(dtype=2 if content else 7, string_val=texts, tensor_content=content)
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def test_pictures_sounds_and_histograms_are_imported(tmp_path, logs):
    """As TensorBoard 1, torch and TensorBoard 2 write them; one is larger than what has a checked checksum."""
    picture, large, sound = encoded("png"), encoded("png", 600), encoded("wav")
    writer = EventFileWriter(str(tmp_path / "run"))
    rows = struct.pack("<6d", 0, 1, 5, 1, 3, 7)
    values = [
        Summary.Value(tag="samples", image=Summary.Image(height=8, width=8, encoded_image_string=picture)),
        Summary.Value(tag="large", image=Summary.Image(height=600, width=600, encoded_image_string=large)),
        Summary.Value(tag="voice", audio=Summary.Audio(sample_rate=8000, encoded_audio_string=sound)),
        of_plugin("batch", "images", [b"8", b"8", picture, encoded("png", 9)]),
        of_plugin("voices", "audio", [sound, b"label"]),
        of_plugin("weights", "histograms", content=rows),
        Summary.Value(tag="fake", image=Summary.Image(height=1, width=1, encoded_image_string=b"<svg onload=x>")),
    ]
    for step, value in enumerate(values):
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=[value])))
    writer.close()
    reports = [import_runs("tensorboard", [tmp_path / "run"], logs)[0] for _ in range(2)]
    assert [report.outcome for report in reports] == ["created", "unchanged"]
    assert reports[0].left_out == {"image: a file that is no image, or of an unknown type": 1}
    media = {line["name"]: line for line in lines_of(logs / "run") if line["event"] == "media"}
    expected = {"samples": [picture], "large": [large], "voice": [sound], "voices": [sound]}
    expected["batch"] = [picture, encoded("png", 9)]
    for name, contents in expected.items():
        assert [content_of(logs / "run", item) for item in media[name]["items"]] == contents, name
    assert (media["samples"]["kind"], media["large"]["global_step"], media["voice"]["kind"]) == ("image", 1, "audio")
    assert media["batch"]["items"][1]["index"] == 1
    assert "no image" in media["fake"]["items"][0]["problem"]
    (histogram,) = (line for line in lines_of(logs / "run") if line.get("name") == "histogram")
    assert (histogram["tag"], histogram["counts"], histogram["edges"]) == ("weights", [5, 7], [0, 1, 3])
    assert len(list(tachograph.read(logs / "run").media.items("batch"))) == 2
