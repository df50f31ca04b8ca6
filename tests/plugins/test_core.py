"""The plugin system: loading, options, slots, composition, effects, state, undo, and what is recorded."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
import transformers
from pydantic import BaseModel, Field, model_validator
from transformers import TrainerCallback

import tachograph
from tachograph.exceptions import ConfigError, PluginError
from tachograph.integrations.transformers import TachographCallback
from tachograph.plugins import BasePlugin, LossResult, PluginSession, Slots, apply
from tests.conftest import lines_of
from tests.plugins.conftest import logged, rows, weights

HOOKS = [
    *("register", "get_input_args", "get_training_args_mixin", "load_datasets", "pre_model_load", "post_model_build"),
    *("pre_lora_load", "post_lora_load", "post_model_load", "get_training_args", "add_callbacks_pre_trainer"),
    *("get_collator_cls_and_kwargs", "get_trainer_cls", "post_trainer_create", "add_callbacks_post_trainer"),
    *("create_optimizer", "create_lr_scheduler", "post_train", "post_train_unload"),
]
"""Hooks of Axolotl's plugins, in the order in which `apply` and a training call them."""


class Nothing(TrainerCallback):
    """Does nothing, but is an effect."""


class NoopPlugin(BasePlugin):
    """Overrides every hook and does nothing but count."""

    def __init__(self):
        self.calls = []  # like a plugin written for Axolotl, without a call of the base class

    def add_callbacks_post_trainer(self, cfg, trainer):
        self.calls.append("add_callbacks_post_trainer")
        return [Nothing()]


def _recorded(name):
    def hook(self, *arguments, **named):
        self.calls.append(name)
        return getattr(BasePlugin, name)(self, *arguments, **named)

    return hook


for _name in HOOKS:
    if _name != "add_callbacks_post_trainer":
        setattr(NoopPlugin, _name, _recorded(_name))


class SpeedOptions(BaseModel):
    """Options of a plugin in a test."""

    speed: int = Field(1, ge=1)


class SpeedPlugin(BasePlugin):
    """Has options, and patches one module."""

    Options = SpeedOptions

    def post_model_load(self, cfg, model):
        head = model.lm_head
        self.patches.wrap(head, "forward", lambda original: lambda hidden: original(hidden) * self.options.speed)


def test_hooks_are_called_in_order(make_trainer):
    trainer = make_trainer()
    applied = apply(trainer, [NoopPlugin], {})
    trainer.train()
    (plugin,) = applied.session.plugins
    applied.session.post_train(trainer.model)
    applied.session.post_train(trainer.model)  # the second call does nothing
    applied.undo()
    called = [name for name in plugin.calls if name not in {"get_input_args", "get_training_args_mixin"}]
    expected = [name for name in HOOKS if name in set(called)]
    assert called == expected
    assert set(HOOKS) - set(called) == {"get_input_args", "get_training_args_mixin"}
    assert set(plugin.report.hook_s) >= {"post_model_load", "create_optimizer", "post_train"}


def test_no_op_plugin_changes_no_weight(make_trainer):
    plain = make_trainer()
    plain.train()
    trainer = make_trainer()
    apply(trainer, [NoopPlugin])
    trainer.train()
    for name, value in weights(plain.model).items():
        assert torch.equal(value, weights(trainer.model)[name])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["grokfest"], "unknown plugin 'grokfest'; did you mean 'grokfast'"),
        (["nosuch.module.Plugin"], "cannot import 'nosuch.module.Plugin': ModuleNotFoundError"),
        (["collections.OrderedDict"], "not a plugin: expected a subclass of tachograph.plugins.BasePlugin"),
        (["tests.plugins.test_core.NoSuchPlugin"], "AttributeError"),
        (["grokfast", "grokfast"], "listed twice"),
        ("grokfast", "expected a list"),
        ([{"plugin": "grokfast"}], "expected a name, a dotted path"),
        ([BasePlugin], "changed nothing"),
        (["axolotl.integrations.dense_mixer.DenseMixerPlugin"], "did you mean 'densemixer'"),
    ],
)
def test_plugin_that_cannot_be_used_is_an_error(make_trainer, entries, message):
    with pytest.raises(PluginError, match=message):
        apply(make_trainer(), entries)


