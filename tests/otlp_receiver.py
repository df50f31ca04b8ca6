"""Real OTLP receivers, one per protocol, which keep decoded requests and send the replies that a test configures."""

from __future__ import annotations

import gzip
import ssl
import threading
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.receiver import Receiver, Reply

REQUESTS = {
    "traces": trace_service_pb2.ExportTraceServiceRequest,
    "logs": logs_service_pb2.ExportLogsServiceRequest,
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
}
RESPONSES = {
    "traces": trace_service_pb2.ExportTraceServiceResponse,
    "logs": logs_service_pb2.ExportLogsServiceResponse,
    "metrics": metrics_service_pb2.ExportMetricsServiceResponse,
}
_SERVICES = {
    "traces": trace_service_pb2_grpc,
    "logs": logs_service_pb2_grpc,
    "metrics": metrics_service_pb2_grpc,
}
REJECTED = {"traces": "rejected_spans", "logs": "rejected_log_records", "metrics": "rejected_data_points"}


class Answer(NamedTuple):
    """A configured reply, for both protocols."""

    status: int = 200
    code: grpc.StatusCode = grpc.StatusCode.OK
    text: str = ""
    retry_after_s: int | None = None
    num_rejected: int = 0
    is_silent: bool = False


def value_of(value: Any) -> Any:
    """Return an attribute as a Python object."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


class _Otlp:
    """What both receivers have in common: the decoded requests, and answers per signal.

    With `tls`, a certificate and its key, clients must have the same certificate.
    """

    endpoint: str
    protocol: str

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, list[Answer]] = {signal: [Answer()] for signal in REQUESTS}
        self.released = threading.Event()

    def answer(self, *answers: Answer, signal: str | None = None) -> None:
        """Send these answers in order, and repeat the last one."""
        for name in [signal] if signal else REQUESTS:
            self.answers[name] = list(answers)

    def next_answer(self, signal: str) -> Answer:
        answers = self.answers[signal]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def options(self, **more: Any) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "protocol": self.protocol, **more}

    def signals(self) -> list[str]:
        return [signal for signal, _ in list(self.received)]

    def resources(self, signal: str = "traces") -> list[dict[str, Any]]:
        field = {"traces": "resource_spans", "logs": "resource_logs", "metrics": "resource_metrics"}[signal]
        return [
            attributes_of(group.resource.attributes)
            for found, request in list(self.received)
            if found == signal
            for group in getattr(request, field)
        ]

    def spans(self, name: str | None = None) -> list[Any]:
        return [
            span
            for signal, request in list(self.received)
            if signal == "traces"
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
            if name in (None, span.name)
        ]

    def logs(self, event_name: str | None = None) -> list[Any]:
        return [
            record
            for signal, request in list(self.received)
            if signal == "logs"
            for group in request.resource_logs
            for scope in group.scope_logs
            for record in scope.log_records
            if event_name in (None, record.event_name)
        ]

    def metrics(self, name: str) -> list[Any]:
        """Return the messages of a metric."""
        return [
            metric
            for signal, request in list(self.received)
            if signal == "metrics"
            for group in request.resource_metrics
            for scope in group.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]

    def points(self, name: str) -> list[Any]:
        return [point for metric in self.metrics(name) for point in metric.gauge.data_points]


class HttpOtlp(_Otlp):
    """OTLP/HTTP with protobuf."""

    protocol = "http/protobuf"

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__()
        outer = self

        class Server(Receiver):
            def reply_to(self, request: Any) -> Reply:
                signal = request.path.rpartition("/")[2]
                headers = {name.lower(): value for name, value in request.headers.items()}
                assert headers["content-type"] == "application/x-protobuf"
                is_zipped = headers.get("content-encoding") == "gzip"
                body = gzip.decompress(request.body) if is_zipped else request.body
                answer = outer.next_answer(signal)
                outer.headers.append(headers)
                if answer.status == 200 and not answer.is_silent:
                    outer.received.append((signal, REQUESTS[signal].FromString(body)))
                response = RESPONSES[signal]()
                if answer.num_rejected:
                    setattr(response.partial_success, REJECTED[signal], answer.num_rejected)
                    response.partial_success.error_message = answer.text
                content = response if answer.status == 200 else Status(message=answer.text)
                more = {} if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
                return Reply(answer.status, content.SerializeToString(), more, is_silent=answer.is_silent)

        self.server = Server()
        self.endpoint = self.server.address
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            context.load_verify_locations(tls[0])
            context.verify_mode = ssl.CERT_REQUIRED
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.endpoint = self.endpoint.replace("http:", "https:")

    def close(self) -> None:
        self.server.close()


class GrpcOtlp(_Otlp):
    """OTLP/gRPC."""

    protocol = "grpc"

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__()
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        for signal, services in _SERVICES.items():
            name = services.__name__.rpartition(".")[2].removesuffix("_pb2_grpc").title().replace("_", "")
            base, register = getattr(services, f"{name}Servicer"), getattr(services, f"add_{name}Servicer_to_server")
            servicer = type(signal, (base,), {"Export": self._method(signal)})()
            register(servicer, self.server)
        if tls is None:
            self.endpoint = f"http://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        else:
            certificate, key = (path.read_bytes() for path in tls)
            credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
            self.endpoint = f"https://127.0.0.1:{self.server.add_secure_port('127.0.0.1:0', credentials)}"
        self.server.start()

    def _method(self, signal: str) -> Any:
        def export(_servicer: Any, request: Any, context: Any) -> Any:
            answer = self.next_answer(signal)
            self.headers.append(dict(context.invocation_metadata()))
            if answer.is_silent:
                self.released.wait()
                context.abort(grpc.StatusCode.CANCELLED, "")
            if answer.code is not grpc.StatusCode.OK:
                if answer.retry_after_s is not None:
                    detail = AnyMessage()
                    detail.Pack(RetryInfo(retry_delay=Duration(seconds=answer.retry_after_s)))
                    status = Status(code=answer.code.value[0], message=answer.text, details=[detail])
                    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
                context.abort(answer.code, answer.text)
            self.received.append((signal, request))
            response = RESPONSES[signal]()
            if answer.num_rejected:
                setattr(response.partial_success, REJECTED[signal], answer.num_rejected)
                response.partial_success.error_message = answer.text
            return response

        return export

    def close(self) -> None:
        self.released.set()
        self.server.stop(None).wait()
