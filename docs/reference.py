"""Write the reference of the Python API from signatures and docstrings.

The source is parsed, not imported: some modules need packages that take seconds to import, and signatures at run time
differ between versions of Python. A public name is followed through the imports of `__init__.py` to its definition.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

SOURCE = Path(__file__).parent.parent / "src"
LINE_CHARS = 110


class Group(NamedTuple):
    """Names of one module under one heading."""

    title: str
    text: str
    module: str
    names: str


GROUPS = (
    Group(
        "Record a run",
        "See [recording](recording.md), [control](control.md) and [completions](completions.md).",
        "tachograph",
        "init init_from_config log ab current_run Run Control Completions",
    ),
    Group(
        "Log media",
        "See [media](media.md).",
        "tachograph",
        "Image Table Histogram Text Markdown Html Video Audio Points ConfusionMatrix PRCurve File",
    ),
    Group(
        "Read and diagnose runs",
        "See [reading](reading.md) and [diagnosis](diagnosis.md).",
        "tachograph",
        "read show RunHistory Series RunState diagnose resume_skipping",
    ),
    Group(
        "Artifacts",
        "Stored with `Run.log_artifact`. See [artifacts](artifacts.md).",
        "tachograph",
        "find_artifact list_artifacts ArtifactVersion",
    ),
    Group(
        "Parts of a run that was read",
        "The attributes of `RunHistory` contain objects of these classes.",
        "tachograph.reader",
        "Attempt MetricSummary Goodput Alert Failure RecordedSpan SpanGroup RankView PluginUse PluginChange RunMedia "
        "MediaName MediaItem RecordedHistogram",
    ),
    Group("Dumps", "See [black box](black_box.md).", "tachograph.black_box", "Dump Verdict DumpFile"),
    Group("Observe a PyTorch loop", "See [plain PyTorch](pytorch.md).", "tachograph", "watch track"),
    Group(
        "Mark where the time goes",
        "Each of these is a context manager, and most are also decorators. See [spans](spans.md).",
        "tachograph",
        "application training_loop training_iteration data_loading zero_grad forward backward optimizer_update "
        "validation_loop validation_iteration testing_loop testing_iteration checkpoint_save checkpoint_load "
        "checkpoint_finalization model_init optimizer_init dataloader_init distributed_init timed_span Span "
        "set_training_config",
    ),
    Group(
        "Time functions and blocks",
        "See [profiling](profiling.md).",
        "tachograph",
        "profile_function profile_block ProfilingConfig configure_profiling",
    ),
    Group(
        "Training plugins: `tachograph.plugins`",
        "See [training plugins](plugins.md).",
        "tachograph.plugins",
        "apply AppliedPlugins BasePlugin BaseOptimizerFactory Slots AdapterCapabilities LossResult PluginConfig "
        "TrainingSetup PluginReport PluginSession PluginError",
    ),
    Group(
        "Train from a config: `tachograph.train`",
        "See [training a language model](train.md), also for all keys of a config.",
        "tachograph.train",
        "load TrainJob CheckedJob TrainPlan TrainResult TrainConfig",
    ),
    Group(
        "Usage telemetry: `tachograph.usage`",
        "For maintainers of frameworks; see [usage telemetry](usage.md).",
        "tachograph.usage",
        "TelemetryManager UsageConfig send_errors read_organizations describe decide Decision set_choice PostHog "
        "OtlpLogs JsonLines RuntimeMetrics RuntimeMetricsTracker",
    ),
    Group(
        "Fields of usage events",
        'For `events` of a `UsageConfig`. A field is created with a sentence on its meaning, as in `Count("Epochs.")`.',
        "tachograph.usage",
        "Schema Choice Count Device Flag Group HubId ListOf Measure ModelType Seconds Size Version",
    ),
    Group("Tests: `tachograph.testing`", "See [testing](testing.md).", "tachograph.testing", "MemoryRun FakeClock"),
    Group(
        "Errors: `tachograph.exceptions`",
        "All of them are `TachographError`s. They are raised during setup and while reading; recording raises nothing.",
        "tachograph.exceptions",
        "TachographError ConfigError RunNameError LogDirError NoRunError RunNotFoundError ControlError ArtifactError "
        "CodeError ServeError ColumnStoreError TableExportError",
    ),
)
"""What the page contains, in this order. Every name in `__all__` of a module must be in one of its groups."""

PARTIAL = {"tachograph.black_box", "tachograph.reader"}
"""Modules of which only a part is documented here."""
NOT_SHOWN = {
    "tachograph": {"__version__", "TachographError"},
    "tachograph.exceptions": {"PluginError", "did_you_mean"},
}
HIDDEN = {
    "Run": "add_record add_follower backend clock collect collectors control_panel has_follower print_line "
    "reject_requests remove_follower report_error report_follower_error span_recorder",
    "RunHistory": "add add_plain_steps num_spans_not_grouped restore",
    "MetricSummary": "add add_many",
    "Span": "extras from_json keep_event name_str recorder report_misuse start_event stop_event to_json "
    "updated_attributes wall_s",
    "SpanGroup": "open_starts",
    "TrainConfig": "model_config",
    "PluginReport": "drain drain_event_s had_effect hook_s num_effects",
    "TelemetryManager": "add_exit_callback remove_exit_callback",
    "UsageConfig": "facts receiver schemas",
}
"""Members that only the package itself, integrations and sinks use."""
WITHOUT_MEMBERS = (
    "PluginSession TrainConfig PostHog OtlpLogs JsonLines Choice Count Device Flag Group HubId ListOf Measure "
    "ModelType Seconds Size Version RuntimeMetrics"
)
"""Classes that users only create, pass on or print: without methods and class attributes."""

Definition: TypeAlias = ast.FunctionDef | ast.ClassDef


class Found(NamedTuple):
    """A definition and the module that it is in."""

    module: str
    node: Definition


def reference_page() -> str:
    """Return the page.

    Raises:
        LookupError: if a public name is in no group, or a name in a group does not exist.
    """
    _check_groups()
    lines = [
        "# Python reference",
        "",
        "The public names with their signatures. If you look for how to do something, start with the",
        "[quickstart](quickstart.md). The integrations have pages of their own, such as",
        "[Hugging Face](transformers.md) and [Lightning](lightning.md). For sinks, importers and rules of your own,",
        "see [extending](extending.md).",
        "",
    ]
    for group in GROUPS:
        lines += [f"- [{group.title}](#{_anchor(group.title)})"]
    for group in GROUPS:
        lines += ["", f"## {group.title}", "", group.text]
        for name in group.names.split():
            lines += _describe(find(group.module, name), f"{group.module}.{name}")
    return "\n".join(lines) + "\n"


def _check_groups() -> None:
    for module in {group.module for group in GROUPS}:
        shown = {name for group in GROUPS if group.module == module for name in group.names.split()}
        public = set(_public_names(module)) - NOT_SHOWN.get(module, set())
        if (missing := public - shown) and module not in PARTIAL:
            raise LookupError(f"add {', '.join(sorted(missing))} of {module} to a group in docs/reference.py")
        if unknown := shown - public:
            raise LookupError(f"docs/reference.py names {', '.join(sorted(unknown))}, which {module} does not have")


def _anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _describe(found: Found, path: str) -> list[str]:
    node = found.node
    docstring = ast.get_docstring(node) or ""
    lines = ["", f"### `{path}`", ""]
    if isinstance(node, ast.FunctionDef):
        return [*lines, *_signature(node), "", *_render(docstring)]
    hidden = HIDDEN.get(node.name, "").split()
    fields = [field for field in _fields(node) if field.name not in hidden]
    methods = list(_methods_of(found))
    constructor = next((one for one in methods if one.name == "__init__"), None)
    if constructor is not None and "Args:" in _text_of(constructor):
        docstring += "\n\n" + _text_of(constructor).partition("\n\n")[2]
    has_fields_in_text = "Args:" in docstring or "Attributes:" in docstring
    if "Args:" in docstring and constructor is not None:  # otherwise another function creates the object
        lines += [*_signature(constructor, node.name), ""]
    elif has_fields_in_text and constructor is None and fields and _is_made_of_fields(node):
        star = ["*"] if any("kw_only=True" in ast.unparse(one) for one in node.decorator_list) else []
        lines += [*_code(node.name, [*star, *map(str, fields)], ""), ""]
    lines += [line for line in _render(docstring) if not any(line.startswith(f"- `{name}`:") for name in hidden)]
    shown = [one for one in methods if not one.name.startswith("_") and one.name not in hidden and _text_of(one)]
    if node.name in WITHOUT_MEMBERS.split():
        shown, fields = [], [field for field in fields if field.annotation]
    rows = [] if has_fields_in_text else [(str(field), field.text) for field in fields]
    for method in filter(_is_property, shown):
        rows.append((method.name, " ".join("\n".join(_render(_text_of(method))).split())))
    if rows:
        lines += ["", *(f"- `{name}`{': ' + text if text else ''}" for name, text in rows)]
    for method in shown:
        if not _is_property(method):
            lines += ["", f"#### `{node.name}.{method.name}`", "", *_signature(method), "", *_render(_text_of(method))]
    return lines


def _text_of(method: ast.FunctionDef) -> str:
    return ast.get_docstring(method) or ""


def _signature(node: ast.FunctionDef, class_name: str | None = None) -> list[str]:
    """Return a code block with a signature, one argument per line if it is long.

    Args:
        node: a function or a method.
        class_name: the class, if it is a constructor.
    """
    parts = list(_arguments(node.args))
    if parts and parts[0] in {"self", "cls"}:
        parts.pop(0)
        if parts and parts[0] == "/":
            parts.pop(0)
    returned = ast.unparse(node.returns) if node.returns is not None else ""
    # The result of a constructor is known, and a private class is not a useful one.
    arrow = f" -> {returned}" if class_name is None and returned and not returned.startswith("_") else ""
    return _code(class_name or node.name, parts, arrow)


def _code(name: str, parts: list[str], arrow: str) -> list[str]:
    text = f"{name}({', '.join(parts)}){arrow}"
    if len(text) > LINE_CHARS:
        text = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){arrow}"])
    return ["```text", text if '"' in text else text.replace("'", '"'), "```"]


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    num_required = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*([None] * num_required), *arguments.defaults]
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        yield _argument(argument, default)
        if index + 1 == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg is not None:
        yield "*" + _argument(arguments.vararg)
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(argument, default)
    if arguments.kwarg is not None:
        yield "**" + _argument(arguments.kwarg)


def _argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation is not None else ""
    if default is None:
        return f"{argument.arg}{annotation}"
    is_private = isinstance(default, ast.Name) and default.id.startswith("_")
    return f"{argument.arg}{annotation}{' = ' if annotation else '='}{'...' if is_private else ast.unparse(default)}"


def _render(docstring: str) -> list[str]:
    """Return a docstring in Google's style as Markdown."""
    docstring = re.sub(r"``(.+?)``", r"`\1`", docstring)
    docstring = re.sub(r"`docs/(\w+)\.md`", r"[\1](\1.md)", docstring)
    parts = re.split(r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples):\n", docstring, flags=re.MULTILINE)
    lines = parts[0].strip().splitlines()
    for title, indented in zip(parts[1::2], parts[2::2], strict=True):
        body = inspect.cleandoc("\n" + indented)
        if title.startswith("Example"):
            lines += ["", "```pycon", *body.splitlines(), "```"]
        elif title in {"Returns", "Yields"}:
            lines += ["", f"{title}: {' '.join(body.split())}"]
        else:
            rows = [" ".join(row.split()) for row in re.split(r"\n(?=\S)", body) if row.strip()]
            lines += ["", *([f"{title}:", ""] if title == "Raises" else [])]
            lines += [re.sub(r"^([*\w.]+): ", r"- `\1`: ", row) for row in rows]
    return lines


