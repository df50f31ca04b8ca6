"""Observes where a script gets its config from.

That is `argparse`, `simple_parsing`, click, absl, fire, tyro, Hydra or OmegaConf.

A namespace counts as the config if it was parsed from the arguments of the program, and a config of OmegaConf if the
script loaded or merged it. If there are several, they are merged, and later values win. A script that uses none of them
often has its config in a variable: `config = {…}`, or an instance of a dataclass of its own. A script that executes a
configurator, such as nanoGPT, has it in the global variables that it assigns before.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard
from tachograph.integrations.zero_code._calls import CallObserver, is_in
from tachograph.integrations.zero_code._script_values import ScriptValues

if TYPE_CHECKING:
    import ast

__all__ = ["ConfigHooks", "config_of_script"]

_VARIABLES = ("config", "cfg", "conf", "args", "hparams", "hyperparameters", "hps", "hp", "params", "settings")
"""Variables of a script that usually have its config, in lower case."""
_CONFIG_WORDS = frozenset(
    {
        *("config", "configuration", "cfg", "conf", "args", "arguments", "flags", "options", "opts", "settings"),
        *("params", "parameters", "hparams", "hyperparams", "hyperparameters", "hyper", "hps"),
    }
)
"""Words in the name of a class whose instances are configs."""
_CONFIG_FIELDS = frozenset(
    {
        *("lr", "learning_rate", "batch_size", "weight_decay", "dropout", "seed", "momentum", "optimizer"),
        *("epochs", "num_epochs", "n_epochs", "max_epochs", "steps", "num_steps", "max_steps", "max_iters"),
    }
)
"""Fields of configs. A class with two of them is one, whatever its name."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MAX_FIELDS = 500
_MAX_DEPTH = 10
_MAX_SOURCE_BYTES = 1 << 20

_OTHERS = ("accelerate.commands", "deepspeed.launcher", "hydra", "omegaconf", "torch.distributed")
"""Packages that parse arguments or merge configs for purposes of their own."""


class ConfigHooks:
    """Hooks on the modules with which scripts read their config.

    Args:
        values: records the config.
    """

    def __init__(self, values: ScriptValues) -> None:
        self._values = values
        self._calls = CallObserver("the config of the script", _is_other)

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Return the hooks to call when a module has been imported, by its name."""
        return {
            "absl.flags._flagvalues": self._absl_imported,
            "argparse": self._parser_imported,
            "click.core": self._click_imported,
            "fire.core": self._fire_imported,
            "simple_parsing.parsing": self._parser_imported,
            "hydra.core.utils": self._hydra_imported,
            "omegaconf.omegaconf": self._omegaconf_imported,
            "tyro._cli": self._tyro_imported,
        }

    def _parser_imported(self, module: ModuleType) -> None:
        def parse(parser: Any, args: Any = None, *_: Any, **__: Any) -> Callable[[Any], None] | None:
            return self._add_namespace if _are_of_program(args) else None

        self._calls.wrap(module.ArgumentParser, "parse_args", parse)
        self._calls.wrap(module.ArgumentParser, "parse_known_args", parse)

    def _add_namespace(self, result: Any) -> None:
        namespace = result[0] if isinstance(result, tuple) else result  # `parse_known_args` also returns the rest
        self._values.add_config({name: value for name, value in vars(namespace).items() if not callable(value)})

    def _absl_imported(self, module: ModuleType) -> None:
        def parse(flags: Any, *_: Any, **__: Any) -> Callable[[Any], None]:
            def add(result: Any) -> None:
                own_flags = flags.get_key_flags_for_module(sys.argv[0])  # not the ones of absl and other libraries
                self._values.add_config({flag.name: flag.value for flag in own_flags})

            return add

        self._calls.wrap(module.FlagValues, "__call__", parse)

    def _click_imported(self, module: ModuleType) -> None:
        """Read the parameters of the command before click calls the function of the script with them."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def invoke(command: Any, context: Any) -> Any:
                with guard("recording the config of the script"):
                    callback = getattr(command, "callback", None)
                    module_name = getattr(callback, "__module__", "")
                    if module_name == "__main__":  # not a program that uses click, such as a launcher
                        self._values.add_config(dict(context.params))
                return original(command, context)

            return invoke

        self._calls.patches.wrap(module.Command, "invoke", make)

    def _fire_imported(self, module: ModuleType) -> None:
        """Read the arguments that fire has parsed for a function of the script, before it calls the function."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def make_parser(function: Any, *args: Any, **kwargs: Any) -> Any:
                parse = original(function, *args, **kwargs)
                if getattr(function, "__module__", "") != "__main__":
                    return parse

                def parse_arguments(arguments: Any) -> Any:
                    result = parse(arguments)
                    with guard("recording the config of the script"):
                        positional, named = result[0]
                        self._add_call(function, positional, named)
                    return result

                return parse_arguments

            return make_parser

        self._calls.patches.wrap(module, "_MakeParseFn", make)

    def _tyro_imported(self, module: ModuleType) -> None:
        """Read the config that tyro returns, or the arguments with which it calls a function of the script."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def cli(f: Any, *args: Any, **kwargs: Any) -> Any:
                if not _are_of_program(kwargs.get("args")):
                    return original(f, *args, **kwargs)
                if isinstance(f, FunctionType):
                    return original(self._observe_call(f), *args, **kwargs)
                result = original(f, *args, **kwargs)
                with guard("recording the config of the script"):
                    has_rest = isinstance(result, tuple) and kwargs.get("return_unknown_args")
                    self._values.add_config(_fields_of(result[0] if has_rest else result))
                return result

            return cli

        self._calls.patches.wrap(module, "cli", make)

    def _observe_call(self, function: FunctionType) -> Callable[..., Any]:
        """Return the function; its arguments become the config when it is called."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with guard("recording the config of the script"):
                self._add_call(function, args, kwargs)
            return function(*args, **kwargs)

        return call

    def _add_call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        from inspect import signature  # not at startup: it is slow to import

        bound = signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        self._values.add_config({name: value for name, value in bound.arguments.items() if not callable(value)})

    def _hydra_imported(self, module: ModuleType) -> None:
        """Read the composed config before Hydra calls the function of the script with it."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def run_job(task_function: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
                with guard("recording the config of the script"):
                    self._add_container(config)
                return original(task_function, config, *args, **kwargs)

            return run_job

        self._calls.patches.wrap(module, "run_job", make)

    def _omegaconf_imported(self, module: ModuleType) -> None:
        for name in ("load", "merge", "from_cli", "unsafe_merge"):
            self._calls.wrap(module.OmegaConf, name, lambda *_, **__: self._add_container)

    def _add_container(self, config: Any) -> None:
        from omegaconf import DictConfig, OmegaConf

        if not isinstance(config, DictConfig):
            return
        script_config = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
        try:
            plain = OmegaConf.to_container(script_config, resolve=True)
        except Exception:  # noqa: BLE001 - a reference to a value that is not known yet
            plain = OmegaConf.to_container(script_config, resolve=False)
        self._values.add_config(plain)