def test_optional_plugin_that_fails_is_a_warning(make_trainer):
    trainer = make_trainer()
    entries = [{"name": "nosuch.Plugin", "optional": True}, {"name": __name__ + ".FailingPlugin", "optional": True}]
    with pytest.warns(UserWarning, match="is not used") as warnings:
        applied = apply(trainer, [*entries, SpeedPlugin])
    assert len(warnings) == 2
    assert [plugin.plugin_name() for plugin in applied.session.plugins] == ["speed"]


def test_options_of_unused_optional_plugin_are_ignored(make_trainer):
    entries = [{"name": "nosuch.FancyPlugin", "optional": True}, SpeedPlugin]
    with pytest.warns(UserWarning, match="is not used"):
        applied = apply(make_trainer(), entries, {"fancy_size": 3, "colour": "red", "speed": 2})
    assert applied.session.cfg == {"speed": 2}
    assert applied.session.warnings[1:] == [
        "colour has no effect: it is unknown without the plugin 'nosuch.FancyPlugin'"
    ]
    with pytest.warns(UserWarning, match="is not used"), pytest.raises(ConfigError, match="did you mean 'speed'"):
        apply(make_trainer(), entries, {"sped": 3})


class FailingPlugin(BasePlugin):
    """Fails while the model is loaded, after a patch."""

    def post_model_load(self, cfg, model):
        self.patches.replace(model, "forward", None)
        raise RuntimeError("no such model")


class Breaking(BasePlugin):
    """Raises an exception where `place` says, and has a part in everything before."""

    place = ""
    name = "breaking"
    Options = SpeedOptions

    def __init__(self):
        self.unloaded = 0
        self._fail("init")

    def _fail(self, place):
        if self.place == place:
            raise RuntimeError("broken")

    def register(self, cfg):
        self._fail("register")

    def get_input_args(self):
        self._fail("get_input_args")
        return self.Options

    def off_reason(self, cfg):
        self._fail("off_reason")
        return ""

    def claims(self, cfg):
        self._fail("claims")
        return ()

    def get_training_args_mixin(self):
        self._fail("get_training_args_mixin")
        return "nosuch.Mixin" if self.place == "mixin" else None

    def pre_model_load(self, cfg):
        self._fail("pre_model_load")

    def get_trainer_cls(self, cfg):
        self._fail("get_trainer_cls")
        return "StampMixin" if self.place == "trainer" else StampMixin

    def get_training_args(self, cfg):
        self._fail("get_training_args")
        return {"weight_decay": 0.125} if self.place == "argument" else {"adam_beta1": 0.5}

    def add_callbacks_pre_trainer(self, cfg, model):
        return [Nothing()]

    def post_trainer_create(self, cfg, trainer):
        self._fail("post_trainer_create")

    def add_callbacks_post_trainer(self, cfg, trainer):
        self._fail("add_callbacks_post_trainer")

    def compute_loss(self, trainer, model, inputs):
        raise AssertionError("a plugin that is not used computes no loss")

    def post_train_unload(self, cfg):
        self.unloaded += 1


PLACES = [
    *("init", "register", "get_input_args", "off_reason", "claims", "get_training_args_mixin", "mixin"),
    *("pre_model_load", "get_trainer_cls", "trainer", "get_training_args", "argument", "post_trainer_create"),
    "add_callbacks_post_trainer",
]


