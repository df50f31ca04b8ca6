"""Requests to the servers of NeMo Gym: bounded in time, size and number.

A request that cannot connect, or gets a status of 5xx, is repeated with a growing delay. A time-out is not repeated:
the server may still be working on the first request. All requests of a batch share one deadline.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tachograph._base.http import HttpConnection, HttpResponse, is_local
from tachograph._base.printable import safe
from tachograph._base.threads import TelemetryThread

__all__ = ["GymClient", "GymError", "GymResponse", "run_all"]

_MAX_TEXT_CHARS = 300
_MAX_DELAY_S = 10.0
Result = TypeVar("Result")


class GymError(Exception):
    """A server did not respond, or not as expected. Its text may be printed.

    Attributes:
        is_timeout: whether the time was over.
        may_retry: whether the same request may succeed later.
        wait_s: the delay that the server asks for, if any.
    """

    def __init__(
        self, problem: str, *, is_timeout: bool = False, may_retry: bool = False, wait_s: float | None = None
    ) -> None:
        super().__init__(problem)
        self.is_timeout = is_timeout
        self.may_retry = may_retry
        self.wait_s = wait_s
        self.num_retries = 0


class GymResponse(NamedTuple):
    """The body of a response, the time until it was complete, and how often the request was repeated."""

    value: Any
    duration_s: float
    num_retries: int


class GymClient:
    """Sends requests; may be used in several threads.

    Args:
        max_retries: how often a request is repeated.
        max_response_bytes: the maximum size of a response.
        retry_s: the delay before the first repetition; it doubles.
    """

    def __init__(self, *, max_retries: int = 3, max_response_bytes: int = 16 << 20, retry_s: float = 0.2) -> None:
        self._max_retries = max_retries
        self._max_response_bytes = max_response_bytes
        self._retry_s = retry_s

    def post(self, host: str, port: int, path: str, body: Any, *, timeout_s: float, deadline_s: float) -> GymResponse:
        """Send an object and return the object in the response.

        Args:
            host: the server.
            port: its port.
            path: such as `/verify`.
            body: the object.
            timeout_s: limit of one attempt.
            deadline_s: limit of all attempts, in seconds of `time.monotonic`.

        Raises:
            GymError: if there is no valid response.
        """
        data = json.dumps(body).encode()
        for attempt in range(self._max_retries + 1):
            start_s = time.monotonic()
            try:
                response = self._exchange("POST", host, port, path, data, min(timeout_s, deadline_s - start_s))
                return GymResponse(_parse_object(response.text), time.monotonic() - start_s, attempt)
            except GymError as error:
                error.num_retries = attempt
                delay_s = min(max(self._retry_s * 2**attempt, error.wait_s or 0.0), _MAX_DELAY_S)
                if not error.may_retry or attempt == self._max_retries or time.monotonic() + delay_s >= deadline_s:
                    raise
                time.sleep(delay_s)
        raise AssertionError("unreachable")

    def get(self, host: str, port: int, path: str, *, timeout_s: float) -> str:
        """Return the body of a response, after one attempt.

        Raises:
            GymError: if there is no response, or one without success.
        """
        return self._exchange("GET", host, port, path, None, timeout_s).text

    def is_listening(self, host: str, port: int, *, timeout_s: float) -> bool:
        """Return whether a server accepts connections, whatever it responds."""
        try:
            self._exchange("GET", host, port, "/", None, timeout_s)
        except GymError as error:
            return not error.may_retry or error.wait_s is not None
        return True

    def _exchange(
        self, method: str, host: str, port: int, path: str, data: bytes | None, timeout_s: float
    ) -> HttpResponse:
        if timeout_s <= 0:
            raise GymError("no time was left for the request", is_timeout=True)
        end_s = time.monotonic() + timeout_s
        # A connection per request: a process that forks, such as a data loader, would share one that stays open.
        connection = HttpConnection(host, port, is_secure=False, timeout_s=timeout_s, uses_proxy=not is_local(host))
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        try:
            response = connection.exchange(method, path, data, headers, lambda reply: self._read(reply, end_s))
        except TimeoutError:
            raise GymError(f"no response within {timeout_s:.3g} s", is_timeout=True) from None
        except OSError as error:
            raise GymError(f"cannot connect: {error.strerror or type(error).__name__}", may_retry=True) from None
        except (http.client.HTTPException, ValueError) as error:
            raise GymError(f"invalid response: {safe(error) or type(error).__name__}") from None
        finally:
            connection.close()
        status = response.status
        if 300 <= status < 400:
            raise GymError(f"status {status}: redirects are not followed")
        if status != http.client.OK:
            # A status without `Retry-After` still says that the server is there.
            wait_s = response.wait_s or 0.0
            text = safe(response.text.strip(), _MAX_TEXT_CHARS)
            raise GymError(f"status {status}{': ' if text else ''}{text}", may_retry=status >= 500, wait_s=wait_s)
        return response

    def _read(self, response: http.client.HTTPResponse, end_s: float) -> bytes:
        chunks: list[bytes] = []
        num_bytes = 0
        while chunk := response.read1(1 << 16):
            num_bytes += len(chunk)
            if num_bytes > self._max_response_bytes:
                raise http.client.HTTPException(f"it is longer than {self._max_response_bytes / 2**20:g} MiB")
            if time.monotonic() > end_s:
                raise TimeoutError
            chunks.append(chunk)
        if response.length:
            raise http.client.HTTPException("it is incomplete")
        return b"".join(chunks)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GymError(f"the response is not valid JSON: {safe(text, 80)!r} ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise GymError(f"expected a JSON object, got {safe(repr(value), 80)}")
    return value


class _Job(NamedTuple, Generic[Result]):
    number: int
    function: Callable[[], Result]


def run_all(
    functions: Sequence[Callable[[], Result]], *, max_concurrency: int, deadline_s: float
) -> list[Result | GymError]:
    """Call functions in several threads and return their results, or errors, in the same order.

    The threads are daemons, and the result of a call that has not ended at the deadline is a time-out: a server that
    never responds delays neither the training nor the end of the process.

    Args:
        functions: the functions.
        max_concurrency: the number of threads.
        deadline_s: in seconds of `time.monotonic`.
    """
    jobs: queue.SimpleQueue[_Job[Result]] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[int, Result | GymError | BaseException]] = queue.SimpleQueue()
    for number, function in enumerate(functions):
        jobs.put(_Job(number, function))
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                return
            try:
                results.put((job.number, job.function()))
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                results.put((job.number, error))

    for _ in range(min(max_concurrency, len(functions))):
        TelemetryThread(work, name="tachograph-gym").start()
    ordered_results: list[Result | GymError] = [
        GymError("the time for the batch was over", is_timeout=True) for _ in functions
    ]
    try:
        for _ in functions:
            number, result = results.get(timeout=max(deadline_s - time.monotonic(), 0.001))
            if isinstance(result, BaseException) and not isinstance(result, GymError):
                raise result
            ordered_results[number] = result
    except queue.Empty:
        pass
    finally:
        is_over.set()
    return ordered_results
