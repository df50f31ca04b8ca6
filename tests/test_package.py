"""The package as a whole: public names, layers and import cost."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tachograph

pytestmark = pytest.mark.xdist_group("sources")  # they share the parsed modules

SOURCE = Path(tachograph.__file__).parent

# The packages that each package may import; layers point down. `base` stands for the modules that every layer may use.
# A dotted name is a module with its own permissions; the longest matching name applies.
ALLOWED = {
    "base": set(),
    "records": {"base"},
    "journal": {"base", "records"},
    "journal.artifacts": {"base", "records"},
    "black_box": {"base", "records", "journal"},
    "reader": {"base", "records", "journal", "black_box"},
    "diagnostics": {"base", "records"},
    "media": {"base", "records", "journal"},
    "recorder": {"base", "records", "journal", "black_box", "media", "reader", "diagnostics", "remote"}
    | {"journal.artifacts"},
    "importers": {"base", "records", "journal", "media"},
    "sinks": {"base", "records", "journal"},
    "remote": {"base", "records", "journal", "reader", "journal.artifacts"},
    "_init": {"base", "records", "reader", "diagnostics", "recorder", "sinks", "remote"},
    "spans": {"base", "records", "recorder", "_init"},
    "bridges": {"base", "records", "journal", "reader", "recorder", "spans", "sinks", "importers", "_init"}
    | {"journal.artifacts", "media"},
    "integrations": {"base", "records", "journal", "black_box", "reader", "recorder", "spans", "sinks", "bridges"}
    | {"_init", "media"},
    "one_logger": {"base", "records", "journal", "reader", "recorder", "spans", "sinks", "_init"}
    | {"bridges", "integrations"},
    "plugins": {"base", "records", "journal", "reader", "recorder", "spans", "sinks", "bridges", "_init"},
    "train": {
        "base",
        "records",
        "journal",
        "black_box",
        "reader",
        "recorder",
        "spans",
        "sinks",
        "integrations",
        "plugins",
        "_init",
    },
    "tensorboard": {"bridges"},
    "wandb": {"base", "bridges"},
    "testing": {"base", "records", "journal", "recorder"},
    "usage": {"base"},
    "store": {"base", "records", "journal", "reader"},
    "store.notebook": {"base", "records", "journal", "reader", "recorder", "store"},
    "catalog": {"base", "records", "journal", "reader", "remote", "store", "sinks"},
    "catalog.diagnosis": {"base", "records", "journal", "reader", "diagnostics", "importers", "catalog"},
    "catalog.export": {"base", "records", "journal", "reader"},
    "comparison": {"base", "records", "journal", "reader", "store", "catalog"},
    "server": {
        "base",
        "journal.artifacts",
        "black_box",
        "records",
        "journal",
        "reader",
        "store",
        "catalog",
        "comparison",
        "server.columns",
    },
    "server.columns": {"base", "records", "journal", "reader", "store"},
    "server.team": {"base", "records", "journal", "journal.artifacts", "reader", "remote", "server"}
    | {"server.columns"},
    "cli": {
        "base",
        "journal.artifacts",
        "black_box",
        "catalog",
        "catalog.export",
        "remote",
        "comparison",
        "records",
        "journal",
        "reader",
        "diagnostics",
        "catalog.diagnosis",
        "recorder",
        "sinks",
        "importers",
        "integrations",
        "plugins",
        "spans",
        "server",
        "server.columns",
        "server.team",
        "train",
        "usage",
        "_init",
    },
    "__init__": {
        "base",
        "journal.artifacts",
        "black_box",
        "catalog.diagnosis",
        "integrations",
        "journal",
        "media",
        "store.notebook",
        "reader",
        "recorder",
        "spans",
        "_init",
    },
    "__main__": {"cli"},
}
BASE = {"_base", "exceptions"}


@functools.cache
def parse(path: Path) -> ast.Module:
    """Parse a module once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def layer_of(module: str) -> str:
    """Return the entry of `ALLOWED` that a module belongs to."""
    names = module.split(".")[1:] or ["__init__"]
    if names[0] in BASE:
        return "base"
    dotted = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((name for name in dotted if name in ALLOWED), names[0])


def imports_of(path: Path) -> set[str]:
    """Return the modules of tachograph that a file imports."""
    modules = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "tachograph":
            modules |= {f"tachograph.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tachograph"):
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("tachograph")}
    return modules


def test_imports_follow_layers():
    violations = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = layer_of(".".join(("tachograph", *path.relative_to(SOURCE).with_suffix("").parts)))
        for module in imports_of(path):
            other = layer_of(module)
            if other != own and other not in ALLOWED[own]:
                violations.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert violations == []


def test_private_modules_are_imported_by_their_own_package():
    """A module with an underscore belongs to its folder and the folders below; others import what a package exports."""
    violations = []
    for path in sorted(SOURCE.rglob("*.py")):
        importer = path.relative_to(SOURCE.parent).parts[:-1]
        for module in imports_of(path):
            names = module.split(".")
            private = next((index for index, name in enumerate(names) if index > 1 and name.startswith("_")), None)
            if private is not None and importer[:private] != tuple(names[:private]) and names[1] != "_base":
                violations.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert violations == []