def test_optional_plugin_may_fail_anywhere_before_training(make_trainer):
    for place in PLACES:
        trainer = make_trainer(max_steps=1)
        callbacks = list(trainer.callback_handler.callbacks)
        kind = type(f"At_{place}", (Breaking,), {"place": place})
        with pytest.warns(UserWarning, match="optional plugin breaking is not used"):
            applied = apply(trainer, [{"name": kind, "optional": True}, ArgumentPlugin], {"speed": 3})
            applied.session.training_args_mixins()  # `tacho train` does, which builds the arguments
        assert [plugin.plugin_name() for plugin in applied.session.plugins] == ["argument"], place
        assert (trainer.callback_handler.callbacks, trainer.args.weight_decay) == (callbacks, 0.5), place
        assert trainer.args.adam_beta1 == 0.9 or place in ("get_training_args_mixin", "mixin"), place
        trainer.train()
        assert not logged(trainer, "stamp"), place
        applied.undo()
        assert [plugin.unloaded for plugin in applied.session._dropped_plugins] in ([], [1]), place


def test_optional_plugin_gives_way_in_conflicts(make_trainer):
    other_meaning = type("OtherMeaning", (StampPlugin,), {"Options": OtherOptions})
    conflicts = [
        ("optional plugin speed is not used: speed=0", [{"name": SpeedPlugin, "optional": True}], {"speed": 0}),
        ("'speed' has different meanings", [{"name": SpeedPlugin, "optional": True}, other_meaning], {}),
        ("both replace the loss", [{"name": LossPlugin, "optional": True}, SecondLossPlugin], {}),
        ("both replace compute_loss", [{"name": CarelessPlugin, "optional": True}, OtherTrainerPlugin], {}),
        ("'weight_decay' to 0.25 and 0.5", [{"name": ArgumentPlugin, "optional": True}, OtherArgumentPlugin], {}),
        ("changed nothing", [{"name": BasePlugin, "optional": True}, StampPlugin], {}),
    ]
    for message, entries, config in conflicts:
        with pytest.warns(UserWarning, match=message):
            session = apply(make_trainer(), entries, config).session
        assert len(session.plugins) == len(entries) - 1, message


class UnloadPlugin(BasePlugin):
    """Counts how often it is unloaded, and fails then."""

    name = "unload"
    num_unloads = 0

    def add_callbacks_post_trainer(self, cfg, trainer):
        return [Nothing()]

    def post_train_unload(self, cfg):
        type(self).num_unloads += 1
        raise RuntimeError("cannot unload")


class SecondUnloadPlugin(UnloadPlugin):
    """Another one."""

    name = "second"
    num_unloads = 0


def test_every_plugin_is_unloaded_whatever_fails(make_trainer):
    for index, broken in enumerate((None, FailingPlugin, FilterPlugin, "nosuch.Plugin"), start=1):
        plugins = [UnloadPlugin, SecondUnloadPlugin, SpeedPlugin, *([broken] if broken else [])]
        plugins += ["grokfast"] if broken is FilterPlugin else []
        trainer = make_trainer()
        with pytest.raises(PluginError, match="unload" if broken is None else "no such model|nosuch|combined"):
            apply(trainer, plugins, {"speed": 2}).undo()
        assert (UnloadPlugin.num_unloads, SecondUnloadPlugin.num_unloads) == (index, index), broken
        assert "forward" not in vars(trainer.model.lm_head)


class LatePlugin(BasePlugin):
    """Fails in a training step."""

    def add_callbacks_post_trainer(self, cfg, trainer):
        return [LateCallback()]


class LateCallback(TrainerCallback):
    """Raises an exception in the first step."""

    def on_step_begin(self, args, state, control, **named):
        raise FloatingPointError("too late")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_exception_in_training_names_the_plugin(make_trainer):
    trainer = make_trainer()
    apply(trainer, [LatePlugin])
    with pytest.raises(FloatingPointError, match="too late") as caught:
        trainer.train()
    assert caught.value.__notes__ == ["This was raised by the plugin late, in on_step_begin."]


