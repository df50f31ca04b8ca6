"""Disk usage of runs, by part."""

from __future__ import annotations

import os

from tachograph.journal import RunFolder

__all__ = ["PARTS", "disk_usage"]

PARTS: dict[str, str] = {
    "journal": "the records",
    "compressed": "the records, compressed by `tacho prune`",
    "csv": "`metrics.csv`, which can be made again",
    "ranks": "journals of the other ranks",
    "cache": "columns and summaries, which are made again when needed",
    "output": "the console output of programs under `tacho run`",
    "traces": "traces of torch's profiler",
    "media": "pictures and other media",
    "tensorboard": "event files",
    "code": "captured code",
    "annotations": "names, notes and tags",
    "other": "everything else in the folder, such as checkpoints",
}
_PART_OF = {
    "metrics.jsonl": "journal",
    "metrics.jsonl.gz": "compressed",
    "metrics.csv": "csv",
    ".tacho": "cache",
    "ranks": "ranks",
    "output": "output",
    "traces": "traces",
    "media": "media",
    "media.zip": "media",
    "tensorboard": "tensorboard",
    "code": "code",
    "annotations": "annotations",
}


def disk_usage(folder: RunFolder) -> dict[str, int]:
    """Return the bytes on disk of each part of a run; links are not followed, and a file with two names counts once."""
    num_bytes_of_part = dict.fromkeys(PARTS, 0)
    counted_files: set[tuple[int, int]] = set()
    waiting = [(os.fspath(folder.path), "")]
    while waiting:
        path, part = waiting.pop()
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            kind = part or _PART_OF.get(entry.name, "other")
            try:
                file_status = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            identity = (file_status.st_dev, file_status.st_ino)
            if file_status.st_nlink > 1 and not is_folder:
                if identity in counted_files:
                    continue
                counted_files.add(identity)
            # Blocks, because a file with holes takes less space than its size says.
            num_bytes_of_part[kind] += (
                file_status.st_blocks * 512 if hasattr(file_status, "st_blocks") else file_status.st_size
            )
            if is_folder:
                waiting.append((entry.path, kind))
    return num_bytes_of_part
