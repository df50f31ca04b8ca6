"""Finds the changes of a hook: in a model, or in the classes and functions of the libraries that train it."""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any, NamedTuple

from tachograph._base.patching import Patches

__all__ = ["LibraryObserver", "ModelObserver", "Replacement"]

_LIBRARIES = ("transformers.models.", "transformers.loss.", "transformers.integrations.", "trl.trainer.")
_MODULES = ("transformers.trainer", "transformers.modeling_utils", "torch.nn", "torch.nn.functional")
_PACKAGES = (
    *("accelerate", "datasets", "huggingface_hub", "numpy", "peft"),
    *("tokenizers", "torch", "transformers", "trl"),
)
"""Packages whose parts the libraries import; parts of any other package were put there by a plugin."""
_MISSING = object()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class ModelObserver:
    """Remembers the structure of a model, and compares it later. Weights are not compared."""

    def __init__(self, model: Any) -> None:
        self._modules = _modules(model)
        self._parameters = _parameters(model)

    def changes(self, model: Any) -> dict[str, list[str]]:
        """Return the names of changed modules and parameters, by kind of change."""
        modules, parameters = _modules(model), _parameters(model)
        patched_modules = [
            name or "the model" for name, facts in modules.items() if self._modules.get(name, facts) != facts
        ]
        before = self._parameters
        changes = {
            "modules patched": patched_modules,
            "modules added": [name for name in modules if name not in self._modules],
            "modules removed": [name for name in self._modules if name not in modules],
            "parameters frozen": [
                name for name, (_, grad) in parameters.items() if not grad and _had_grad(before, name, True)
            ],
            "parameters unfrozen": [
                name for name, (_, grad) in parameters.items() if grad and _had_grad(before, name, False)
            ],
            "parameters resized": [
                name for name, (shape, _) in parameters.items() if name in before and before[name][0] != shape
            ],
        }
        return {what: names for what, names in changes.items() if names}


def _modules(model: Any) -> dict[str, tuple[Any, ...]]:
    return {name: _facts(module) for name, module in model.named_modules()}


def _facts(module: Any) -> tuple[Any, ...]:
    values = vars(module)
    methods = tuple(id(values.get(name)) for name in ("forward", "_loss_function"))
    return (id(module), type(module), *methods, *(tuple(values.get(name) or ()) for name in _HOOKS))


def _parameters(model: Any) -> dict[str, tuple[tuple[int, ...], bool]]:
    return {name: (tuple(value.shape), value.requires_grad) for name, value in model.named_parameters()}


def _had_grad(before: dict[str, tuple[tuple[int, ...], bool]], name: str, requires_grad: bool) -> bool:
    return name in before and before[name][1] is requires_grad


class LibraryObserver:
    """Remembers the classes, methods and functions of imported libraries, and finds the ones that a hook replaces.

    A plugin that patches a class does so for every model in the process. Such patches are listed, and undone with the
    others. Modules that the hook imports first cannot be compared; they are searched for parts of other packages.
    """

    def __init__(self) -> None:
        self._before = _library_parts()
        self._modules = {name for name in sys.modules if _is_observed(name)}

    def changes(self, patches: Patches) -> list[str]:
        """Return the names of replaced classes and functions, and restore them when the patches are undone."""
        replacements = self.replacements()
        for replacement in replacements:
            patches.on_undo(replacement.restore)
        return [replacement.label for replacement in replacements]

    def replacements(self) -> list[Replacement]:
        """Return the classes and functions that were replaced or added since."""
        replacements = []
        for (owner, name), value in _library_parts().items():
            before = self._before.get((owner, name), _MISSING)
            if value is before:
                continue
            is_comparable = _module_of(owner) in self._modules
            if before is _MISSING and not (_is_foreign(value) and (is_comparable or _is_renamed(name, value))):
                continue
            replacements.append(Replacement(owner, name, value, before if is_comparable else value))
        return replacements


class Replacement(NamedTuple):
    """A class or function of a library that was replaced, and its value before."""

    owner: Any
    name: str
    value: Any
    before: Any

    @property
    def label(self) -> str:
        """The module or class, and the name."""
        return f"{self.owner.__name__}.{self.name}"

    def restore(self) -> None:
        """Set the value before, unless another one was set since."""
        if vars(self.owner).get(self.name) is not self.value:
            return
        if self.before is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


def _is_observed(module: str) -> bool:
    return module in _MODULES or module.startswith(_LIBRARIES)


def _module_of(owner: Any) -> str:
    return owner.__name__ if inspect.ismodule(owner) else str(owner.__module__)


def _is_foreign(part: Any) -> bool:
    package = str(getattr(part, "__module__", "")).partition(".")[0]
    return bool(package) and package not in sys.stdlib_module_names and package not in _PACKAGES


def _is_renamed(name: str, part: Any) -> bool:
    """Return whether a function or a class has another name than its attribute: many classes are only imported."""
    return inspect.isfunction(part) or getattr(part, "__name__", name) != name


def _library_parts() -> dict[tuple[Any, str], Any]:
    """Return the functions and classes of the observed modules, and the methods of classes that they define."""
    parts: dict[tuple[Any, str], Any] = {}
    for module_name, module in list(sys.modules.items()):
        if module is None or not _is_observed(module_name):
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType):
                parts[module, name] = value
            elif isinstance(value, type):
                parts[module, name] = value
                if value.__module__ == module_name:
                    for key, entry in list(vars(value).items()):
                        if isinstance(entry, FunctionType):
                            parts[value, key] = entry
    return parts