def test_failure_restores_trainer(make_trainer):
    trainer = make_trainer()
    kind = type(trainer)
    message = "plugin failing: post_model_load failed: RuntimeError: no such model \\(.*test_core.py, line"
    with pytest.raises(PluginError, match=message):
        apply(trainer, [SpeedPlugin, FailingPlugin], {"speed": 2})
    assert type(trainer) is kind
    assert "forward" not in vars(trainer.model)
    assert "forward" not in vars(trainer.model.lm_head)


def test_names_of_axolotl_find_our_plugins(make_trainer):
    applied = apply(make_trainer(), ["axolotl.integrations.grokfast.GrokfastPlugin"])
    assert [plugin.plugin_name() for plugin in applied.session.plugins] == ["grokfast"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"spede": 3}, "unknown key 'spede'; did you mean 'speed'"),
        ({"speed": 0}, "speed=0: .*greater than or equal to 1"),
        ({"speed": "fast"}, "speed='fast'"),
    ],
)
def test_invalid_options_are_named(make_trainer, config, message):
    with pytest.raises(ConfigError, match=message):
        apply(make_trainer(), [SpeedPlugin], config)


class OtherOptions(BaseModel):
    """A field that another plugin has with another type."""

    speed: str = ""


class OtherPlugin(BasePlugin):
    """Conflicts with `SpeedPlugin` in its options."""

    Options = OtherOptions


def test_one_key_with_two_meanings_is_an_error():
    with pytest.raises(PluginError, match="'speed' has different meanings for plugin other and plugin speed"):
        PluginSession.open([SpeedPlugin, OtherPlugin], {})


class EvenOptions(BaseModel):
    """Options whose validator has a common name."""

    even: int = 2

    @model_validator(mode="after")
    def _check(self):
        if self.even % 2:
            raise ValueError(f"even={self.even} is odd")
        return self


class OddOptions(BaseModel):
    """Options with a validator of the same name, and one that reads the whole config."""

    odd: int = 1

    @model_validator(mode="before")
    @classmethod
    def _check(cls, values):
        if values.get("odd", 1) >= values.get("even", 2):
            raise ValueError("odd must be below even")
        return values


class EvenPlugin(SpeedPlugin):
    """Has a validator."""

    Options = EvenOptions
    name = "even"


class OddPlugin(BasePlugin):
    """Has another one."""

    Options = OddOptions
    name = "odd"


@pytest.mark.parametrize("entries", [[EvenPlugin, OddPlugin], [OddPlugin, EvenPlugin]])
def test_validators_of_all_plugins_run(entries):
    with pytest.raises(ConfigError, match="even=3 is odd"):
        PluginSession.open(entries, {"even": 3})
    with pytest.raises(ConfigError, match="odd must be below even"):
        PluginSession.open(entries, {"odd": 5})
    assert PluginSession.open(entries, {"even": 8, "odd": 5}).cfg == {"even": 8, "odd": 5}


class LossPlugin(BasePlugin):
    """Computes the usual loss itself, as a sum."""

    def compute_loss(self, trainer, model, inputs):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        total = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        return LossResult(total, (targets != -100).sum(), outputs)


class SecondLossPlugin(LossPlugin):
    """Another loss."""


class MeanLossPlugin(LossPlugin):
    """The same loss, as a mean of each batch."""

    def compute_loss(self, trainer, model, inputs):
        found = super().compute_loss(trainer, model, inputs)
        return LossResult(found.total / found.num_items, None, found.outputs)


class FilterPlugin(BasePlugin):
    """Claims a slot that grokfast has."""

    slots = (Slots.GRADIENT_FILTER,)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([LossPlugin, SecondLossPlugin], "plugins loss and second_loss cannot be combined: both replace the loss"),
        (
            ["grokfast", FilterPlugin],
            "plugins grokfast and filter cannot be combined: both replace the gradient filter",
        ),
    ],
)
def test_two_plugins_for_one_slot_are_an_error(make_trainer, entries, message):
    with pytest.raises(PluginError, match=message):
        apply(make_trainer(), entries)


