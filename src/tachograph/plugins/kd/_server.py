"""`TeacherServer`: the teacher's most likely tokens from a running vLLM or SGLang server."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

from tachograph._base.http import HttpConnection, is_local
from tachograph.plugins.kd._targets import Candidates, parse_logprobs

__all__ = ["TeacherServer", "TeacherServerError"]

_NUM_ATTEMPTS = 4
_RETRYABLE = {408, 425, 429, 500, 502, 503, 504}


class TeacherServerError(Exception):
    """The server did not answer, or not as expected.

    Attributes:
        status: the status of its answer; None if there was none.
    """

    status: int | None = None


class TeacherServer:
    """A server that scores sequences.

    Args:
        base_url: its address, with or without `/v1`.
        kind: `vllm` (`/v1/completions` with `prompt_logprobs`) or `sglang` (`/generate`).
        topk: the tokens per position.
        timeout_s: the limit of one request.
        model: the name of the model; by default the first one that the server lists.
        retry_s: the delay before the first repetition of a request that failed; it doubles.
    """

    def __init__(
        self,
        base_url: str,
        *,
        kind: str = "vllm",
        topk: int = 20,
        timeout_s: float = 120.0,
        model: str | None = None,
        retry_s: float = 1.0,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.kind = kind
        self.topk = topk
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self._model = model

    def connect(self) -> str:
        """Return the name of the model, which the server lists.

        Raises:
            TeacherServerError: if the server cannot be reached.
        """
        if self._model is None:
            models = self._request("/v1/models").get("data") or []
            if not models:
                raise TeacherServerError(f"{self.base_url}/v1/models lists no model")
            self._model = str(models[0]["id"])
        return self._model

    def check(self) -> None:
        """Send one request, also if the name of the model is known.

        Raises:
            TeacherServerError: if the server cannot be reached, or lists no model.
        """
        if self._model is None:
            self.connect()
            return
        try:
            self._request("/v1/models")
        except TeacherServerError as error:
            if error.status is None:  # else it is reachable, though it does not list its models
                raise

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[Candidates]]:
        """Return the candidates of each token of each sequence; the first token has none.

        Raises:
            TeacherServerError: if the server fails, or answers something else.
        """
        scores = self._score_sglang(sequences) if self.kind == "sglang" else self._score_vllm(sequences)
        for sequence, entries in zip(sequences, scores, strict=True):
            if len(entries) != len(sequence):
                raise TeacherServerError(
                    f"{self.base_url} scored {len(entries)} of {len(sequence)} tokens: "
                    f"check the maximum length of its model"
                )
        return scores

    def _score_vllm(self, sequences: Sequence[Sequence[int]]) -> list[list[Candidates]]:
        response = self._request(
            "/v1/completions",
            {
                "model": self.connect(),
                "prompt": [list(sequence) for sequence in sequences],
                "prompt_logprobs": self.topk,
                "max_tokens": 1,
                "temperature": 1.0,
            },
        )
        choices = sorted(response.get("choices") or [], key=lambda choice: int(choice.get("index", 0)))
        if len(choices) != len(sequences) or any(choice.get("prompt_logprobs") is None for choice in choices):
            raise TeacherServerError(f"{self.base_url} returned no prompt_logprobs: is it a vLLM server?")
        return [parse_logprobs(choice["prompt_logprobs"]) for choice in choices]

    def _score_sglang(self, sequences: Sequence[Sequence[int]]) -> list[list[Candidates]]:
        responses = self._request(
            "/generate",
            {
                "input_ids": [list(sequence) for sequence in sequences],
                "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": self.topk,
            },
        )
        scores = []
        for response in responses if isinstance(responses, list) else [responses]:
            entries = (response.get("meta_info") or {}).get("input_top_logprobs")
            if entries is None:
                raise TeacherServerError(f"{self.base_url} returned no input_top_logprobs: is it an SGLang server?")
            scores.append(parse_logprobs([_id_first(entry) for entry in entries]))
        if len(scores) != len(sequences):
            raise TeacherServerError(f"{self.base_url} scored {len(scores)} of {len(sequences)} sequences")
        return scores

    def _request(self, path: str, body: Any = None) -> Any:
        """Return the response to a request; retry errors that may pass."""
        url = urllib.parse.urlsplit(self.base_url + path)
        method, data = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
        problem = ""
        for attempt in range(_NUM_ATTEMPTS):
            if attempt:
                time.sleep(self.retry_s * 2 ** (attempt - 1))
            try:
                # A connection per request: the workers of a data loader may be forks of this process.
                is_secure, host = url.scheme == "https", url.hostname or ""
                port = url.port or (443 if is_secure else 80)
                connection = HttpConnection(
                    host, port, is_secure=is_secure, timeout_s=self.timeout_s, uses_proxy=not is_local(host)
                )
                headers = {"Content-Type": "application/json", "Connection": "close"}
                response = connection.request(method, url.path, data, headers)
                if response.status == http.client.OK:
                    return json.loads(response.body)
                problem = f"status {response.status}: {response.text[:500]}"
                if response.status not in _RETRYABLE:
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
        raise TeacherServerError(f"request to {url.geturl()} failed: {problem}")


def _id_first(entry: Any) -> Any:
    """Return SGLang's `[logprob, id, text]` as `[id, logprob]`."""
    return None if entry is None else [[candidate[1], candidate[0]] for candidate in entry]