class Field(NamedTuple):
    """A field or a member of a class."""

    name: str
    annotation: str
    default: str
    text: str

    def __str__(self) -> str:
        annotation = f": {self.annotation}" if self.annotation else ""
        return f"{self.name}{annotation}{f' = {self.default}' if self.default else ''}"


def _fields(node: ast.ClassDef) -> list[Field]:
    """Return the public fields or members of a class, each with its docstring."""
    fields = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = re.sub(r"``(.+?)``", r"`\1`", " ".join(str(following.value.value).split()))
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = _default(statement.value) if statement.value is not None else ""
            fields.append(Field(statement.target.id, ast.unparse(statement.annotation), default, text))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            fields.append(Field(statement.targets[0].id, "", ast.unparse(statement.value), text))
    return [field for field in fields if not field.name.startswith("_")]


def _default(value: ast.expr) -> str:
    """Return the default of a field; that of `field(default_factory=dict)` is `dict()`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        factories = [keyword.value for keyword in value.keywords if keyword.arg == "default_factory"]
        return f"{ast.unparse(factories[0])}()" if factories else "..."
    return ast.unparse(value)


def _is_made_of_fields(node: ast.ClassDef) -> bool:
    """Return whether the constructor of a class is made from its fields."""
    words = [ast.unparse(part) for part in (*node.decorator_list, *node.bases)]
    return any(re.search(r"dataclass|NamedTuple|Struct", word) for word in words)


def _methods_of(found: Found) -> Iterator[ast.FunctionDef]:
    """Return the methods of a class and of its bases in this package, the first of each name."""
    seen = set()
    for _, node in _with_bases(found):
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name not in seen:
                if _has_decorator(statement, "overload"):
                    continue
                seen.add(statement.name)
                yield statement


def _with_bases(found: Found) -> Iterator[Found]:
    yield found
    for base in found.node.bases if isinstance(found.node, ast.ClassDef) else []:
        if not isinstance(base, ast.Name) or any(base.id in group.names.split() for group in GROUPS):
            continue  # a base that is not ours, or has a section of its own
        parent = _look_up(found.module, base.id)
        if parent is not None and isinstance(parent.node, ast.ClassDef):
            yield from _with_bases(parent)


def _has_decorator(node: ast.FunctionDef, *names: str) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] in names for decorator in node.decorator_list)


def _is_property(node: ast.FunctionDef) -> bool:
    return _has_decorator(node, "property", "cached_property")


def find(module: str, name: str) -> Found:
    """Return the definition of a name that a module has, its own or an imported one."""
    found = _look_up(module, name)
    if found is None:
        raise LookupError(f"{module} has no {name}")
    return found


def _look_up(module: str, name: str) -> Found | None:
    definitions: dict[str, Definition] = {}
    origins: dict[str, tuple[str, str]] = {}
    for statement in ast.walk(_parse(module)):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("tachograph"):
            for alias in statement.names:
                origins[alias.asname or alias.name] = (str(statement.module), alias.name)
    for node in _parse(module).body:  # overloads come first, so the last definition is the implementation
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
    if name in definitions:
        return Found(module, definitions[name])
    return _look_up(*origins[name]) if name in origins else None


def _public_names(module: str) -> list[str]:
    for node in _parse(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise LookupError(f"{module} has no __all__")


@functools.cache
def _parse(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
