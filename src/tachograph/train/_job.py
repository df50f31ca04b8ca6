"""`TrainJob`: a training from its config to the saved model.

The order is: read the config and load the plugins; check everything that can be wrong, with the data tokenised and a
model without weights; then load the model and train. So a mistake costs seconds, not the time to load a model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tachograph._base.guard import warn
from tachograph.exceptions import ConfigError, PluginError
from tachograph.train._config import SHARED_KEYS, TrainConfig
from tachograph.train._known_keys import IGNORED_KEYS, RENAMED_KEYS, rejected_keys
from tachograph.train._problems import Problems, TooManyProblems
from tachograph.train._read import clean_values, read_values
from tachograph.train._without import remove_plugins

if TYPE_CHECKING:
    from tachograph.plugins import EqualWeightsProbe, PluginSession
    from tachograph.train._arguments import Steps
    from tachograph.train._data import PreparedData
    from tachograph.train._plan import TrainPlan

__all__ = ["CheckedJob", "TrainJob", "TrainResult", "load", "missing_packages"]


class CheckedJob(NamedTuple):
    """The parts of a training that a check has prepared.

    Attributes:
        tokenizer: the tokenizer, with the tokens that the config adds.
        num_added: the number of added tokens.
        model_config: the config of the model.
        meta_model: the model without weights, with its adapter.
        data: the data.
        steps: the number of steps.
        arguments: the training arguments.
        rewards: the reward functions of GRPO.
        checkpoint: the checkpoint to resume from, if any.
        plans: the changes that each plugin would make.
    """

    tokenizer: Any
    num_added: int
    model_config: Any
    meta_model: Any
    data: PreparedData
    steps: Steps
    arguments: Any
    rewards: list[Any]
    checkpoint: str | None
    plans: dict[str, list[str]]


class TrainResult(NamedTuple):
    """The result of a training.

    Attributes:
        output_dir: the folder of the model.
        run: the name of the run.
        run_dir: its folder; None if it was not recorded in this process.
        metrics: the results, such as `train_loss` and `eval_loss`.
        num_steps: the number of optimizer steps.
    """

    output_dir: str
    run: str
    run_dir: Path | None
    metrics: dict[str, float]
    num_steps: int


def load(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, without: Iterable[str] = ()) -> TrainJob:
    """Read a config, load its plugins and validate both.

    Args:
        path: the YAML file.
        overrides: changes such as ``learning_rate=1e-4`` or ``datasets.0.path=other.jsonl``.
        without: plugins of the config to leave out, with their options.

    Raises:
        ConfigError: if the config or an override is invalid.

    Example:
        >>> job = load("config.yaml", ["max_steps=10"])
        >>> job.run()
    """
    return TrainJob(Path(path), overrides, without=without)


class TrainJob:
    """A training.

    Attributes:
        path: the file of the config.
        values: the content of the file, with the overrides.
        config: the validated config; it also has the options of the plugins.
        session: the plugins.
    """

    def __init__(self, path: Path, overrides: Iterable[str] = (), *, without: Iterable[str] = ()) -> None:
        self.path = path
        self.values = read_values(path, overrides)
        _check_packages()
        if without:
            with _working_directory_on_path():
                self.values = remove_plugins(self.values, without, own_keys=set(TrainConfig.model_fields) - SHARED_KEYS)
        values, self._key_warnings = clean_values(self.values, str(path))
        from tachograph.plugins import ForeignKeys, PluginSession

        with _working_directory_on_path():
            self.session: PluginSession = PluginSession.open(
                values.get("plugins"),
                values,
                base=TrainConfig,
                origin=str(path),
                foreign_keys=ForeignKeys(rejected_keys(), IGNORED_KEYS, RENAMED_KEYS),
            )
        self.config = cast(TrainConfig, self.session.options)
        plugin_keys = set().union(
            *(type(plugin.options).model_fields for plugin in self.session.plugins if plugin.options)
        )
        self.config = self.config.model_copy(update=dict.fromkeys(SHARED_KEYS & plugin_keys))
        self._checked_job: CheckedJob | None = None

    @property
    def warnings(self) -> list[str]:
        """Keys of the config that have no effect, and optional plugins that are not used."""
        return [*self.session.warnings, *self._key_warnings]

    # Checking --------------------------------------------------------------------------------------------------------

    def check(self) -> CheckedJob:
        """Find all problems before the model is loaded, and return the prepared parts.

        Raises:
            ConfigError: naming up to ten problems, each with its file and line or its key.
        """
        if self._checked_job is None:
            problems = Problems(str(self.path))
            with _working_directory_on_path(), contextlib.suppress(TooManyProblems):
                self._checked_job = self._check(problems)
            problems.raise_if_any()
        assert self._checked_job is not None  # noqa: S101 - without problems, everything was prepared
        return self._checked_job

    def _check(self, problems: Problems) -> CheckedJob | None:
        from tachograph._init import check_config
        from tachograph.plugins import TrainingSetup
        from tachograph.train._arguments import build_arguments, count_steps
        from tachograph.train._model import check_packages, limits_of, load_model_config, load_tokenizer
        from tachograph.train._rewards import find_rewards
        from tachograph.train._run_config import recorded_config

        config = self.config
        check_packages(config, problems)
        _check_lark(config, problems)
        _check_output(config.output_dir, problems)
        checkpoint = _find_checkpoint(config, problems)
        with _adding_to(problems):
            check_config(recorded_config(self.values, config))
        plugins = list(self.session.plugins)
        rewards = []
        if config.rl == "grpo":
            with _adding_to(problems):
                rewards = find_rewards(config, self.session.reward_functions(), problems)
        tokenizer = model_config = meta_model = None
        num_added = 0
        with _adding_to(problems):
            tokenizer, num_added = load_tokenizer(config)
            model_config = load_model_config(config, tokenizer)
            if not problems:
                meta_model = self._build_meta_model(model_config, tokenizer, num_added)
        if tokenizer is None or model_config is None:
            return None
        data = self._prepare_data(tokenizer, limits_of(model_config, num_added), problems)
        if problems or data is None:
            return None
        steps = count_steps(config, len(data.train))
        if checkpoint is not None:
            _check_remaining_steps(checkpoint, steps.total, problems)
        min_rows = config.micro_batch_size * steps.num_devices
        if len(data.train) < min_rows and config.rl != "grpo":
            problems.add(
                f"the data has {len(data.train)} rows, but a batch needs {min_rows} (micro_batch_size "
                f"{config.micro_batch_size} on {steps.num_devices} devices): lower micro_batch_size or add data"
            )
            return None
        arguments = None
        with _adding_to(problems):
            arguments = build_arguments(config, self.session, steps, has_eval=data.eval is not None)
        if arguments is None:
            return None
        plans: dict[str, list[str]] = {}
        with _adding_to(problems):
            plans = self.session.plan(meta_model)
        for problem in self.session.check_setup(
            TrainingSetup(meta_model, tokenizer, data.train, steps.total, arguments)
        ):
            problems.add(problem)
        if plugins != self.session.plugins and not problems:
            return self._check(problems)  # an optional plugin was dropped, perhaps with its data or rewards
        return CheckedJob(
            tokenizer, num_added, model_config, meta_model, data, steps, arguments, rewards, checkpoint, plans
        )

    def _build_meta_model(self, model_config: Any, tokenizer: Any, num_added: int) -> Any:
        from tachograph.train._model import add_adapter, build_meta_model, freeze

        config = self.config
        model = build_meta_model(config, model_config, tokenizer, num_added)
        if config.sample_packing and not _takes_positions(model):
            raise ConfigError(
                f"sample_packing: {type(model).__name__} takes no position_ids, so it cannot keep packed samples apart"
            )
        if config.unfrozen_parameters:
            freeze(config, model)
        if config.adapter in ("lora", "qlora"):
            if config.lora_model_dir:
                if not Path(config.lora_model_dir, "adapter_config.json").is_file():
                    raise ConfigError(f"lora_model_dir={config.lora_model_dir!r}: it has no adapter_config.json")
                return model
            return add_adapter(config, model, self.session.lora_config_kwargs())
        if config.adapter is not None and config.adapter not in self.session.adapters():
            raise ConfigError(
                f"adapter={config.adapter!r}: expected lora or qlora, or an adapter of a plugin in `plugins`"
            )
        return model

    def _prepare_data(self, tokenizer: Any, limits: Any, problems: Problems) -> PreparedData | None:
        from tachograph.train._chat import resolve_template
        from tachograph.train._data import PreparedData, prepare_rows

        config = self.config
        if config.chat_template or config.chat_template_jinja:
            template = resolve_template(
                config.chat_template, config.chat_template_jinja, tokenizer, "chat_template", problems
            )
            if template is not None:
                tokenizer.chat_template = template  # it is saved with the tokenizer
        try:
            plugin_datasets = self.session.load_datasets()
        except PluginError as error:
            problems.add(str(error))
            return None
        if plugin_datasets is not None:
            train, held_out = _datasets_of(plugin_datasets)
            if train is None or not len(train):
                problems.add("the plugin that loads the datasets returned no rows")
                return None
            return PreparedData(train, held_out, len(train))
        if config.rl is None:
            return prepare_rows(config, tokenizer, limits, problems)
        from tachograph.train._preferences import prepare_preferences

        return prepare_preferences(config, tokenizer, limits, problems)

    def plan(self) -> TrainPlan:
        """Return the plan of the training, without loading the model or training.

        Raises:
            ConfigError: if something is wrong.
        """
        from tachograph.train._arguments import trainer_and_arguments
        from tachograph.train._plan import make_plan

        checked_job = self.check()
        trainer, _ = trainer_and_arguments(self.config)
        plan = make_plan(self.config, checked_job.data, checked_job.steps, checked_job.meta_model, trainer.__name__)
        plan.plugins = checked_job.plans
        plan.notes = [*self.warnings, *checked_job.data.notes]
        return plan

    def plan_plugins(self) -> tuple[dict[str, list[str]], str]:
        """Return the changes that each plugin would make, without reading the data.

        Returns:
            The plans by the name of the plugin, and the class of the model; empty if the model is not on this machine.

        Raises:
            ConfigError: if a plugin does not fit the model or the config.
        """
        from tachograph.train._model import is_local, load_model_config, load_tokenizer

        model = None
        source = self.config.base_model
        is_remote = source is not None and not is_local(source)
        with contextlib.suppress(*([ConfigError] if is_remote else [])):
            tokenizer, num_added = load_tokenizer(self.config)
            model_config = load_model_config(self.config, tokenizer)
            model = self._build_meta_model(model_config, tokenizer, num_added)
        return self.session.plan(model), type(model).__name__ if model is not None else ""

    # Training --------------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Check, train, evaluate and save.

        Raises:
            ConfigError: if something is wrong; nothing has been trained then.
        """
        from tachograph.integrations.transformers import TachographCallback
        from tachograph.train._run_config import recorded_config, run_name

        callback = None
        try:
            checked_job = self.check()
            callback = TachographCallback(
                _valid_name(run_name(self.config)), config=recorded_config(self.values, self.config)
            )
            with _working_directory_on_path():
                result = self._train(checked_job, callback)
            self.session.close()
        except BaseException as error:
            self._close_after(error)
            if callback is not None:
                callback.finish(error)
            raise
        callback.finish()
        return result

    def _close_after(self, error: BaseException) -> None:
        """Release the plugins after an error. A further error of theirs is logged, so that the first one is raised."""
        try:
            self.session.close()
        except PluginError as second_error:
            warn("after %s: %s", type(error).__name__, second_error, is_error=True)

    def close(self) -> None:
        """Release the plugins of a job that was only checked. As a context manager, the end of the block does."""
        self.session.close()

    def __enter__(self) -> TrainJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close_after(error)

    def probe(self, probe: EqualWeightsProbe) -> None:
        """Train a few steps for a comparison at equal weights. Nothing is recorded or saved.

        Raises:
            ConfigError: if something is wrong; nothing has been trained then.
        """
        try:
            checked_job = self.check()
            with _working_directory_on_path():
                trainer = self._build_trainer(checked_job, probe)
                probe.attach(trainer)
                trainer.train()
            self.session.close()
        except BaseException as error:
            self._close_after(error)
            raise

    def repeat(self, callback: Any, checkpoint: str | None) -> None:
        """Repeat a part of the training from a checkpoint, or from the beginning. Nothing is recorded or saved.

        Args:
            callback: a callback of the trainer that ends the training; its `attach` is called with the trainer.
            checkpoint: the folder of the checkpoint.

        Raises:
            ConfigError: if something is wrong; nothing has been trained then.
        """
        try:
            checked_job = self.check()
            with _working_directory_on_path(), tempfile.TemporaryDirectory() as folder:
                trainer = self._build_trainer(checked_job, callback)
                trainer.args.output_dir = folder
                trainer.args.save_strategy = trainer.args.eval_strategy = "no"
                trainer.args.load_best_model_at_end = False
                callback.attach(trainer)
                trainer.train(resume_from_checkpoint=checkpoint)
            self.session.close()
        except BaseException as error:
            self._close_after(error)
            raise

    def _build_trainer(self, checked_job: CheckedJob, callback: Any) -> Any:
        """Load the model and return its trainer, complete with the plugins."""
        from transformers import set_seed

        from tachograph.train._arguments import build_arguments
        from tachograph.train._trainer import build_trainer

        config, session = self.config, self.session
        set_seed(config.seed)
        model = self._load_model(checked_job)
        if session.dropped_arguments():
            has_eval = checked_job.data.eval is not None
            arguments = build_arguments(config, session, checked_job.steps, has_eval=has_eval)
            checked_job = checked_job._replace(arguments=arguments)
        trainer = build_trainer(config, session, checked_job, model, callback)
        session.attach(trainer)
        if not any(parameter.requires_grad for parameter in trainer.model.parameters()):
            raise ConfigError("no parameter of the model is trained: all are frozen")
        return trainer

    def _train(self, checked_job: CheckedJob, callback: Any) -> TrainResult:
        config, session = self.config, self.session
        trainer = self._build_trainer(checked_job, callback)
        outcome = trainer.train(resume_from_checkpoint=checked_job.checkpoint)
        metrics = {name: float(value) for name, value in outcome.metrics.items() if isinstance(value, (int, float))}
        if checked_job.data.eval is not None:
            metrics |= _final_evaluation(trainer)
        trainer.save_model(config.output_dir)
        trainer.save_state()
        self._write_card(trainer, callback, checked_job, metrics)
        if config.merge_lora:
            self._merge(trainer)
        session.post_train(trainer.accelerator.unwrap_model(trainer.model))
        run = callback.run
        return TrainResult(
            config.output_dir,
            run.name if run is not None else "",
            run.folder.path if run is not None and run.folder is not None else None,
            metrics,
            int(trainer.state.global_step),
        )

    def _load_model(self, checked_job: CheckedJob) -> Any:
        from tachograph.train._model import add_adapter, freeze, load_model

        config, session = self.config, self.session
        session.pre_model_load()
        model = load_model(config, checked_job.model_config, checked_job.tokenizer, checked_job.num_added)
        session.model_hook("post_model_build", model)
        if config.unfrozen_parameters:
            freeze(config, model)
        session.model_hook("pre_lora_load", model)
        if config.adapter in ("lora", "qlora"):
            model = add_adapter(config, model, session.lora_config_kwargs())
        elif config.adapter is not None:
            model = session.load_adapter(config.adapter, model)
        if config.adapter and config.gradient_checkpointing and hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
        session.model_hook("post_lora_load", model)
        session.model_hook("post_model_load", model)
        return model

    def _write_card(self, trainer: Any, callback: Any, checked_job: CheckedJob, metrics: dict[str, float]) -> None:
        from tachograph.train._card import model_card, write_card

        if not trainer.is_world_process_zero():
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        facts = {
            "run": callback.run.name if callback.run is not None else "not recorded",
            "steps": trainer.state.global_step,
            "samples": checked_job.data.num_samples,
            "tokens": checked_job.data.num_tokens if checked_job.data.num_tokens is not None else "not counted",
            "rows per step": checked_job.steps.rows_per_step,
            "devices": checked_job.steps.num_devices,
            "parameters": sum(value.numel() for value in model.parameters()),
            "trained parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
        }
        results = {name: value for name, value in metrics.items() if name != "epoch"}
        write_card(self.config.output_dir, model_card(self.config, facts, results, self.session.facts()))

    def _merge(self, trainer: Any) -> None:
        """Save the model with the adapter merged into it, on one rank."""
        if not trainer.is_world_process_zero():
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        target = str(Path(self.config.output_dir, "merged"))
        merged_model = model.merge_and_unload()
        merged_model.save_pretrained(target)
        trainer.processing_class.save_pretrained(target)
        self.session.lora_merged(self.config.output_dir, target)


