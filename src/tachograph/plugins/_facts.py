"""Facts about plugins: purpose, requirements and options, for `tacho plugins list` and `show`.

The facts of built-in plugins are read from their source, because importing a plugin needs torch and takes seconds. The
reader understands class attributes, names and options that are written as literals, constants or simple f-strings.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import types
import typing
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.plugins._base import BasePlugin, Slots
from tachograph.plugins._loading import PLUGINS

__all__ = ["BASE_PACKAGES", "OptionFacts", "PluginFacts", "built_in_facts", "facts_of_class", "is_installed"]

BASE_PACKAGES = ("pydantic", "torch", "transformers")
"""The packages that every plugin needs; `tachograph[plugins]` installs them."""
_ROOT = Path(__file__).parents[1]
_REQUIRED = "required"


class OptionFacts(NamedTuple):
    """A config key of a plugin."""

    name: str
    type: str
    default: str
    description: str


class PluginFacts(NamedTuple):
    """Facts about a plugin."""

    name: str
    class_path: str
    summary: str
    slots: tuple[str, ...]
    requires: tuple[str, ...]
    extra: str
    needs: tuple[str, ...]
    measured: tuple[str, ...]
    options: tuple[OptionFacts, ...]

    @property
    def missing(self) -> list[str]:
        """The packages that the plugin needs and that are not installed."""
        return [package for package in (*BASE_PACKAGES, *self.requires) if not is_installed(package)]

    @property
    def install(self) -> str:
        """What to give to `pip install` for this plugin."""
        if self.extra:
            return f"tachograph[plugins,{self.extra}]"
        return " ".join(["tachograph[plugins]", *self.requires])


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def facts_of_class(plugin: type[BasePlugin]) -> PluginFacts:
    """Return the facts about a plugin that is imported; needs pydantic.

    Raises:
        PluginError: if its options cannot be read.
    """
    from tachograph.plugins._config import options_of

    model = options_of(plugin())
    return PluginFacts(
        plugin.plugin_name(),
        f"{plugin.__module__}.{plugin.__qualname__}",
        _one_line(plugin.__doc__),
        tuple(plugin.slots),
        tuple(plugin.requires),
        plugin.extra,
        tuple(plugin.needs),
        tuple(plugin.measured),
        tuple(_fields(model)) if model is not None else (),
    )


def _fields(model: Any, prefix: str = "") -> list[OptionFacts]:
    """Return the fields of a pydantic model; fields of a section are named `section.field`."""
    options = []
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            options += _fields(field.annotation, f"{prefix}{name}.")
            continue
        default = _REQUIRED if field.is_required() else str(field.get_default(call_default_factory=True))
        options.append(OptionFacts(prefix + name, _type_name(field.annotation), default, field.description or ""))
    return options


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(map(_type_name, typing.get_args(annotation)))
    if isinstance(typing.get_origin(annotation), type):
        parts = ", ".join("..." if part is ... else _type_name(part) for part in typing.get_args(annotation))
        return f"{typing.get_origin(annotation).__name__}[{parts}]"
    if isinstance(annotation, type):
        return "None" if annotation is types.NoneType else annotation.__name__
    return re.sub(r"\b(?:typing|tachograph)\.(?:\w+\.)*", "", str(annotation))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


# From the source -----------------------------------------------------------------------------------------------------


def built_in_facts(name: str) -> PluginFacts:
    """Return the facts about a built-in plugin, without importing it."""
    module, _, class_name = PLUGINS.built_in[name].partition(":")
    source, node = _SourceModule(module).find_class(class_name)
    values = {
        target.id: statement.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }

    def read(attribute: str) -> Any:
        return source.evaluate(values[attribute]) if attribute in values else getattr(BasePlugin, attribute)

    options: list[OptionFacts] = []
    if isinstance(values.get("Options"), ast.Name):
        options = _option_facts(*source.find_class(values["Options"].id))  # type: ignore[attr-defined]
    return PluginFacts(
        name,
        f"{source.name}.{class_name}",
        _one_line(ast.get_docstring(node)),
        tuple(read("slots")),
        tuple(read("requires")),
        read("extra"),
        tuple(read("needs")),
        tuple(read("measured")),
        tuple(options),
    )


def _option_facts(source: _SourceModule, node: ast.ClassDef, prefix: str = "") -> list[OptionFacts]:
    options: list[OptionFacts] = []
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != "BaseModel":
            options += _option_facts(*source.find_class(base.id), prefix)
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = prefix + statement.target.id
        section = source.find_section(statement.annotation)
        if section is not None:
            options += _option_facts(*section, f"{name}.")
            continue
        default, description = _field_facts(source, statement.value)
        options.append(OptionFacts(name, ast.unparse(statement.annotation), default, description))
    return options


def _field_facts(source: _SourceModule, value: ast.expr | None) -> tuple[str, str]:
    """Return the default and the description of a field."""
    if value is None:
        return _REQUIRED, ""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field"):
        return str(source.evaluate(value)), ""
    arguments = {keyword.arg: keyword.value for keyword in value.keywords}
    default = value.args[0] if value.args else arguments.get("default")
    factory = arguments.get("default_factory")
    description = str(source.evaluate(arguments["description"])) if "description" in arguments else ""
    if factory is not None:
        return {"list": "[]", "dict": "{}"}.get(ast.unparse(factory), ast.unparse(factory)), description
    is_required = default is None or (isinstance(default, ast.Constant) and default.value is ...)
    return (_REQUIRED if is_required else str(source.evaluate(default))), description


class _SourceModule:
    """A module of Tachograph that is read, not imported."""

    def __init__(self, name: str) -> None:
        path = _ROOT.joinpath(*name.split(".")[1:])
        self.name = name
        self._tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
        self._imports = {
            alias.asname or alias.name: (statement.module, alias.name)
            for statement in self._tree.body
            if isinstance(statement, ast.ImportFrom) and statement.module
            for alias in statement.names
        }

    def find_class(self, name: str) -> tuple[_SourceModule, ast.ClassDef]:
        """Return a class, also one that the module imports, and the module that defines it."""
        for statement in self._tree.body:
            if isinstance(statement, ast.ClassDef) and statement.name == name:
                return self, statement
        module, imported_name = self._imports[name]
        return _SourceModule(module).find_class(imported_name)

    def find_section(self, annotation: ast.expr) -> tuple[_SourceModule, ast.ClassDef] | None:
        """Return the class of a field, if it is a class of Tachograph: a section of the config."""
        if not isinstance(annotation, ast.Name):
            return None
        is_own = any(isinstance(node, ast.ClassDef) and node.name == annotation.id for node in self._tree.body)
        is_imported = str(self._imports.get(annotation.id, ("",))[0]).startswith("tachograph.")
        return self.find_class(annotation.id) if is_own or is_imported else None

    def evaluate(self, node: ast.expr | None) -> Any:
        """Return the value of an expression; the expression as a text if it is not a simple one."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List)):
            entries = [self.evaluate(entry) for entry in node.elts]
            return entries if isinstance(node, ast.List) else tuple(entries)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.evaluate(node.operand)
        if isinstance(node, ast.JoinedStr):
            return "".join(str(self.evaluate(part)) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self.evaluate(node.value)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Slots":
            return getattr(Slots, node.attr)
        if isinstance(node, ast.Name):
            return self._constant(node)
        return ast.unparse(node) if node is not None else None

    def _constant(self, name: ast.Name) -> Any:
        for statement in self._tree.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == name.id for target in targets):
                return self.evaluate(statement.value)  # type: ignore[attr-defined]
        if name.id in self._imports and str(self._imports[name.id][0]).startswith("tachograph."):
            module, imported_name = self._imports[name.id]
            return _SourceModule(module)._constant(ast.Name(imported_name))
        return name.id
