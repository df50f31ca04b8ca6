"""The bodies of requests and responses: a completion to verify, and the tokens of a conversation.

In the response of an agent, each item that the model generated has the tokens of the whole conversation before it
(`prompt_token_ids`) and its own (`generation_token_ids`, `generation_log_probs`). One sequence for training follows:

    first prompt │ generated │ tool result, headers │ generated │ …
                   mask 1      mask 0                 mask 1

The tokens between two generated parts are the part of the second prompt that is new. If the second prompt does not
begin with the sequence so far, the conversation was rewritten, and no single sequence represents it.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph._base.printable import safe
from tachograph.plugins.nemo_gym._client import GymError

__all__ = ["Rollout", "parse_reward", "parse_rollout", "run_request", "verify_request"]


class Rollout(NamedTuple):
    """The tokens and the reward of a conversation.

    Attributes:
        prompt_ids: the tokens before the first generated one.
        completion_ids: all later tokens.
        logprobs: their log-probabilities when they were generated; 0 for tokens that the model did not generate.
        env_mask: 1 for tokens that the model generated, else 0.
        num_turns: how often the model generated.
        reward: the reward; None if it is missing.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]
    num_turns: int
    reward: float | None

    def truncate(self, max_tokens: int) -> Rollout:
        """Return the rollout with at most this number of tokens after the prompt."""
        return self._replace(
            completion_ids=self.completion_ids[:max_tokens],
            logprobs=self.logprobs[:max_tokens],
            env_mask=self.env_mask[:max_tokens],
        )


def parse_reward(response: Mapping[str, Any]) -> float:
    """Return the reward in a response.

    Raises:
        GymError: if it is missing or no finite number.
    """
    reward = response.get("reward")
    if isinstance(reward, (int, float)) and not isinstance(reward, bool):
        try:
            if math.isfinite(reward):
                return float(reward)
        except OverflowError:
            pass
    raise GymError(f"the response has no reward: expected a number, got {reward!r:.40}")


def verify_request(values: Mapping[str, Any], completion: Any, model_name: str) -> dict[str, Any]:
    """Return the body for `/verify`: the row and the completion, as a response of OpenAI's Responses API.

    Args:
        values: the row.
        completion: the completion: a text, or a list of messages.
        model_name: the name of the model.
    """
    parameters = values["responses_create_params"]
    messages = [{"content": completion}] if isinstance(completion, str) else completion
    output: list[dict[str, Any]] = []
    for message in messages:
        text = message.get("content")
        calls = message.get("tool_calls") or []
        if text or not calls:
            part = {"type": "output_text", "text": text if isinstance(text, str) else "", "annotations": []}
            output.append(
                {
                    "id": f"msg_{uuid.uuid4().hex}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [part],
                }
            )
        output += [_function_call(call) for call in calls]
    response = {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model_name,
        "output": output,
        "parallel_tool_calls": bool(parameters.get("parallel_tool_calls", True)),
        "tool_choice": parameters.get("tool_choice") or "auto",
        "tools": parameters.get("tools") or [],
    }
    return {**values, "response": response}


def _function_call(call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else {}
    arguments = function.get("arguments")
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": f"call_{uuid.uuid4().hex}",
        "name": str(function.get("name")),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        "status": "completed",
    }


def run_request(values: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body for `/run`: the row, with parameters of sampling that it does not set itself."""
    own_parameters = {key: value for key, value in values["responses_create_params"].items() if value is not None}
    return {**values, "responses_create_params": {**sampling, **own_parameters}}


def parse_rollout(response: Mapping[str, Any], *, vocab_size: int, max_turns: int | None = None) -> Rollout:
    """Return the tokens and the reward in the response of an agent.

    Args:
        response: the response.
        vocab_size: the number of tokens that the trained model has.
        max_turns: the maximum number of turns.

    Raises:
        GymError: if something is missing, or does not fit together.
    """
    reward = parse_reward(response)
    agent_response = response.get("response")
    output = agent_response.get("output") if isinstance(agent_response, dict) else None
    if not isinstance(output, list):
        raise GymError("the response of the agent has no list 'response.output'")
    rollout = Rollout([], [], [], [], 0, reward)
    previous_turn = None
    for number, item in enumerate(output, 1):
        if not isinstance(item, dict) or item.get("generation_token_ids") is None:
            continue
        location = f"response.output, item {number}"
        start = _token_ids(item.get("prompt_token_ids"), f"{location}, prompt_token_ids", vocab_size)
        ids = _token_ids(item["generation_token_ids"], f"{location}, generation_token_ids", vocab_size)
        logprobs = _logprobs(item.get("generation_log_probs"), location, len(ids))
        if not ids or (start, ids) == previous_turn:  # a call and its message may both have the tokens of the turn
            continue
        previous_turn = (start, ids)
        rollout = _add_turn(rollout, start, ids, logprobs, location)
    if not rollout.num_turns:
        raise GymError(
            "the response of the agent has no tokens: set `return_token_id_information: true` of its model server"
        )
    if max_turns is not None and rollout.num_turns > max_turns:
        raise GymError(f"the rollout has {rollout.num_turns} turns, more than nemo_gym_max_turns={max_turns}")
    return rollout


def _add_turn(rollout: Rollout, start: list[int], ids: list[int], logprobs: list[float], location: str) -> Rollout:
    if not rollout.num_turns:
        if not start:
            raise GymError(f"{location}: prompt_token_ids is empty")
        return rollout._replace(
            prompt_ids=start, completion_ids=ids, logprobs=logprobs, env_mask=[1] * len(ids), num_turns=1
        )
    sequence = rollout.prompt_ids + rollout.completion_ids
    if start[: len(sequence)] != sequence:
        raise GymError(
            f"{location}: its prompt does not begin with the {len(sequence)} tokens before it. The chat template of "
            "the model server must not change earlier turns, such as by removing their reasoning"
        )
    between = start[len(sequence) :]
    return rollout._replace(
        completion_ids=rollout.completion_ids + between + ids,
        logprobs=rollout.logprobs + [0.0] * len(between) + logprobs,
        env_mask=rollout.env_mask + [0] * len(between) + [1] * len(ids),
        num_turns=rollout.num_turns + 1,
    )


def _token_ids(value: Any, location: str, vocab_size: int) -> list[int]:
    if not isinstance(value, list) or not all(type(entry) is int for entry in value):
        raise GymError(f"{location}: expected a list of token ids, got {value!r:.40}")
    if value and not (min(value) >= 0 and max(value) < vocab_size):
        raise GymError(
            f"{location}: the ids {safe(min(value), 20)} to {safe(max(value), 20)} do not fit the trained model, which "
            f"has {vocab_size} tokens: the model server must run the same model"
        )
    return value


def _logprobs(value: Any, location: str, num_tokens: int) -> list[float]:
    if not isinstance(value, list) or len(value) != num_tokens:
        size = len(value) if isinstance(value, list) else "no"
        raise GymError(f"{location}: {size} generation_log_probs for {num_tokens} tokens")
    if not all(type(entry) in (int, float) and math.isfinite(entry) for entry in value):
        raise GymError(f"{location}: generation_log_probs are not all finite numbers")
    return [float(entry) for entry in value]
