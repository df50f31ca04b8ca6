"""Export the metrics of many runs as one table."""

from tachograph.catalog.export._formats import FORMATS, SUFFIXES, load_format
from tachograph.catalog.export._runs import DEFAULT_KINDS, ExportedRun, export_runs

__all__ = ["DEFAULT_KINDS", "FORMATS", "SUFFIXES", "ExportedRun", "export_runs", "load_format"]
