"""A team's server: it receives runs from many machines, checks access keys, and serves the dashboard over them."""

from tachograph.server.team._access import ProxyTrust
from tachograph.server.team._audit_log import AuditEntry, AuditLog, add_local_entry, read_audit_log
from tachograph.server.team._backup import BackupError, BackupSummary, create_backup, restore_backup
from tachograph.server.team._blobs import BlobStore
from tachograph.server.team._copies import (
    CopyBusyError,
    CopyEntry,
    CopyError,
    CopyGoneError,
    DivergedError,
    InvalidBatchError,
    NotYourRunError,
    OutOfOrderError,
    RunCopies,
    RunCopy,
    StorageFullError,
    UnknownRunError,
    check_journal,
    project_folder,
)
from tachograph.server.team._failure_limiter import FailureLimiter
from tachograph.server.team._key_usage import KeyUsage, ProjectUsage, count_kept_bytes, count_project_usage
from tachograph.server.team._keys import AccessKey, KeyFileError, KeyRing, keys_path
from tachograph.server.team._server import TeamServer, TlsFiles, check_readiness, create_team_server, serve_team

__all__ = [
    "AccessKey",
    "AuditEntry",
    "AuditLog",
    "BackupError",
    "BackupSummary",
    "BlobStore",
    "CopyBusyError",
    "CopyEntry",
    "CopyError",
    "CopyGoneError",
    "DivergedError",
    "FailureLimiter",
    "InvalidBatchError",
    "KeyFileError",
    "KeyRing",
    "KeyUsage",
    "NotYourRunError",
    "OutOfOrderError",
    "ProjectUsage",
    "ProxyTrust",
    "RunCopies",
    "RunCopy",
    "StorageFullError",
    "TeamServer",
    "TlsFiles",
    "UnknownRunError",
    "add_local_entry",
    "check_journal",
    "check_readiness",
    "count_kept_bytes",
    "count_project_usage",
    "create_backup",
    "create_team_server",
    "keys_path",
    "project_folder",
    "read_audit_log",
    "restore_backup",
    "serve_team",
]