def missing_packages() -> list[str]:
    """Return the packages that training needs and that are not installed."""
    names = ("torch", "transformers", "accelerate", "datasets")
    return [name for name in names if importlib.util.find_spec(name) is None]


def _check_packages() -> None:
    missing = missing_packages()
    if missing:
        raise ConfigError(f"training needs {', '.join(missing)}: pip install 'tachograph[train]'")


@contextlib.contextmanager
def _adding_to(problems: Problems) -> Iterator[None]:
    """Add an error to the problems."""
    try:
        yield
    except ConfigError as error:
        problems.add(str(error))


@contextlib.contextmanager
def _working_directory_on_path() -> Iterator[None]:
    """Let functions and plugins in the working directory be imported by their dotted paths."""
    folder = os.getcwd()
    is_new = folder not in sys.path
    if is_new:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if is_new and folder in sys.path:
            sys.path.remove(folder)


def _check_output(output_dir: str, problems: Problems) -> None:
    """Check that the folder can be written, by writing: permissions say nothing about read-only file systems."""
    path = Path(output_dir).expanduser()
    try:
        if path.exists() and not path.is_dir():
            problems.add(f"output_dir={output_dir!r} is a file: choose another folder")
            return
        missing_names = []
        while not path.exists():
            missing_names.append(path.name)
            path = path.parent
        with tempfile.TemporaryDirectory(dir=path) as folder:
            Path(folder, *reversed(missing_names)).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        problems.add(f"output_dir={output_dir!r} cannot be written: {reason}: choose another folder")


