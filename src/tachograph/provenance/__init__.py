"""Provenance of a run: captured code and environment, comparing and rebuilding them, and parents of runs."""

from tachograph.provenance._blobs import blob_path, read_blob, remove_unused_blobs
from tachograph.provenance._capture import CaptureRequest, SourceFile, capture
from tachograph.provenance._compare import CodeChange, ComparedRun, Difference, RunComparison, compare_runs
from tachograph.provenance._compare_many import FileVersions, ManyComparison, Variation, compare_many, variations
from tachograph.provenance._config_keys import describes_training, is_repeat_key, is_seed
from tachograph.provenance._environment import determinism, environment, torch_build
from tachograph.provenance._lineage import RUN_FILE, find_parent, read_stamp, stamp_path, write_stamp
from tachograph.provenance._read import last_code, read_patch, read_sources, section_of
from tachograph.provenance._reproduce import Rebuilt, rebuild, reproduction_script
from tachograph.provenance._sources import loaded_files, script_file

__all__ = [
    "CaptureRequest",
    "CodeChange",
    "ComparedRun",
    "Difference",
    "FileVersions",
    "ManyComparison",
    "RUN_FILE",
    "Rebuilt",
    "RunComparison",
    "SourceFile",
    "Variation",
    "blob_path",
    "capture",
    "compare_many",
    "compare_runs",
    "describes_training",
    "determinism",
    "environment",
    "find_parent",
    "is_repeat_key",
    "is_seed",
    "last_code",
    "loaded_files",
    "read_blob",
    "read_patch",
    "read_sources",
    "read_stamp",
    "rebuild",
    "remove_unused_blobs",
    "reproduction_script",
    "script_file",
    "section_of",
    "stamp_path",
    "torch_build",
    "variations",
    "write_stamp",
]