@pytest.mark.parametrize("plugin", [LossPlugin, MeanLossPlugin])
def test_plugin_loss_is_scaled_for_accumulated_batches(make_trainer, plugin):
    # All rows have the same number of label tokens, so the mean of means is the mean.
    plain = make_trainer(gradient_accumulation_steps=4, max_steps=2, max_grad_norm=0)
    plain.train()
    trainer = make_trainer(gradient_accumulation_steps=4, max_steps=2, max_grad_norm=0)
    apply(trainer, [plugin])
    trainer.train()
    assert logged(trainer, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-5)
    for name, value in weights(plain.model).items():
        torch.testing.assert_close(weights(trainer.model)[name], value, rtol=1e-4, atol=1e-6)


def test_evaluation_uses_plugin_loss(make_trainer):
    trainer = make_trainer(per_device_eval_batch_size=2)
    expected = trainer.evaluate(rows())["eval_loss"]
    apply(trainer, [LossPlugin])
    assert trainer.evaluate(rows())["eval_loss"] == pytest.approx(expected, rel=1e-5)


class CarelessTrainer(transformers.Trainer):
    """Computes a mean and ignores the number of items, as many trainers do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = model(**inputs).loss
        return (loss, None) if return_outputs else loss


class CarelessPlugin(BasePlugin):
    """Brings such a trainer class."""

    def get_trainer_cls(self, cfg):
        return CarelessTrainer


class OtherTrainer(transformers.Trainer):
    """Also replaces the loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class OtherTrainerPlugin(BasePlugin):
    """Brings another trainer class."""

    def get_trainer_cls(self, cfg):
        return OtherTrainer


class StampMixin:
    """Extends a method that others extend, too."""

    def log(self, logs, *arguments, **named):
        logs["stamp"] = 1.0
        super().log(logs, *arguments, **named)


class StampPlugin(BasePlugin):
    """Brings a mixin."""

    def get_trainer_cls(self, cfg):
        return StampMixin


def test_trainer_class_that_ignores_items_is_scaled(make_trainer):
    plain = make_trainer(gradient_accumulation_steps=4, max_steps=2, max_grad_norm=0)
    plain.train()
    trainer = make_trainer(gradient_accumulation_steps=4, max_steps=2, max_grad_norm=0)
    apply(trainer, [CarelessPlugin, StampPlugin])
    trainer.train()
    assert isinstance(trainer, CarelessTrainer)
    assert logged(trainer, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-5)
    assert logged(trainer, "stamp")


def test_two_trainer_classes_with_one_method_are_an_error(make_trainer):
    with pytest.raises(PluginError, match=r"careless and other_trainer cannot be combined: both replace compute_loss"):
        apply(make_trainer(), [CarelessPlugin, OtherTrainerPlugin])


class ArgumentPlugin(BasePlugin):
    """Sets a training argument."""

    def get_training_args(self, cfg):
        return {"weight_decay": 0.5}


class OtherArgumentPlugin(ArgumentPlugin):
    """Sets it to another value."""

    def get_training_args(self, cfg):
        return {"weight_decay": 0.25}


class FactoryPlugin(BasePlugin):
    """Creates the optimizer and the scheduler."""

    def create_optimizer(self, cfg, trainer):
        return torch.optim.SGD(trainer.model.parameters(), lr=0.125)

    def create_lr_scheduler(self, cfg, trainer, optimizer, num_training_steps):
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)

    def get_training_args(self, cfg):
        return {"max_grad_norm": 0.25}


def test_training_arguments_of_two_plugins_must_agree(make_trainer):
    with pytest.raises(
        PluginError, match=r"argument and other_argument set the training argument 'weight_decay' to 0\.5"
    ):
        apply(make_trainer(), [ArgumentPlugin, OtherArgumentPlugin])


