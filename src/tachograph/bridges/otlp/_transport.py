"""Sends one request over HTTP or gRPC, and tells three outcomes apart.

- Accepted, possibly in part: `send` returns how many items were rejected, and why.
- Refused because of its content: `RefusedError`. Repeating the request cannot help.
- Anything else: `DeliveryError`, with the delay that the receiver asks for. The driver of the sink repeats the request.

OTLP clients without a buffer give up on every status outside a short list. Here the journal is the buffer, so a
receiver that is broken (500) or not set up correctly (401, 404) loses nothing either: the records wait.
"""

from __future__ import annotations

import gzip
import ssl
from typing import Any, NamedTuple, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tachograph._base.http import DeliveryError, post
from tachograph._base.version import __version__
from tachograph.bridges.otlp.options import OtlpTarget

__all__ = ["Rejection", "RefusedError", "Transport", "connect"]

_REFUSED_STATUSES = {400, 413, 422}
_REFUSED_CODES = {grpc.StatusCode.INVALID_ARGUMENT}
_MAX_WAIT_S = 3_600.0
_CHANNEL_OPTIONS = (("grpc.primary_user_agent", f"tachograph/{__version__}"),)


class RefusedError(Exception):
    """The receiver refused a request because of its content."""


class Rejection(NamedTuple):
    """The items of an accepted request that the receiver dropped."""

    num_items: int
    reason: str


class _Signal(NamedTuple):
    response: Any
    stub: Any
    rejected_field: str


_SIGNALS = {
    "traces": _Signal(
        trace_service_pb2.ExportTraceServiceResponse, trace_service_pb2_grpc.TraceServiceStub, "rejected_spans"
    ),
    "logs": _Signal(
        logs_service_pb2.ExportLogsServiceResponse, logs_service_pb2_grpc.LogsServiceStub, "rejected_log_records"
    ),
    "metrics": _Signal(
        metrics_service_pb2.ExportMetricsServiceResponse,
        metrics_service_pb2_grpc.MetricsServiceStub,
        "rejected_data_points",
    ),
}


class Transport(Protocol):
    """A connection to the receiver of one signal."""

    def send(self, request: Any) -> Rejection:
        """Send a request within the timeout of the target.

        Raises:
            RefusedError: if it must not be repeated.
            DeliveryError: if it may be repeated.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


def connect(target: OtlpTarget) -> Transport:
    """Return a transport; nothing is sent yet.

    Raises:
        ValueError: if the certificates are invalid.
    """
    return _GrpcTransport(target) if target.protocol == "grpc" else _HttpTransport(target)


class _HttpTransport:
    def __init__(self, target: OtlpTarget) -> None:
        self._target = target
        self._headers = {**target.headers, "Content-Type": "application/x-protobuf"}
        if target.compression == "gzip":
            self._headers["Content-Encoding"] = "gzip"
        self._tls: ssl.SSLContext | None = None
        if target.certificate or target.client_certificate:
            self._tls = ssl.create_default_context(cafile=target.certificate)
            if target.client_certificate:
                self._tls.load_cert_chain(target.client_certificate, target.client_key)

    def send(self, request: Any) -> Rejection:
        target, body = self._target, request.SerializeToString()
        if target.compression == "gzip":
            body = gzip.compress(body)
        response = post(lambda: target.address, body, self._headers, timeout_s=target.timeout_s, tls=self._tls)
        if 200 <= response.status < 300:
            return _rejection(target.signal, response.body)
        reason = f"HTTP {response.status} for {target.signal}"
        detail = _status_message(response.body) or response.text.strip()
        if response.status in _REFUSED_STATUSES:
            raise RefusedError(f"{reason}: {detail[:200]}")
        if response.status == 404:
            detail = f"check the endpoint, or leave {target.signal} out of the option signals"
        raise DeliveryError(f"{reason}: {detail[:200]}", may_retry=True, wait_s=response.wait_s)

    def close(self) -> None:
        pass


class _GrpcTransport:
    def __init__(self, target: OtlpTarget) -> None:
        self._target = target
        if target.is_secure:
            credentials = grpc.ssl_channel_credentials(
                _content(target.certificate), _content(target.client_key), _content(target.client_certificate)
            )
            self._channel = grpc.secure_channel(target.address, credentials, _CHANNEL_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target.address, _CHANNEL_OPTIONS)
        self._stub = _SIGNALS[target.signal].stub(self._channel)
        self._compression = grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression

    def send(self, request: Any) -> Rejection:
        target = self._target
        try:
            response = self._stub.Export(
                request,
                timeout=target.timeout_s,
                metadata=tuple(target.headers.items()),
                compression=self._compression,
            )
        except grpc.RpcError as error:
            failure = _grpc_failure(error, target.signal)
        else:
            return _rejection(target.signal, response)
        raise failure  # without the original as its context, whose text quotes the address

    def close(self) -> None:
        self._channel.close()


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def _grpc_failure(error: Any, signal: str) -> Exception:
    code = error.code()
    reason = f"gRPC {code.name} for {signal}"
    detail = str(error.details() or "")[:200]
    if code is grpc.StatusCode.UNIMPLEMENTED:
        detail = f"check the endpoint, or leave {signal} out of the option signals"
    wait_s = _retry_delay_s(error)
    # Exhausted without a delay means that a quota or the size of a message can never fit.
    is_refused = code in _REFUSED_CODES or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait_s is None)
    if is_refused:
        return RefusedError(f"{reason}: {detail}")
    return DeliveryError(f"{reason}: {detail}", may_retry=True, wait_s=wait_s)


def _retry_delay_s(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                details = Status.FromString(value).details
            except DecodeError:
                continue
            for detail in details:
                info = RetryInfo()
                if detail.Unpack(info):
                    delay_s: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                    return min(max(delay_s, 0.0), _MAX_WAIT_S)
    return None


def _rejection(signal: str, response: Any) -> Rejection:
    """Return the part of a request that was not accepted, from a message or its bytes."""
    kind = _SIGNALS[signal]
    if isinstance(response, bytes):
        try:
            response = kind.response.FromString(response)
        except DecodeError:  # accepted, by a receiver that answers in another format
            return Rejection(0, "")
    partial = response.partial_success
    return Rejection(getattr(partial, kind.rejected_field), partial.error_message[:200] or "no reason given")


def _status_message(body: bytes) -> str:
    try:
        message = str(Status.FromString(body).message)
    except DecodeError:
        return ""
    return message if message.isprintable() else ""
