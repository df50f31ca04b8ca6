"""Who a hanging job waits for, from the dumps of PyTorch's flight recorder: one file per rank."""

from tachograph.diagnostics.flight_recorder._dumps import Collective, DumpFolder, FlightDump, read_dumps
from tachograph.diagnostics.flight_recorder._hang import HangReport, StuckGroup, find_hang, format_ranks

__all__ = [
    "Collective",
    "FlightDump",
    "DumpFolder",
    "HangReport",
    "StuckGroup",
    "find_hang",
    "format_ranks",
    "read_dumps",
]