class OptimizerPlugin(BasePlugin):
    """Only creates the optimizer; nothing if the config says so."""

    Options = SpeedOptions
    name = "optimizer"
    slots = (Slots.OPTIMIZER,)

    def create_optimizer(self, cfg, trainer):
        return torch.optim.SGD(trainer.model.parameters(), lr=0.125) if cfg.speed == 1 else None


class SchedulerPlugin(BasePlugin):
    """Only creates the scheduler."""

    name = "scheduler"

    def create_lr_scheduler(self, cfg, trainer, optimizer, num_training_steps):
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)


class UploadPlugin(BasePlugin):
    """Does something after training."""

    name = "upload"

    def post_train(self, cfg, model):
        pass


class ExpertsPlugin(BasePlugin):
    """Claims a part that it replaces by means of its own."""

    slots = (Slots.EXPERTS,)


def test_plugin_that_acts_late_has_an_effect(make_trainer):
    trainer = make_trainer()
    applied = apply(trainer, [OptimizerPlugin, SchedulerPlugin, UploadPlugin, ExpertsPlugin])
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert [facts["contributes"] for facts in applied.session.facts()[:2]] == [["the optimizer"], ["the scheduler"]]


def test_plugin_that_creates_no_optimizer_is_an_error(make_trainer):
    trainer = make_trainer()
    apply(trainer, [OptimizerPlugin], {"speed": 2})
    with pytest.raises(PluginError, match="plugin optimizer: it changed nothing"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_plugin_creates_optimizer_and_scheduler(make_trainer):
    trainer = make_trainer()
    applied = apply(trainer, [FactoryPlugin])
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert logged(trainer, "learning_rate") == [0.125] * 4
    assert trainer.args.max_grad_norm == 0.25
    applied.undo()
    assert trainer.args.max_grad_norm == 1.0


@dataclasses.dataclass
class Stack:
    """A collator."""

    pad: int = 0

    def __call__(self, found):
        return {key: torch.stack([row[key] for row in found]) for key in found[0]}


class CollatorPlugin(BasePlugin):
    """Replaces the collator for training only."""

    def get_collator_cls_and_kwargs(self, cfg, is_eval=False):
        return (None, None) if is_eval else (Stack, {"pad": 3})


def test_plugin_replaces_collator(make_trainer):
    trainer = make_trainer()
    applied = apply(trainer, [CollatorPlugin])
    assert trainer.data_collator == Stack(3)
    trainer.train()
    applied.undo()
    assert trainer.data_collator != Stack(3)


def test_undo_restores_model_and_trainer(make_trainer):
    trainer = make_trainer()
    before = (type(trainer), trainer.data_collator, list(trainer.callback_handler.callbacks))
    ids = rows()[0]["input_ids"][None]
    expected = trainer.model(ids).logits
    own = Nothing()
    with apply(trainer, [SpeedPlugin, "grokfast"], {"speed": 3}):
        torch.testing.assert_close(trainer.model(ids).logits, expected * 3)
        trainer.add_callback(own)
    assert torch.equal(trainer.model(ids).logits, expected)
    kind, collator, callbacks = before
    assert (type(trainer), trainer.data_collator) == (kind, collator)
    assert trainer.callback_handler.callbacks == [*callbacks, own]


class ClassPatchPlugin(BasePlugin):
    """Patches a class of transformers, as plugins written for Axolotl do."""

    def pre_model_load(self, cfg):
        original = transformers.LlamaForCausalLM.forward

        def forward(self, *arguments, **named):
            return original(self, *arguments, **named)

        transformers.LlamaForCausalLM.forward = forward


def test_patched_class_is_reported_and_restored(make_trainer):
    original = transformers.LlamaForCausalLM.forward
    applied = apply(make_trainer(), [ClassPatchPlugin])
    (plugin,) = applied.session.plugins
    assert transformers.LlamaForCausalLM.forward is not original
    assert plugin.report.changes["classes and functions patched"]["names"] == ["LlamaForCausalLM.forward"]
    applied.undo()
    assert transformers.LlamaForCausalLM.forward is original


class ModelHookPlugin(BasePlugin):
    """Patches a library and the model in a hook that receives the model, without saying so."""

    def post_model_load(self, cfg, model):
        self.library = transformers.models.llama.modeling_llama
        self.library.LlamaRMSNorm = type("OtherNorm", (), {})
        self.library.new_function = lambda: None
        torch.nn.LayerNorm = type("OtherLayerNorm", (), {})
        model.lm_head.register_forward_hook(lambda *arguments: None)
        model.loss_function = lambda *arguments, **named: None


def test_model_hooks_that_patch_libraries_are_reported_and_undone(make_trainer):
    library = transformers.models.llama.modeling_llama
    before = (library.LlamaRMSNorm, torch.nn.LayerNorm)
    with apply(make_trainer(), [ModelHookPlugin]) as applied:
        (plugin,) = applied.session.plugins
        changes = {what: sorted(entry["names"]) for what, entry in plugin.report.changes.items()}
    path = "transformers.models.llama.modeling_llama"
    assert changes == {
        "modules patched": ["lm_head", "the model"],
        "classes and functions patched": sorted(["torch.nn.LayerNorm", f"{path}.LlamaRMSNorm", f"{path}.new_function"]),
    }
    assert (library.LlamaRMSNorm, torch.nn.LayerNorm) == before
    assert not hasattr(library, "new_function")


class FreezePlugin(BasePlugin):
    """Freezes a parameter without saying so."""

    def post_model_load(self, cfg, model):
        model.lm_head.weight.requires_grad_(False)


def test_unreported_changes_of_model_are_found(make_trainer):
    applied = apply(make_trainer(), [FreezePlugin, SpeedPlugin])
    freeze, speed = applied.session.plugins
    assert freeze.report.changes == {"parameters frozen": {"count": 1, "names": ["lm_head.weight"]}}
    assert speed.report.changes == {"modules patched": {"count": 1, "names": ["lm_head"]}}


def test_second_apply_is_an_error(make_trainer):
    trainer = make_trainer()
    apply(trainer, ["grokfast"])
    with pytest.raises(PluginError, match="has plugins already"):
        apply(trainer, [SpeedPlugin])


class CountPlugin(BasePlugin):
    """Keeps a state, and reports metrics."""

    def __init__(self):
        layers = {3: torch.ones(1), True: {"rank": {0: "x"}}}
        self.state = {"numbers": [1, 2.5, "x"], "tensors": {"a": torch.zeros(2)}, "layers": layers}
        self.loaded = None

    def add_callbacks_post_trainer(self, cfg, trainer):
        return [CountCallback(self)]

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.loaded = state


class CountCallback(TrainerCallback):
    """Adds one to the state in each step."""

    def __init__(self, plugin):
        self.plugin = plugin

    def on_step_end(self, args, state, control, **named):
        self.plugin.state["tensors"]["a"] += 1
        self.plugin.report.add("steps", torch.tensor(float(state.global_step)))
        self.plugin.report.set("last", state.global_step)


def test_state_is_saved_and_restored(make_trainer, tmp_path):
    trainer = make_trainer(save_strategy="steps", save_steps=2)
    apply(trainer, [CountPlugin])
    trainer.train()
    second = make_trainer()
    applied = apply(second, [CountPlugin])
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    (plugin,) = applied.session.plugins
    assert plugin.loaded["numbers"] == [1, 2.5, "x"]
    assert plugin.loaded["tensors"]["a"].tolist() == [2.0, 2.0]
    assert plugin.loaded["layers"] == {3: torch.ones(1), True: {"rank": {0: "x"}}}


def test_damaged_state_is_an_error(make_trainer, tmp_path):
    trainer = make_trainer(save_strategy="steps", save_steps=2)
    apply(trainer, [CountPlugin])
    trainer.train()
    path = tmp_path / "out" / "checkpoint-2" / "tachograph_plugins" / "count.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    second = make_trainer()
    apply(second, [CountPlugin])
    with pytest.raises(PluginError, match=r"plugin count: cannot read its state in .*checkpoint-2"):
        second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))


