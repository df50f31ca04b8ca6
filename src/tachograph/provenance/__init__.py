"""Provenance of a run: captured code and environment, comparing and rebuilding them, and parents of runs."""

from tachograph.provenance._blobs import blob_path, read_blob, remove_unused_blobs
from tachograph.provenance._capture import CaptureRequest, SourceFile, capture
from tachograph.provenance._environment import determinism, environment, torch_build
from tachograph.provenance._sources import loaded_files

__all__ = [
    "CaptureRequest",
    "SourceFile",
    "blob_path",
    "capture",
    "determinism",
    "environment",
    "loaded_files",
    "read_blob",
    "remove_unused_blobs",
    "torch_build",
]