def _find_checkpoint(config: TrainConfig, problems: Problems) -> str | None:
    from transformers.trainer_utils import get_last_checkpoint

    checkpoint = config.resume_from_checkpoint
    if isinstance(checkpoint, str):
        if not Path(checkpoint, "trainer_state.json").is_file():
            reason = "it has no trainer_state.json" if Path(checkpoint).is_dir() else "no such folder"
            problems.add(
                f"resume_from_checkpoint={checkpoint!r}: {reason}; give a folder such as output_dir/checkpoint-100"
            )
        return checkpoint
    if not checkpoint and not config.auto_resume_from_checkpoints:
        return None
    last_checkpoint = get_last_checkpoint(config.output_dir) if Path(config.output_dir).is_dir() else None
    if last_checkpoint is None and checkpoint:
        problems.add(
            f"resume_from_checkpoint: true, but {config.output_dir!r} has no checkpoint: remove the key to start anew"
        )
    return last_checkpoint


def _check_lark(config: TrainConfig, problems: Problems) -> None:
    is_off = config.use_swanlab is False or config.swanlab_mode == "disabled"
    url = config.swanlab_lark_webhook_url or os.environ.get("SWANLAB_LARK_WEBHOOK_URL")
    if config.swanlab_lark_secret and not url and not is_off:
        problems.add("swanlab_lark_secret has no effect without swanlab_lark_webhook_url: add it")