def test_plugins_are_recorded_in_the_run(make_trainer, logs):
    run = tachograph.init("plugins", log_dir=str(logs), console=False, system_interval_s=0)
    trainer = make_trainer(callbacks=[TachographCallback()], logging_steps=2)
    apply(trainer, [CountPlugin, SpeedPlugin], {"speed": 2})
    trainer.train()
    run.finish()
    records = lines_of(logs / "plugins")
    count, speed = [record for record in records if record.get("name") == "plugin"]
    assert (count["plugin"], speed["plugin"], speed["options"]) == ("count", "speed", {"speed": 2})
    assert speed["changes"] == {"modules patched": {"count": 1, "names": ["lm_head"]}}
    assert count["contributes"] == ["callback CountCallback"]
    summaries = {record["plugin"]: record for record in records if record.get("name") == "plugin_summary"}
    assert summaries["count"]["effects"] == 4
    assert summaries["count"]["hook_ms"]["on_step_end"] > 0
    steps = [record for record in records if record["event"] == "step" and "plugin/count/active" in record]
    assert [step["plugin/count/steps"] for step in steps] == [1.5, 3.5]
    assert [step["plugin/count/last"] for step in steps] == [2, 4]
    assert [step["plugin/count/active"] for step in steps] == [1, 1]
    assert (
        4 * sum(step["plugin/count/ms_per_step"] for step in steps) / 2 <= summaries["count"]["hook_ms"]["on_step_end"]
    )
    assert all(step["plugin/count/ms_per_step"] > 0 for step in steps)
    assert [step["plugin/speed/active"] for step in steps] == [1, 1]


