"""The captured code of runs: the format of its files, and reading it."""

from tachograph.reader.captured_code._files import (
    code_file_path,
    read_code_file,
    remove_unused_code_files,
    write_code_file,
)
from tachograph.reader.captured_code._git import (
    MAX_GIT_OUTPUT_BYTES,
    find_object_folder,
    find_repository_root,
    kill_running_git,
    run_git,
)
from tachograph.reader.captured_code._late_result import read_capture_result
from tachograph.reader.captured_code._record import (
    SourceFile,
    code_missing_reason,
    code_section,
    last_code,
    read_packages,
    read_patch,
    read_sources,
)

__all__ = [
    "MAX_GIT_OUTPUT_BYTES",
    "SourceFile",
    "code_file_path",
    "code_missing_reason",
    "code_section",
    "find_object_folder",
    "find_repository_root",
    "kill_running_git",
    "last_code",
    "read_capture_result",
    "read_code_file",
    "read_packages",
    "read_patch",
    "read_sources",
    "remove_unused_code_files",
    "run_git",
    "write_code_file",
]
