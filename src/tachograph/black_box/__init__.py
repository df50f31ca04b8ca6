"""The black box: evidence about the last steps, written to the run folder when something goes wrong."""

from tachograph.black_box._dump_writer import DumpContext, DumpPart, DumpWriter
from tachograph.black_box._dumps import Dump, read_dumps
from tachograph.black_box._format import (
    DumpDocument,
    DumpFile,
    Verdict,
    dump_names,
    dumps_folder,
    is_dump_name,
    reason_word,
)

__all__ = [
    "Dump",
    "DumpContext",
    "DumpDocument",
    "DumpFile",
    "DumpPart",
    "DumpWriter",
    "Verdict",
    "dump_names",
    "dumps_folder",
    "is_dump_name",
    "read_dumps",
    "reason_word",
]