def test_every_package_has_readme_that_names_its_files():
    gaps = []
    for init in sorted(SOURCE.rglob("__init__.py")):
        folder = init.parent
        files = [path.name for path in folder.glob("*.py") if path.name not in {"__init__.py", "__main__.py"}]
        folders = [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
        if folder == SOURCE or not files + folders or "sdk" in folder.parts:  # `sdk` has aliases of W&B's own modules
            continue
        readme = folder / "README.md"
        text = readme.read_text(encoding="utf-8") if readme.exists() else ""
        gaps += [
            f"{folder.relative_to(SOURCE)}: {name}"
            for name in sorted(files + folders)
            if f"`{name}`" not in text and f"`{name.removesuffix('.py')}`" not in text
        ]
    assert gaps == []


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_have_no_import_cycle():
    """Imports for type checking and imports inside functions count, too."""
    paths = {module_name(path): path for path in SOURCE.rglob("*.py")}
    graph = {}
    for module, path in paths.items():
        imported = set()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                dotted = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {name if name in paths else node.module for name in dotted}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        graph[module] = (imported & paths.keys()) - {module}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("tachograph.spans._span") < order.index("tachograph.spans._recorder")


def test_class_names_are_unique():
    """One name means one thing, except that callbacks and the thresholds of rules have the same name everywhere."""
    shared = {"TachographCallback", "Thresholds"}
    shared |= {"Audio", "Histogram", "Html", "Image", "Plotly", "Table", "Video"}  # the W&B facade has its names
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef) and node.name not in shared:
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_package_is_listed_in_layers():
    names = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names - BASE == {name for name in ALLOWED if "." not in name} - {"base"}


def test_public_names_are_sorted_and_importable():
    assert tachograph.__all__ == sorted(tachograph.__all__)
    for name in tachograph.__all__:
        assert getattr(tachograph, name) is not None
    assert {*tachograph._MODULE_OF, "__version__"} == set(tachograph.__all__)
    assert dir(tachograph) == tachograph.__all__


def modules_after(statement: str) -> set[str]:
    """Return the modules loaded in a new process after a statement."""
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_bridges_do_not_import_each_other():
    for path in (SOURCE / "bridges").glob("*/**/*.py"):
        bridge = path.relative_to(SOURCE / "bridges").parts[0]
        others = {module for module in imports_of(path) if module.startswith("tachograph.bridges.")}
        assert {module.split(".")[2] for module in others} <= {bridge, "drop_in", "exported_media"}, path


HEAVY = {"numpy", "pandas", "torch", "rich", "click", "rich_click", "yaml", "pynvml"}
HEAVY |= {"PIL", "starlette", "uvicorn", "tsdownsample"}


def test_import_loads_few_modules():
    added = modules_after("import tachograph") - modules_after("pass")
    assert len(added) <= 50, sorted(added)
    assert not HEAVY & added


def test_recording_imports_nothing_heavy(tmp_path):
    init = f"run = tachograph.init('x', log_dir={str(tmp_path)!r}, console=False, system_interval_s=0)"
    added = modules_after(f"import tachograph\n{init}\nrun.log(a=1.0); run.finish()") - modules_after("pass")
    assert not (HEAVY - {"pynvml"}) & added  # pynvml is a thin wrapper around the driver; it provides GPU names


def test_making_media_imports_nothing_heavy():
    added = modules_after("import tachograph\ntachograph.Image('a.png'); tachograph.Table(rows=[])")
    assert not HEAVY & (added - modules_after("pass"))


def test_spans_import_nothing_heavy():
    added = modules_after("import tachograph\ntachograph.training_iteration") - modules_after("pass")
    assert not HEAVY & added


def test_the_dashboard_starts_without_what_few_pages_need():
    added = modules_after("import tachograph.cli._main, tachograph.cli._ui, tachograph.server")
    assert not {"tachograph.comparison", "tachograph.importers", "rich.console", "xml.etree.ElementTree"} & added


# Calls that create, open or replace a file by its path.
FILE_CALLS = {"os.replace", "os.rename", "os.link", "os.symlink", "os.mkfifo", "os.truncate"}
FILE_CALLS |= {"shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move"}
FILE_CALLS |= {"tempfile.NamedTemporaryFile", "tempfile.TemporaryFile", "tempfile.mkstemp", "tempfile.mktemp"}
FILE_METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"}
# Exceptions: the processes of `tacho run` write into a private folder of the launcher, also where Tachograph cannot be
# imported, and after Ctrl-C, when nothing may be imported.
MAY_OPEN_FILES = {
    "_base/files.py",
    "integrations/zero_code/_launch_spec.py",
    "integrations/zero_code/bootstrap/sitecustomize.py",
}


def opens_for_writing(call: ast.Call) -> bool:
    """Return whether a call may write a file. An `open` counts unless its mode is a literal that only reads."""
    name = ast.unparse(call.func)
    arguments = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    mode = arguments[0] if arguments else ast.Constant("r")
    if name == "os.open":
        return {node.attr for node in ast.walk(mode) if isinstance(node, ast.Attribute)} - {
            "O_CLOEXEC",
            "O_NOFOLLOW",
            "O_NONBLOCK",
        } != {"O_RDONLY"}
    if name in {"open", "io.open", "gzip.open", "bz2.open", "lzma.open"}:
        is_descriptor = any(keyword.arg == "closefd" for keyword in call.keywords)
        return not is_descriptor and not (isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rbt"))
    return name in FILE_CALLS or (isinstance(call.func, ast.Attribute) and call.func.attr in FILE_METHODS)


def test_one_module_opens_files_for_writing():
    """Other modules call `tachograph._base.files`, which rejects links and files of others."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
        if any(map(opens_for_writing, calls)):
            found.add(path.relative_to(SOURCE).as_posix())
    assert found == MAY_OPEN_FILES
