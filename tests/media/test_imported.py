"""Media in the logs of other tools is checked like anything that comes from a stranger."""

from __future__ import annotations

import io
import os
import struct
import zlib

from PIL import Image

from tachograph.journal import RunFolder
from tachograph.media import ImportedFile, MediaImport
from tachograph.media import _imported as imported
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
