"""`BasePlugin`: the hooks that a plugin may override, in the order in which a training calls them.

Hooks have the names and arguments of Axolotl's plugins, so a plugin written for it works after a change of its import.
New here: slots, `Options`, `off_reason`, `report`, `patches`, `compute_loss`, the state in checkpoints, `plan`,
`check_setup`, `reward_functions` and `rollout_function`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tachograph._base.patching import Patches
from tachograph.exceptions import PluginError, did_you_mean
from tachograph.plugins._report import PluginReport

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

__all__ = [
    "AdapterCapabilities",
    "BaseOptimizerFactory",
    "BasePlugin",
    "LossResult",
    "PluginConfig",
    "Slots",
    "TrainingSetup",
    "import_dotted",
    "plugin_name_of",
]


class PluginConfig(dict[str, Any]):
    """A config as hooks receive it: a dict whose keys are also attributes. A missing key is None."""

    def __init__(self, values: Mapping[str, Any] = {}) -> None:
        super().__init__({key: _wrap_nested(value) for key, value in values.items()})

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)  # pickle and copy look for special methods
        return self.get(key)

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = _wrap_nested(value)


def _wrap_nested(value: Any) -> Any:
    if isinstance(value, Mapping) and not isinstance(value, PluginConfig):
        return PluginConfig({str(key): entry for key, entry in value.items()})
    if isinstance(value, list):
        return [_wrap_nested(entry) for entry in value]
    return value


class Slots:
    """Parts of a training that only one plugin can have. A plugin may also use a word of its own."""

    LOSS = "loss"
    TRAINER = "trainer class"
    EXPERTS = "experts"
    GRADIENT_FILTER = "gradient filter"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    COLLATOR = "collator"
    DATASETS = "datasets"
    TRAINABLE_PARAMETERS = "trainable parameters"
    ADAPTER = "adapter"
    ROLLOUTS = "rollouts"


class TrainingSetup(NamedTuple):
    """A training as `tacho train` knows it before the model is loaded.

    Args:
        model: the model without weights (on the `meta` device), with its adapter.
        tokenizer: the tokenizer.
        train_dataset: the rows to train on.
        num_steps: the number of optimizer steps.
        arguments: the training arguments.
    """

    model: Any
    tokenizer: Any
    train_dataset: Any
    num_steps: int
    arguments: Any


class LossResult(NamedTuple):
    """The loss of one batch, before it is scaled for gradient accumulation and several devices.

    The trainer scales it, so that no plugin has to: a sum is divided by the number of items in all batches of the
    step, and a mean by the number of those batches.

    Args:
        total: the sum of the loss over the items (usually label tokens) of the batch, or a mean if `num_items` is None.
        num_items: the number of items in the batch, or None if `total` is already a mean.
        outputs: the outputs of the model, for evaluation.
    """

    total: torch.Tensor
    num_items: torch.Tensor | int | None = None
    outputs: Any = None


class AdapterCapabilities(NamedTuple):
    """An adapter that a plugin can load."""

    name: str
    lora_like: bool = False
    relora: bool = False


class BasePlugin:
    """A plugin. Override the hooks that you need; all are optional.

    Attributes:
        name: the name in configs, metrics and messages; by default from the class: `GrokfastPlugin` is `grokfast`.
        Options: a pydantic model with the config keys of the plugin.
        slots: the parts of the training that the plugin claims; see `Slots`. `claims` can depend on the config.
        requires: packages that it needs, by the name that is imported.
        extra: the extra of Tachograph that installs those packages.
        needs: other requirements in a few words, such as `a GPU`, for `tacho plugins list`.
        measured: measured costs and savings, for `tacho plugins show`.
        options: the validated `Options`; None until the config is validated.
        report: records the changes and effects of the plugin.
        patches: patches that are undone when the training ends.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type[BaseModel] | None] = None
    slots: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[tuple[str, ...]] = ()

    options: Any = None
    report: PluginReport
    patches: Patches

    def __new__(cls, *arguments: Any, **kwargs: Any) -> BasePlugin:
        """Create a plugin; here and not in `__init__`, which plugins override without calling ours."""
        plugin = super().__new__(cls)
        plugin.report = PluginReport(cls.plugin_name())
        plugin.patches = Patches()
        return plugin

    @classmethod
    def plugin_name(cls) -> str:
        """Return the name in configs, metrics and messages."""
        return cls.name or plugin_name_of(cls.__name__)

    # Set-up of the config --------------------------------------------------------------------------------------------

    def register(self, cfg: dict[str, Any]) -> None:
        """Check or change the config before it is validated."""

    def get_input_args(self) -> str | type[BaseModel] | None:
        """Return the pydantic model of the config keys, or its dotted path; `Options` by default."""
        return self.Options

    def on_config_validation_error(self, cfg: dict[str, Any]) -> None:
        """Called if the config is invalid."""

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return why the config turns the plugin off, such as `kd_trainer is false`; an empty text if it is on."""
        return ""

    def claims(self, cfg: PluginConfig) -> Iterable[str]:
        """Return the slots that the plugin claims with this config."""
        return self.slots

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the changes that the plugin would make, without making them; called by `tacho plugins check`.

        Args:
            cfg: the config.
            model: the model without weights (on the `meta` device), or None if it is not known.

        Raises:
            PluginError: if the plugin does not work with this model or config.
        """
        return []

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Find errors that config, data and model architecture show; called before the model is loaded.

        Raises:
            PluginError: if the plugin does not work with this training.
        """

    def get_training_args_mixin(self) -> str | type | None:
        """Return a dataclass with further training arguments, or its dotted path."""
        return None

    def get_training_args(self, cfg: PluginConfig) -> Mapping[str, Any] | None:
        """Return training arguments."""
        return None

    # Data and model --------------------------------------------------------------------------------------------------

    def load_datasets(self, cfg: PluginConfig, preprocess: bool = False) -> Any:
        """Return datasets that replace the datasets of the config."""
        return None

    def pre_model_load(self, cfg: PluginConfig) -> None:
        """Called before the model is loaded."""

    def post_model_build(self, cfg: PluginConfig, model: Any) -> None:
        """Called with the model, before adapters are added."""

    def pre_lora_load(self, cfg: PluginConfig, model: Any) -> None:
        """Called before adapters are added."""

    def get_adapter_capabilities(self) -> list[AdapterCapabilities]:
        """Return the adapters that `load_adapter` can load."""
        return []

    def load_adapter(self, model: Any, cfg: PluginConfig, inference: bool = False, config_only: bool = False) -> Any:
        """Return the model with an adapter, and the adapter's config; None for an adapter of another plugin."""
        return None

    def get_lora_config_kwargs(self, cfg: PluginConfig) -> Mapping[str, Any] | None:
        """Return arguments of the LoRA config."""
        return None

    def post_lora_load(self, cfg: PluginConfig, model: Any) -> None:
        """Called after adapters are added, or would have been: a full fine-tuning calls it, too."""

    def post_model_load(self, cfg: PluginConfig, model: Any) -> None:
        """Called when the model is complete."""

    # Trainer ---------------------------------------------------------------------------------------------------------

    def get_trainer_cls(self, cfg: PluginConfig) -> type | None:
        """Return a mixin, or a trainer class, to compose the trainer's class with."""
        return None

    def get_collator_cls_and_kwargs(
        self, cfg: PluginConfig, is_eval: bool = False
    ) -> tuple[type | None, Mapping[str, Any] | None] | None:
        """Return the class of the data collator, and its arguments."""
        return None

    def add_callbacks_pre_trainer(self, cfg: PluginConfig, model: Any) -> list[Any]:
        """Return callbacks for the trainer; called before it is created."""
        return []

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return callbacks for the trainer; called after it is created."""
        return []

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Called with the trainer."""

    def reward_functions(self, cfg: PluginConfig) -> Mapping[str, Callable[..., Any]]:
        """Return functions that reward the completions of GRPO, by name; called before the model is loaded.

        They are called as the functions of `trl.reward_funcs` are, and return None for a completion without a reward.
        The config may name one by `axolotl.integrations.….<name>`, to give it a place in the order of the functions;
        the others come last.
        """
        return {}

    def rollout_function(self, cfg: PluginConfig) -> Callable[..., Any] | None:
        """Return the function that generates the completions of GRPO instead of the trainer.

        It is called with prompts, one for each completion, and the trainer. It returns a dict of lists: `prompt_ids`,
        `completion_ids`, `logprobs`, `env_mask` (0 for tokens that the model did not generate), and columns for
        reward functions.
        """
        return None

    def create_optimizer(self, cfg: PluginConfig, trainer: Any) -> Any:
        """Return the optimizer."""
        return None

    def create_lr_scheduler(self, cfg: PluginConfig, trainer: Any, optimizer: Any, num_training_steps: int) -> Any:
        """Return the scheduler of the learning rate."""
        return None

    # Training --------------------------------------------------------------------------------------------------------

    def compute_loss(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> LossResult:
        """Return the loss of a batch. A plugin that overrides this claims `Slots.LOSS`."""
        raise NotImplementedError

    def is_active(self) -> bool:
        """Return whether the plugin had an effect since the last call; called when the trainer logs.

        A plugin that never calls `report.effect` counts as active as long as it is applied: its effect is a change
        that was checked before training.
        """
        return self.report.had_effect() or not self.report.num_effects

    def on_rollouts_scored(
        self,
        cfg: PluginConfig,
        trainer: Any,
        prompts: list[Any],
        completions: list[Any],
        rewards: Mapping[str, list[float]],
        advantages: list[float],
    ) -> None:
        """Called with the completions that a GRPO trainer has generated and scored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in checkpoints, so that a resumed training continues as if it had not stopped.

        Values are tensors, numbers, texts, or lists and dicts of them.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; called before the first step of a resumed training."""

    def post_train(self, cfg: PluginConfig, model: Any) -> None:
        """Called once, after training and saving."""

    def post_train_unload(self, cfg: PluginConfig) -> None:
        """Called at the end, also after an exception, when model and trainer are released."""

    def post_lora_merge(self, cfg: PluginConfig, adapter_path: str, output_path: str) -> None:
        """Called after an adapter has been merged into its model."""

    # Helpers ---------------------------------------------------------------------------------------------------------

    def error(self, problem: str) -> PluginError:
        """Return an error whose message starts with the name of the plugin."""
        return PluginError(f"plugin {self.plugin_name()}: {problem}")


def plugin_name_of(class_name: str) -> str:
    """Return the name that a plugin has by default: `GradientNoisePlugin` is `gradient_noise`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name.removesuffix("Plugin") or class_name).lower()


def import_dotted(path: str, purpose: str) -> Any:
    """Return the object at a dotted path, such as `package.module.Class` or `package.module:Class`.

    Raises:
        PluginError: if it cannot be imported.
    """
    module, _, attribute = path.replace(":", ".").rpartition(".")
    if not module:
        raise PluginError(f"{purpose}: {path!r} is not a dotted path such as package.module.Class")
    try:
        imported_module = import_module(module)
        if not hasattr(imported_module, attribute):
            hint = did_you_mean(attribute, [name for name in vars(imported_module) if not name.startswith("_")])
            raise AttributeError(f"module {module!r} has no attribute {attribute!r}{hint}")
        return getattr(imported_module, attribute)
    except Exception as error:  # foreign code may raise anything while it is imported
        raise PluginError(f"{purpose}: cannot import {path!r}: {type(error).__name__}: {error}") from error


class BaseOptimizerFactory:
    """Creates an optimizer from a model and training arguments."""

    def __call__(self, opt_model: Any, training_args: Any, **optimizer_kwargs: Any) -> Any:
        """Return the optimizer."""
        raise NotImplementedError

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the names of the parameters that weight decay applies to: all but biases and norms."""
        from torch import nn
        from transformers.trainer_pt_utils import get_parameter_names

        forbidden = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)"]
        return list(get_parameter_names(model, [nn.LayerNorm], forbidden))
