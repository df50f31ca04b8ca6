"""`.tacho/ranks/map.json`: the map of all ranks over the whole run, kept by rank 0 while it compares them."""

from __future__ import annotations

import msgspec

from tachograph._base.files import make_folder, read_small, replace_file
from tachograph._base.guard import faults
from tachograph._base.typed import decode_json
from tachograph.journal._folder import RunFolder
from tachograph.records import RankMap

__all__ = ["MAX_RANK_MAP_BYTES", "read_rank_map", "write_rank_map"]

MAX_RANK_MAP_BYTES = 4 << 20


def write_rank_map(folder: RunFolder, rank_map: RankMap) -> None:
    """Replace the map of a run.

    Raises:
        OSError: if it cannot be written.
    """
    make_folder(folder.rank_map.parent, below=folder.path)
    replace_file(folder.rank_map, msgspec.json.encode(rank_map), below=folder.path)


def read_rank_map(folder: RunFolder) -> RankMap | None:
    """Return the map of a run; None if it has none, or a damaged one."""
    try:
        return decode_json(read_small(folder.rank_map, MAX_RANK_MAP_BYTES, below=folder.path), RankMap)
    except faults(OSError, msgspec.MsgspecError):
        return None