def test_plugin_written_for_axolotl_moves_by_import(make_trainer):
    module = types.ModuleType("moved_plugin")
    sys.modules["moved_plugin"] = module
    exec(
        """
from pydantic import BaseModel
from tachograph.plugins import BasePlugin

class MovedArgs(BaseModel):
    moved_scale: float | None = None

class MovedPlugin(BasePlugin):
    def __init__(self):
        super().__init__()
        self.scale = None
    def register(self, cfg):
        if cfg.get("moved_scale") is None:
            cfg["moved_scale"] = 2.0
    def get_input_args(self):
        return "moved_plugin.MovedArgs"
    def post_model_load(self, cfg, model):
        self.scale = cfg.moved_scale
        assert cfg["moved_scale"] == self.scale and cfg.no_such_key is None
        model.lm_head.weight.data *= self.scale
    def get_training_args(self, cfg):
        return {"weight_decay": 0.0}
""",
        vars(module),
    )
    applied = apply(make_trainer(), ["moved_plugin.MovedPlugin"])
    assert applied.session.plugins[0].scale == 2.0
    assert applied.session.cfg.moved_scale == 2.0


class RolloutPlugin(BasePlugin):
    """Looks at completions."""

    def __init__(self):
        self.seen = []

    def on_rollouts_scored(self, cfg, trainer, prompts, completions, rewards, advantages):
        self.seen.append((prompts, completions, rewards, advantages))


@pytest.mark.slow
def test_scored_completions_reach_plugins(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from tests.integrations.test_trl import build

    trainer = build("grpo", tmp_path, max_steps=2)
    applied = apply(trainer, [RolloutPlugin])
    trainer.train()
    (plugin,) = applied.session.plugins
    prompts, completions, rewards, advantages = plugin.seen[0]
    assert len(prompts) == len(completions) == len(advantages) == 2
    assert {name: len(values) for name, values in rewards.items()} == {"length": 2, "every_other": 2}
    assert all(isinstance(completion, str) for completion in completions)
