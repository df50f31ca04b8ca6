"""Sends runs to the server of a team, beside a trainer: addresses, stored keys, the connection and the sender."""

from tachograph.remote._address import ServerAddress, parse_server
from tachograph.remote._connection import Connection, ConnectionFailedError, ServerResponse
from tachograph.remote._credentials import (
    API_KEY_VARIABLE,
    Credential,
    check_token,
    credentials_path,
    current_token,
    find_credential,
    remove_token,
    store_token,
    stored_servers,
)
from tachograph.remote._driver import SenderThread, ServerSink
from tachograph.remote._sender import RunSender, SendState, lag_bytes, read_send_state
from tachograph.remote._wire import (
    BEFORE_BYTES,
    MAX_BATCH_BYTES,
    MAX_RANK,
    RUN_FILES,
    RUN_ID,
    TOKEN_FORMAT,
    BatchAnswer,
    Beat,
    Registered,
    Registration,
    SendLimits,
    hash_bytes,
    run_files,
)

__all__ = [
    "API_KEY_VARIABLE",
    "BEFORE_BYTES",
    "MAX_BATCH_BYTES",
    "MAX_RANK",
    "RUN_FILES",
    "RUN_ID",
    "TOKEN_FORMAT",
    "BatchAnswer",
    "Beat",
    "Connection",
    "ConnectionFailedError",
    "Credential",
    "Registered",
    "Registration",
    "RunSender",
    "SendLimits",
    "SendState",
    "SenderThread",
    "ServerAddress",
    "ServerResponse",
    "ServerSink",
    "check_token",
    "credentials_path",
    "current_token",
    "find_credential",
    "hash_bytes",
    "lag_bytes",
    "parse_server",
    "read_send_state",
    "remove_token",
    "run_files",
    "store_token",
    "stored_servers",
]
