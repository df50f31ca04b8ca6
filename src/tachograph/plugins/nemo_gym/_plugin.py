"""`NemoGymPlugin`: data, rewards and rollouts of GRPO from the servers of NeMo Gym.

TRL leaves out a completion whose rewards are all missing (NaN): it does not count in the mean of its group, and its
advantage is 0. A group without any reward thus adds nothing to the gradient. If there are further reward functions, TRL
would add up the others, as if the missing reward were 0; so `GymTrainerMixin` removes these as well.

TRL passes only the prompts to a function that generates completions. Prompts may occur twice, so `GymTrainerMixin`
hands over the rows of the batch.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tachograph._base.guard import warn
from tachograph._base.printable import safe
from tachograph.plugins._base import BasePlugin, PluginConfig, Slots, TrainingSetup
from tachograph.plugins.nemo_gym._client import GymClient, GymError, GymResponse, run_all
from tachograph.plugins.nemo_gym._data import (
    ROW_COLUMN,
    SERVER_COLUMN,
    GymDataError,
    GymRow,
    needs_rendering,
    prompt_ids,
    prompt_of,
    read_rows,
)
from tachograph.plugins.nemo_gym._options import NemoGymOptions
from tachograph.plugins.nemo_gym._rollouts import Rollout, parse_reward, parse_rollout, run_request, verify_request
from tachograph.plugins.nemo_gym._servers import GymServer, GymServers, RoutingError, find_servers

__all__ = ["GymTrainerMixin", "NemoGymPlugin"]

_MAX_PROBLEMS = 10
_PROBE_S = 5.0
_TRL_LOGGER = "trl.trainer.grpo_trainer"
_STALE_AGENTS = (
    "the weights of the agents' model server are not updated: set `trl: {use_vllm: true, vllm_mode: server}` to send "
    "them before each generation"
)
_MIN_TRL = (1, 16)
_OVERRIDDEN_METHODS = ("_generate_and_score_completions", "_calculate_rewards", "_tokenize_prompts")


class GymTrainerMixin:
    """Hands the rows of a batch to the plugin, and removes completions whose reward is missing."""

    gym_plugin: NemoGymPlugin

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.gym_plugin.begin_batch(inputs, is_training=self.model.training)  # type: ignore[attr-defined]
        return super()._generate_and_score_completions(inputs)  # type: ignore[misc]

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        ids = self.gym_plugin.render_prompts(self, prompts)
        return (ids, None, {}) if ids is not None else super()._tokenize_prompts(prompts)  # type: ignore[misc]

    def _calculate_rewards(self, *arguments: Any, **kwargs: Any) -> Any:
        rewards = super()._calculate_rewards(*arguments, **kwargs)  # type: ignore[misc]
        return self.gym_plugin.leave_out_missing(self, rewards)


class _Request(NamedTuple):
    """A request of a batch."""

    server: GymServer
    body: dict[str, Any]


class NemoGymPlugin(BasePlugin):
    """Rewards completions with the servers of NeMo Gym."""

    name = "nemo_gym"
    Options = NemoGymOptions
    slots = (Slots.DATASETS,)
    requires = ("trl", "datasets")
    extra = "train"
    needs = ("the servers of a running NeMo Gym",)

    options: NemoGymOptions

    def __init__(self) -> None:
        self._rows: list[GymRow] = []
        self._servers: GymServers | None = None
        self._used_servers: dict[str, GymServer] = {}
        self._model_name = ""
        self._batch: list[tuple[dict[str, Any], str | None]] = []
        self._prefix = ""
        self._failed_batches: Counter[str] = Counter()
        self._printed_problems: set[tuple[str, str]] = set()

    # Set-up ----------------------------------------------------------------------------------------------------------

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config turns it off."""
        return "" if self.options.nemo_gym_enabled else "nemo_gym_enabled is false"

    def claims(self, cfg: PluginConfig) -> Iterable[str]:
        """Return the data, and the rollouts if agents generate them."""
        return (Slots.DATASETS, Slots.ROLLOUTS) if self.options.nemo_gym_multi_turn else (Slots.DATASETS,)

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return where rewards come from."""
        options = self.options
        head = f"{options.nemo_gym_head_host}:{options.nemo_gym_head_port}"
        lines = [
            f"lets the agents of the NeMo Gym at {head} generate and reward completions (/run)"
            if options.nemo_gym_multi_turn
            else f"rewards completions with the servers of the NeMo Gym at {head} (/verify)"
        ]
        if self._rows:
            num_datasets = len(options.nemo_gym_datasets)
            lines.append(f"trains on {len(self._rows):,} rows of {num_datasets} dataset{'s' * (num_datasets != 1)}")
        if options.nemo_gym_config_paths:
            lines.append("nemo_gym_config_paths has no effect: start the servers with `ng_run`")
        if self._has_stale_agents(cfg):
            lines.append(_STALE_AGENTS)
        return lines

    def _has_stale_agents(self, cfg: PluginConfig) -> bool:
        """Return whether completions come from a model that is not the trained one, after the first step."""
        return self.options.nemo_gym_multi_turn and not (cfg.trl or {}).get("use_vllm")

    def load_datasets(self, cfg: PluginConfig, preprocess: bool = False) -> Any:
        """Return the rows of `nemo_gym_datasets`, as prompts."""
        from datasets import Dataset

        if cfg.rl != "grpo":
            raise self.error("it rewards the completions of GRPO: use `tacho train` with `rl: grpo`")
        options = self.options
        self._check_other_datasets(cfg)
        is_shuffled = cfg.shuffle is not False and cfg.shuffle_merged_datasets is not False
        seed = cfg.seed if cfg.seed is not None else 42
        try:
            rows = read_rows(options.nemo_gym_datasets, options.nemo_gym_dir, seed=seed, is_shuffled=is_shuffled)
        except GymDataError as error:
            raise self.error(str(error)) from None
        self._rows = rows
        num_eval = int(cfg.val_set_size if cfg.val_set_size >= 1 else len(rows) * cfg.val_set_size)
        if cfg.val_set_size and not 0 < num_eval < len(rows):
            raise self.error(f"val_set_size={cfg.val_set_size:g} leaves {num_eval} of {len(rows)} rows for evaluation")
        columns = [_columns_of(row) for row in rows]
        held_out = Dataset.from_list(columns[:num_eval]) if num_eval else None
        return Dataset.from_list(columns[num_eval:]), held_out

    def _check_other_datasets(self, cfg: PluginConfig) -> None:
        """Raise an error if the config names data that would not be used."""
        own_paths = {dataset.path for dataset in self.options.nemo_gym_datasets}
        for number, dataset in enumerate(cfg.datasets or []):
            if dataset.get("path") not in own_paths:
                raise self.error(
                    f"datasets[{number}].path={dataset.get('path')!r} would not be used, because nemo_gym_datasets "
                    "is: add it there, or remove it"
                )
        if cfg.test_datasets:
            raise self.error("test_datasets would not be used: set val_set_size, or remove it")

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Find the servers, the server of each row, and rows that the chat template cannot render."""
        _check_trl(self)
        options = self.options
        self._model_name = options.nemo_gym_model_name or cfg.base_model or "model"
        servers = self._connect()
        used_servers = self._check_rows(servers, setup)
        wait_end_s = time.monotonic() + options.nemo_gym_server_timeout
        for server in used_servers.values():
            while not self._client().is_listening(server.host, server.port, timeout_s=_PROBE_S):
                if time.monotonic() >= wait_end_s:
                    raise self.error(
                        f"the server {server} does not accept connections: wait until `ng_run` has started it, or set "
                        "nemo_gym_server_timeout to the seconds to wait"
                    )
                time.sleep(0.5)
        self._servers, self._used_servers = servers, used_servers
        self._rows = []

    def _connect(self) -> GymServers:
        options = self.options
        host, port = options.nemo_gym_head_host, options.nemo_gym_head_port
        try:
            return find_servers(self._client(), host, port, wait_s=options.nemo_gym_server_timeout)
        except GymError as error:
            raise self.error(
                f"the head server of NeMo Gym at {host}:{port} cannot be used: {error}. Start it with `ng_run` first, "
                "or correct nemo_gym_head_host and nemo_gym_head_port."
            ) from None

    def _check_rows(self, servers: GymServers, setup: TrainingSetup) -> dict[str, GymServer]:
        """Return the servers that rows need."""
        is_multi_turn = self.options.nemo_gym_multi_turn
        config = getattr(setup.model, "config", None)
        max_positions = getattr(config, "max_position_embeddings", None)
        template_options = getattr(setup.arguments, "chat_template_kwargs", None)
        used_servers: dict[str, GymServer] = {}
        problems: list[str] = []
        for row in self._rows:
            try:
                server = servers.route(row.values, row.server_name, multi_turn=is_multi_turn)
                used_servers[server.name] = server
                if not is_multi_turn:
                    prompt = prompt_of(row.values, is_multi_turn=False)
                    ids = prompt_ids(setup.tokenizer, prompt, options=template_options)
                    if isinstance(max_positions, int) and len(ids) >= max_positions:
                        raise ValueError(f"its {len(ids)} tokens do not fit the model's {max_positions} positions")
            except (RoutingError, ValueError) as error:
                problems.append(f"{row.location}: {error}")
                if len(problems) == _MAX_PROBLEMS:
                    break
        if problems:
            raise self.error("; ".join(problems))
        return used_servers

    def get_trainer_cls(self, cfg: PluginConfig) -> type | None:
        """Return the mixin that hands over rows."""
        return type("NemoGymMixin", (GymTrainerMixin,), {"gym_plugin": self})

    def reward_functions(self, cfg: PluginConfig) -> Mapping[str, Callable[..., Any]]:
        """Return the function that rewards completions."""
        if self.options.nemo_gym_multi_turn:
            return {"reward_env": self.reward_env}
        return {"reward_nemo_gym_verify": self.reward_nemo_gym_verify}

    def rollout_function(self, cfg: PluginConfig) -> Callable[..., Any] | None:
        """Return the function that lets agents generate completions."""
        return self.generate if self.options.nemo_gym_multi_turn else None

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Record the servers."""
        logging.getLogger(_TRL_LOGGER).addFilter(_is_not_about_missing_rewards)
        if self._has_stale_agents(cfg):
            warn("nemo_gym: %s", _STALE_AGENTS)
        self.report.changed("servers connected", [str(server) for server in self._used_servers.values()])

    def post_train_unload(self, cfg: PluginConfig) -> None:
        """Let TRL print its warnings again."""
        logging.getLogger(_TRL_LOGGER).removeFilter(_is_not_about_missing_rewards)

    # Training --------------------------------------------------------------------------------------------------------

    def begin_batch(self, inputs: Sequence[Mapping[str, Any]], *, is_training: bool) -> None:
        """Take the rows of the next batch, one for each completion."""
        self._batch = [(json.loads(row[ROW_COLUMN]), row.get(SERVER_COLUMN) or None) for row in inputs]
        self._prefix = "" if is_training else "eval/"

    def render_prompts(self, trainer: Any, prompts: Sequence[Any]) -> list[list[int]] | None:
        """Return the tokens of prompts that the trainer would render incompletely; None if it can render all."""
        if len(prompts) != len(self._batch):
            return None
        tokenizer, template = trainer.processing_class, getattr(trainer, "chat_template", None)
        parsed_prompts = [prompt_of(values, is_multi_turn=False) for values, _ in self._batch]
        if not any(needs_rendering(tokenizer, prompt, template) for prompt in parsed_prompts):
            return None
        options = getattr(trainer, "chat_template_kwargs", None)
        return [prompt_ids(tokenizer, prompt, template=template, options=options) for prompt in parsed_prompts]

    def reward_nemo_gym_verify(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return the rewards of completions, from the resources servers of their rows; None if one is missing."""
        requests = [
            _Request(self._route(values, server_name), verify_request(values, completion, self._model_name))
            for (values, server_name), completion in zip(self._batch, completions, strict=True)
        ]
        return self._send("/verify", requests, self.options.nemo_gym_verify_timeout, self._parse_verify)

    def _parse_verify(self, server: GymServer, response: GymResponse) -> float:
        reward = parse_reward(response.value)
        self.report.sample(f"{self._metric(server)}/verify_ms", response.duration_s * 1e3)
        self._add_reward(server, reward)
        return reward

    def reward_env(self, completions: Sequence[Any], env_reward: Sequence[float | None], **columns: Any) -> list[Any]:
        """Return the rewards that agents gave to their rollouts; None if one is missing."""
        return list(env_reward)

    def generate(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the rollouts of agents, one for each prompt; see `rollout_function`."""
        if len(prompts) != len(self._batch):
            raise self.error(f"the trainer asks for {len(prompts)} completions of a batch of {len(self._batch)} rows")
        args = trainer.args
        sampling: dict[str, Any] = {
            "temperature": args.temperature,
            "top_p": args.top_p,
            "max_output_tokens": args.max_completion_length,
            "model": self.options.nemo_gym_model_name,
        }
        sampling = {key: value for key, value in sampling.items() if value is not None}
        requests = [
            _Request(self._route(values, server_name), run_request(values, sampling))
            for values, server_name in self._batch
        ]
        parse = partial(self._parse_run, _vocab_size(trainer), args.max_completion_length)
        rollouts = self._send("/run", requests, self.options.nemo_gym_run_timeout, parse)
        # TRL needs at least one token. It is masked, so it has no influence.
        token = trainer.processing_class.eos_token_id or 0
        substitute = Rollout([token], [token], [0.0], [0], 0, None)
        complete_rollouts = [rollout or substitute for rollout in rollouts]
        columns = {
            name: [getattr(rollout, name) for rollout in complete_rollouts]
            for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "num_turns")
        }
        return {**columns, "env_reward": [rollout.reward for rollout in complete_rollouts]}

    def _parse_run(self, vocab_size: int, max_tokens: int | None, server: GymServer, response: GymResponse) -> Rollout:
        rollout = parse_rollout(response.value, vocab_size=vocab_size, max_turns=self.options.nemo_gym_max_turns)
        assert rollout.reward is not None  # noqa: S101 - parsed
        metric = self._metric(server)
        is_longer = max_tokens is not None and len(rollout.completion_ids) > max_tokens
        self.report.sample(f"{metric}/run_ms", response.duration_s * 1e3)
        self.report.add(f"{metric}/num_turns", rollout.num_turns)
        self.report.add(f"{metric}/truncated_share", float(is_longer))
        self._add_reward(server, rollout.reward)
        return rollout.truncate(max_tokens) if is_longer and max_tokens is not None else rollout

    def is_active(self) -> bool:
        """Return whether a completion was rewarded since the last log."""
        return self.report.had_effect()

    def leave_out_missing(self, trainer: Any, rewards: Any) -> Any:
        """Return the rewards of all processes without those of completions whose reward is missing here.

        Args:
            trainer: the trainer.
            rewards: a row for each completion, a column for each function.
        """
        own_functions = (self.reward_env, self.reward_nemo_gym_verify)
        column = next(number for number, function in enumerate(trainer.reward_funcs) if function in own_functions)
        is_missing = rewards[:, column].isnan()
        num_generations = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        groups = is_missing.view(-1, num_generations)
        self.report.count(f"{self._prefix}missing_rewards", int(is_missing.sum()))
        self.report.count(f"{self._prefix}groups_without_reward", int(groups.all(dim=1).sum()))
        if rewards.shape[1] > 1:
            rewards = rewards.masked_fill(is_missing.unsqueeze(1), float("nan"))
        return rewards

    # Requests --------------------------------------------------------------------------------------------------------

    def _send(
        self,
        path: str,
        requests: Sequence[_Request],
        timeout_s: float,
        parse: Callable[[GymServer, GymResponse], Any],
    ) -> list[Any]:
        """Send the requests of a batch and return their parsed responses; None for a request that failed.

        Raises:
            PluginError: if a server has failed in too many batches.
        """
        options = self.options
        client = self._client()
        num_waves = -(-len(requests) // options.nemo_gym_max_concurrency)
        deadline_s = time.monotonic() + (options.nemo_gym_batch_timeout or 2 * timeout_s * num_waves)
        results = run_all(
            [
                partial(
                    client.post,
                    request.server.host,
                    request.server.port,
                    path,
                    request.body,
                    timeout_s=timeout_s,
                    deadline_s=deadline_s,
                )
                for request in requests
            ],
            max_concurrency=options.nemo_gym_max_concurrency,
            deadline_s=deadline_s,
        )
        parsed_results: list[Any] = []
        problems: dict[GymServer, GymError | None] = {}
        for request, result in zip(requests, results, strict=True):
            server = request.server
            value = None
            try:
                self.report.count(f"{self._metric(server)}/retries", result.num_retries)
                if isinstance(result, GymError):
                    raise result
                value = parse(server, result)
                self.report.effect()
                problems[server] = None
            except GymError as error:
                problems.setdefault(server, error)
                self._count_failure(server, error)
            else:
                self._count_failure(server, None)
            parsed_results.append(value)
        self._stop_if_dead(problems, path)
        return parsed_results

    def _count_failure(self, server: GymServer, error: GymError | None) -> None:
        """Count a request; also one without failure, so that the count of failures is shown as 0."""
        metric = self._metric(server)
        self.report.count(f"{metric}/failures", error is not None)
        self.report.count(f"{metric}/timeouts", error is not None and error.is_timeout)
        if error is not None and (server.name, str(error)[:40]) not in self._printed_problems:
            self._printed_problems.add((server.name, str(error)[:40]))
            warn("nemo_gym: a reward of %s is missing: %s", server, safe(error))

    def _stop_if_dead(self, problems: Mapping[GymServer, GymError | None], path: str) -> None:
        """Raise an error if a server has rewarded nothing in several batches."""
        for server, error in problems.items():
            if error is None:
                self._failed_batches.pop(server.name, None)
                continue
            self._failed_batches[server.name] += 1
            num_batches = self._failed_batches[server.name]
            if num_batches >= self.options.nemo_gym_max_failed_batches:
                raise self.error(
                    f"the server {server} rewarded nothing in {num_batches} batches in a row; the last error of "
                    f"{path} is: {error}. Check the server and resume from the last checkpoint, or raise "
                    "nemo_gym_max_failed_batches."
                )

    def _add_reward(self, server: GymServer, reward: float) -> None:
        metric = self._metric(server)
        self.report.add(f"{metric}/reward_mean", reward)
        self.report.add(f"{metric}/nonzero_share", float(reward != 0))

    def _metric(self, server: GymServer) -> str:
        return self._prefix + safe(server.name, 60).replace("/", "_")

    def _route(self, values: Mapping[str, Any], server_name: str | None) -> GymServer:
        if self._servers is None:
            raise self.error("it was not set up: use `tacho train`, which checks the servers first")
        return self._servers.route(values, server_name, multi_turn=self.options.nemo_gym_multi_turn)

    def _client(self) -> GymClient:
        return GymClient(
            max_retries=self.options.nemo_gym_max_retries,
            max_response_bytes=int(self.options.nemo_gym_max_response_mb * 2**20),
        )


def _is_not_about_missing_rewards(record: logging.LogRecord) -> bool:
    """Return whether to print a line of TRL: it prints the whole row of each batch with a missing reward."""
    return "All reward functions returned None" not in str(record.msg)[:100]


def _check_trl(plugin: NemoGymPlugin) -> None:
    """Raise an error if TRL is older than the version whose treatment of missing rewards is known."""
    from trl import GRPOTrainer, __version__

    is_old = tuple(int(part) for part in re.findall(r"\d+", __version__)[:2]) < _MIN_TRL
    missing_methods = [method for method in _OVERRIDDEN_METHODS if not hasattr(GRPOTrainer, method)]
    if is_old or missing_methods:
        reason = f"; it has no {missing_methods[0]}" if missing_methods else ""
        raise plugin.error(f"TRL {__version__} is not supported{reason}: pip install 'trl==1.16.*'")


def _columns_of(row: GymRow) -> dict[str, Any]:
    messages = prompt_of(row.values, is_multi_turn=True).messages
    return {
        "prompt": [{"role": message["role"], "content": message["content"]} for message in messages],
        ROW_COLUMN: json.dumps(row.values),
        SERVER_COLUMN: row.server_name or "",
    }


def _vocab_size(trainer: Any) -> int:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return int(model.config.get_text_config().vocab_size)
