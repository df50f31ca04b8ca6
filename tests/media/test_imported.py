"""Media in the logs of other tools is checked like anything that comes from a stranger."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from tachograph.journal import RunFolder
from tachograph.media import ImportedFile, MediaImport
from tachograph.media import _imported as imported
from tachograph.media._snapshots import MAX_ROWS
from tests.media.recording import content_of, stored_files


def png(size=(4, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "png")
    return buffer.getvalue()


def bomb() -> bytes:
    """Return a small PNG file that says it has 10 gigapixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))


def bytes_read() -> int:
    """Return how many bytes this process has read."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what a process reads")
def test_unchanged_file_is_read_once(tmp_path):
    """A log that is followed is imported again and again."""
    (tmp_path / "log").mkdir()
    (tmp_path / "run").mkdir()
    path = tmp_path / "log" / "a.png"
    path.write_bytes(png((500, 500)) + bytes(5_000_000))

    def store():
        file = ImportedFile(root=str(tmp_path / "log"), path="a.png")
        num_bytes = bytes_read()
        record = MediaImport(RunFolder(tmp_path / "run")).store({"kind": "image", "items": [{"file": file}]})
        return record["items"][0], bytes_read() - num_bytes > 5_000_000

    first, was_read = store()
    assert was_read
    assert store() == (first, False)
    (stored,) = stored_files(tmp_path / "run")
    stored.unlink()
    assert store() == (first, True)
    assert stored.exists()
    path.write_bytes(png((6, 6)) + bytes(5_000_000))
    second, was_read = store()
    assert (second["width"], was_read) == (6, True)


def test_texts_and_tables_have_limits(tmp_path):
    (tmp_path / "run").mkdir()
    media = MediaImport(RunFolder(tmp_path / "run"))

    def item_of(kind, data):
        return media.store({"kind": kind, "items": [{"file": ImportedFile(data)}]})["items"][0]

    assert item_of("text", b"a\xff")["text"] == "a\N{REPLACEMENT CHARACTER}"
    assert content_of(tmp_path / "run", item_of("markdown", b"x" * 100_000)) == b"x" * 100_000
    assert "more than" in item_of("text", b"x" * (imported._MAX_TEXT_BYTES + 1))["problem"]
    rows = [{"a": number, "p": ImportedFile(png() if number == 0 else b"<svg>")} for number in range(2)]
    (table,) = media.store({"kind": "table", "items": [{"columns": ["a", "p"], "rows": rows}]})["items"]
    assert (table["rows"][0]["p"]["media"], table["rows"][1]["p"]) == (
        "image",
        "a file that is no image, or of an unknown type",
    )
    many = [{"a": number} for number in range(MAX_ROWS + 1)]
    (table,) = media.store({"kind": "table", "items": [{"columns": ["a"], "rows": many}]})["items"]
    assert (table["num_rows"], table["problem"]) == (MAX_ROWS + 1, f"rows after the first {MAX_ROWS} were not stored")


def test_hostile_files_become_problems(tmp_path, monkeypatch):
    root, run = tmp_path / "log", tmp_path / "run"
    (root / "media").mkdir(parents=True)
    run.mkdir()
    (tmp_path / "secret.png").write_bytes(png())
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "inside.png").symlink_to(root / "media" / "good.png")
    (root / "media" / "good.png").write_bytes(png())
    os.mkfifo(root / "pipe.png")
    with open(root / "large.png", "wb") as file:
        file.truncate(imported.MAX_FILE_BYTES + 1)
    paths = [
        "../secret.png",
        str(tmp_path / "secret.png"),
        "link.png",
        "pipe.png",
        "large.png",
        "none.png",
        "a\0b",
        ".",
    ]
    paths += ["x" * 5_000, "media"]
    bad = [ImportedFile(root=str(root), path=path) for path in paths]
    bad += [
        ImportedFile(data) for data in (b"", b"<svg/>", b"<script>", bomb(), png()[:20], b"RIFF0000WAVEfmt ", b"%PDF")
    ]
    good = [ImportedFile(root=str(root), path="media/good.png"), ImportedFile(root=str(root), path="inside.png")]
    good.append(ImportedFile(png((5, 5))))
    items = [{"file": file, "caption": "c"} for file in bad + good]
    media = MediaImport(RunFolder(run))
    record = media.store({"event": "media", "name": "x", "kind": "image", "items": items})
    assert ["problem" in item for item in record["items"]] == [True] * len(bad) + [False] * len(good)
    for item in record["items"][len(bad) :]:
        assert content_of(run, item) and item["caption"] == "c"
    assert len(stored_files(run)) == 2
    assert media.store({"kind": "unknown", "items": [{"file": ImportedFile(png())}]})["items"][0]["problem"]
    many = media.store({"kind": "image", "items": [{"file": ImportedFile(png())}] * 70})
    assert (len(many["items"]), many["num_dropped"]) == (64, 6)
    monkeypatch.setattr(imported, "_MAX_RUN_FILES", 2)
    full = media.store({"kind": "image", "items": [{"file": ImportedFile(png((6, 6)))}]})
    assert "as much media" in full["items"][0]["problem"]
    trial = MediaImport(None).store({"kind": "image", "items": [{"file": ImportedFile(png((7, 7)))}]})
    assert trial["items"][0]["sha256"] and len(stored_files(run)) == 2