def _check_remaining_steps(checkpoint: str, num_steps: int, problems: Problems) -> None:
    try:
        state = json.loads(Path(checkpoint, "trainer_state.json").read_text(encoding="utf-8"))
        last_step = int(state["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.add(f"resume_from_checkpoint: {checkpoint!r} has no valid trainer_state.json: {error}")
        return
    if last_step >= num_steps:
        problems.add(
            f"the checkpoint {checkpoint!r} is at step {last_step}, and the training has {num_steps} steps: raise "
            "max_steps or num_epochs, or remove resume_from_checkpoint and auto_resume_from_checkpoints"
        )


def _valid_name(name: str) -> str | None:
    from tachograph.integrations import name_from

    return name_from(name)


def _takes_positions(model: Any) -> bool:
    import inspect

    return "position_ids" in inspect.signature(model.forward).parameters


def _datasets_of(datasets: Any) -> tuple[Any, Any]:
    """Return the datasets that a plugin has loaded: an object with both, a mapping or a pair."""
    if isinstance(datasets, tuple):
        return datasets[0], datasets[1] if len(datasets) > 1 else None
    if isinstance(datasets, dict):
        return datasets.get("train_dataset", datasets.get("train")), datasets.get("eval_dataset", datasets.get("eval"))
    if hasattr(datasets, "train_dataset"):
        return datasets.train_dataset, getattr(datasets, "eval_dataset", None)
    return datasets, None


def _final_evaluation(trainer: Any) -> dict[str, float]:
    """Return the metrics of the final model; evaluate it unless the last step was just evaluated."""
    history = trainer.state.log_history
    best_is_loaded = trainer.args.load_best_model_at_end
    last = next((entry for entry in reversed(history) if "eval_loss" in entry), None)
    if last is None or last.get("step") != trainer.state.global_step or best_is_loaded:
        last = trainer.evaluate()
    return {
        name: float(value)
        for name, value in last.items()
        if name.startswith("eval_") and isinstance(value, (int, float))
    }
