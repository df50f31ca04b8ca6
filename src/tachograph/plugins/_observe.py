"""Finds the changes of a hook: in a model, or in the classes and functions of the libraries that train it."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from tachograph._base.patching import Patches

__all__ = ["LibraryObserver", "ModelObserver"]

_LIBRARIES = ("transformers.models.", "transformers.loss.", "transformers.integrations.", "trl.trainer.")
_MODULES = ("transformers.trainer", "transformers.modeling_utils", "torch.nn.functional")


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
    return {name: (id(module), type(module), id(vars(module).get("forward"))) for name, module in model.named_modules()}


def _parameters(model: Any) -> dict[str, tuple[tuple[int, ...], bool]]:
    return {name: (tuple(value.shape), value.requires_grad) for name, value in model.named_parameters()}


def _had_grad(before: dict[str, tuple[tuple[int, ...], bool]], name: str, requires_grad: bool) -> bool:
    return name in before and before[name][1] is requires_grad


class LibraryObserver:
    """Remembers the methods and functions of imported libraries, and finds the ones that a hook replaces.

    A plugin that patches a class does so for every model in the process. Such patches are listed, and undone with the
    others. Modules that the hook imports first cannot be compared; they are searched for functions of other packages.
    """

    def __init__(self) -> None:
        self._before = _library_functions()
        self._modules = {name for name in sys.modules if _is_observed(name)}

    def changes(self, patches: Patches) -> list[str]:
        """Return the names of replaced functions, and restore them when the patches are undone."""
        replaced_names = []
        for (owner, name), value in _library_functions().items():
            label = f"{owner.__name__}.{name}"
            if (owner, name) in self._before:
                before = self._before[owner, name]
                if value is not before:
                    patches.on_undo(_restore(owner, name, value, before))
                    replaced_names.append(label)
            elif _module_of(owner) not in self._modules and _is_foreign(value):
                replaced_names.append(label)
        return replaced_names


def _is_observed(module: str) -> bool:
    return module in _MODULES or module.startswith(_LIBRARIES)


def _module_of(owner: Any) -> str:
    return owner.__name__ if inspect.ismodule(owner) else str(owner.__module__)


def _is_foreign(function: Any) -> bool:
    module = str(getattr(function, "__module__", ""))
    return bool(module) and module.partition(".")[0] not in {"transformers", "trl", "torch", "builtins", "functools"}


def _library_functions() -> dict[tuple[Any, str], Any]:
    functions: dict[tuple[Any, str], Any] = {}
    for module_name, module in list(sys.modules.items()):
        if module is None or not _is_observed(module_name):
            continue
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value):
                functions[module, name] = value
            elif inspect.isclass(value) and value.__module__ == module_name:
                methods = {key: entry for key, entry in vars(value).items() if inspect.isfunction(entry)}
                functions.update({(value, key): entry for key, entry in methods.items()})
    return functions


def _restore(owner: Any, name: str, replacement: Any, before: Any) -> Any:
    def restore() -> None:
        if vars(owner).get(name) is replacement:
            setattr(owner, name, before)

    return restore