def _are_of_program(args: Any) -> bool:
    """Return whether a parser is given the arguments of the program, which it uses by default."""
    return args is None or list(args) == sys.argv[1:]


def _is_other(frame: FrameType) -> bool:
    return is_in(frame.f_globals.get("__name__", ""), _OTHERS)


def config_of_script() -> dict[str, Any]:
    """Return the config in a variable of the script; empty without one.

    That is a dict, a namespace, a dataclass, or a class whose attributes are plain values. A global variable counts
    first, then the variables of the functions of the script on the stack, such as `main`. If none has a usual name,
    instances of config classes of the program count under any name, then the variables that a configurator may set.
    """
    script = vars(sys.modules.get("__main__", sys))
    scopes = (script, *_locals_of(script))
    for find in (_config_among, _config_instances):
        for variables in scopes:
            if plain := find(variables):
                return plain
    return _configured_variables(script)


def _locals_of(script: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variables of the functions of a script on the stack, from the outermost one."""
    scopes = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is script and frame.f_code.co_name != "<module>":
            scopes.append(dict(frame.f_locals))
        frame = frame.f_back
    return scopes[::-1]


def _config_among(variables: dict[str, Any]) -> dict[str, Any]:
    candidates = [(name.lower(), name) for name in variables if name.lower() in _VARIABLES]
    # An instance has the values; its class may only have the defaults.
    candidates.sort(key=lambda each: (isinstance(variables[each[1]], type), _VARIABLES.index(each[0]), each[1]))
    for _, name in candidates:
        value = variables[name]
        if isinstance(value, ModuleType) or (callable(value) and not isinstance(value, type)):
            continue
        fields = _fields_of_class(value) if isinstance(value, type) else _dict_of(value)
        if not isinstance(value, (type, dict)) and not _is_container(type(value)):
            fields = {**_fields_of_class(type(value)), **fields}
        plain = {key: field for key, field in fields.items() if isinstance(key, str) and _is_plain(field)}
        if plain and len(plain) <= _MAX_FIELDS and 2 * len(plain) > len(fields):
            return plain
    return {}


def _config_instances(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the instances of config classes that the program defines; of later ones, if they repeat."""
    instances = {id(value): value for value in list(variables.values()) if _is_config_class(type(value))}
    fields = [{**_fields_of_class(type(value)), **_fields_of(value)} for value in instances.values()]
    inner_ids = {id(field) for each in fields for field in each.values()}
    plain: dict[str, Any] = {}
    for key, each in zip(instances, fields, strict=True):
        if key not in inner_ids:  # a part of another one
            plain |= {name: _plain_field(field) for name, field in each.items() if _is_plain(_plain_field(field))}
    return plain if len(plain) <= _MAX_FIELDS else {}


def _plain_field(value: Any) -> Any:
    """Return a section that is an instance of a config class as a dict; other values unchanged."""
    if not _is_container(type(value)):
        return value
    return {name: _plain_field(field) for name, field in _fields_of(value).items()}


def _is_config_class(owner: type) -> bool:
    if not _is_of_program(owner):
        return False
    words = [word.lower() for word in _WORDS.findall(owner.__name__)]
    if not _is_container(owner):
        return words[-1:] != [] and words[-1] in _CONFIG_WORDS
    declared = getattr(owner, "__dataclass_fields__", None) or getattr(owner, "__annotations__", {})
    return not _CONFIG_WORDS.isdisjoint(words) or len(_CONFIG_FIELDS.intersection(declared)) > 1


def _is_of_program(owner: type) -> bool:
    from tachograph._base.program_code import is_program_file  # not at startup

    path = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return owner.__module__ == "__main__" or (isinstance(path, str) and is_program_file(os.path.abspath(path)))


def _configured_variables(script: dict[str, Any]) -> dict[str, Any]:
    """Return the plain global variables that a script assigns before it executes a configurator: the code of a file."""
    import ast  # not at startup: it is slow to import

    path = script.get("__file__")
    if not isinstance(path, str):
        return {}
    with open(path, "rb") as file:
        source = file.read(_MAX_SOURCE_BYTES)
    if b"exec(" not in source:
        return {}
    names: list[str] = []
    for statement in ast.parse(source).body:
        if _executes_file(statement):
            variables = {name: script[name] for name in names if name in script and not name.startswith("_")}
            return {name: value for name, value in variables.items() if isinstance(value, (bool, int, float, str))}
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names += [
            node.id
            for target in targets
            if isinstance(target, (ast.Name, ast.Tuple))
            for node in ast.walk(target)
            if isinstance(node, ast.Name)
        ]
    return {}


def _executes_file(statement: ast.stmt) -> bool:
    """Return whether a statement is such as `exec(open("configurator.py").read())`."""
    import ast

    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return False
    nodes = list(ast.walk(statement))
    names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return "exec" in names and not attributes.isdisjoint({"read", "read_text"})


def _fields_of_class(owner: type) -> dict[Any, Any]:
    """Return the attributes of a class used as a config itself, without instances that have other values."""
    if _is_container(owner) or type(owner) is not type or owner.__init__ is not object.__init__:  # type: ignore[misc]
        return {}
    fields: dict[Any, Any] = {}
    for each in reversed(owner.__mro__[:-1]):
        fields.update(vars(each))
    return {name: value for name, value in fields.items() if not name.startswith("_") and not _is_behaviour(value)}


def _is_behaviour(value: Any) -> bool:
    return callable(value) or isinstance(value, (staticmethod, classmethod, property))


def _is_container(owner: type) -> bool:
    """Return whether a class declares fields, whose values its instances have."""
    return any(hasattr(owner, mark) for mark in ("__dataclass_fields__", "__attrs_attrs__", "model_fields", "_fields"))


def _fields_of(config: Any) -> dict[str, Any]:
    """Return the fields of a config of any class; of a class that is no mere container, the plain ones."""
    is_container = isinstance(config, dict) or _is_container(type(config))
    fields = config._asdict() if hasattr(type(config), "_asdict") else _dict_of(config)
    return {name: value for name, value in fields.items() if is_container or _is_plain(value)}


def _dict_of(value: Any) -> dict[Any, Any]:
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if fields is None and hasattr(type(value), "__dataclass_fields__"):  # with slots
        fields = {name: getattr(value, name) for name in type(value).__dataclass_fields__ if hasattr(value, name)}
    return fields if isinstance(fields, dict) else {}


def _is_plain(value: Any, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, (list, tuple)):
        return len(value) <= 100 and all(_is_plain(each, depth + 1) for each in value)
    if isinstance(value, dict):  # a section
        return len(value) <= _MAX_FIELDS and all(
            isinstance(key, str) and _is_plain(each, depth + 1) for key, each in value.items()
        )
    return value is None or isinstance(value, (bool, int, float, str))
