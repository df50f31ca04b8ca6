"""`ExporterConfigManager`: exporters from code, files and installed packages."""

from __future__ import annotations

import json
import sys

import pytest

from tachograph.one_logger import (
    ExporterConfig,
    ExporterConfigManager,
    FileExporter,
    OneLoggerConfig,
    OneLoggerError,
    WandBExporterAsync,
    application,
)
from tests.one_logger.conftest import exported

FILE = "exporters:\n  - class_name: FileExporter\n    config: {file_path: %s}\n"


def made(*configs, path=None):
    """Return the exporters that a manager creates."""
    manager = ExporterConfigManager()
    return manager.create_exporters_from_config(manager.generate_export_config(configs, path))


def test_file_in_working_directory_is_used(provider, tmp_path):
    (tmp_path / "one_logger_exporters_config.yaml").write_text(FILE % "found.jsonl")
    config = OneLoggerConfig(application_name="app", session_tag_or_fn="session", world_size_or_fn=1)
    provider.with_base_config(config).with_export_config().configure_provider()
    with application():
        pass
    assert exported("found.jsonl")[-1]["name"] == "application"


def test_file_is_found_by_path_variable_and_name(tmp_path, monkeypatch):
    for name in ("given", "variable"):
        (tmp_path / f"{name}.yml").write_text(FILE % f"{name}.jsonl")
    exporter = {"class_name": "FileExporter", "config": {"file_path": "default.jsonl"}}
    (tmp_path / "one_logger_exporters_config.json").write_text(json.dumps({"exporters": [exporter]}))
    assert [exporter.path.name for exporter in made()] == ["default.jsonl"]
    monkeypatch.setenv("ONE_LOGGER_EXPORTER_CONFIG_PATH", "variable.yml")
    assert [exporter.path.name for exporter in made()] == ["variable.jsonl"]
    assert [exporter.path.name for exporter in made(path="given.yml")] == ["given.jsonl"]


def test_direct_config_wins_over_file(tmp_path):
    (tmp_path / "one_logger_exporters_config.yaml").write_text(FILE % "file.jsonl")
    direct = ExporterConfig("FileExporter", {"file_path": "direct.jsonl"})
    logger = {"class_name": "LoggerExporter", "config": {"logger": "x"}}
    assert [type(exporter).__name__ for exporter in made(direct, logger)] == ["FileExporter", "LoggerExporter"]
    assert made(direct, logger)[0].path.name == "direct.jsonl"
    assert made({"class_name": "FileExporter", "enabled": False}) == []
    assert direct.config == {"file_path": "direct.jsonl"}
    assert made() and made()[0].path.name == "file.jsonl"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a default config and an exporter of its own."""
    site = tmp_path / "site"
    info = site / "lab_exporter-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "lab_exporter.py").write_text(
        "from tachograph.one_logger import FileExporter\n"
        "class LabExporter(FileExporter):\n"
        "    pass\n"
        "class Defaults:\n"
        "    def get_default_config(self):\n"
        "        config = {'file_path': 'lab.jsonl'}\n"
        "        return {'class_name': 'lab_exporter.LabExporter', 'config': config, 'enabled': True}\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-exporter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nv_one_logger.exporter_configs]\nlab = lab_exporter:Defaults\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("lab_exporter", None)


def test_package_provides_default_config(package, tmp_path):
    (exporter,) = made()
    assert (type(exporter).__name__, exporter.path.name) == ("LabExporter", "lab.jsonl")
    (tmp_path / "one_logger_exporters_config.yaml").write_text(FILE % "file.jsonl")
    assert [type(exporter) for exporter in made()] == [FileExporter]  # the file replaces it


def test_broken_package_is_named(package):
    (package / "lab_exporter.py").write_text("raise RuntimeError('no driver')")
    with pytest.raises(OneLoggerError, match="entry point 'lab' of group 'nv_one_logger.exporter_configs' cannot be"):
        made()


def test_config_can_name_any_exporter_class(package, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("exporters:\n  - class_name: lab_exporter.LabExporter\n    config: {file_path: own.jsonl}\n")
    assert [type(exporter).__name__ for exporter in made(path=path)] == ["LabExporter"]


@pytest.mark.parametrize(
    "name",
    [
        "nv_one_logger.wandb.exporter.wandb_exporter.WandBExporterAsync",
        "tachograph.one_logger.WandBExporterAsync",
        "WandBExporterAsync",
    ],
)
def test_one_loggers_names_stand_for_ours(name):
    (exporter,) = made({"class_name": name, "config": {"config": {"entity": "us", "project": "p"}}})
    assert isinstance(exporter, WandBExporterAsync)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "exporters:\n  - class_name: os.system\n    config: {command: 'touch hacked'}",
            "'os.system' is not an exporter",
        ),
        (
            "exporters:\n  - class_name: subprocess.Popen\n    config: {args: id}",
            "'subprocess.Popen' is not an exporter",
        ),
        ("exporters:\n  - class_name: no.such.Class", "'no.such.Class' cannot be imported: ModuleNotFoundError"),
        ("exporters:\n  - class_name: os.Nothing", "'os.Nothing' cannot be imported: AttributeError"),
        ("exporters:\n  - class_name: FileExporte", "unknown exporter 'FileExporte'; did you mean 'FileExporter'?"),
        ("exporters:\n  - class_name: FileExporter\n    config: {wrong: 1}", "cannot be created with wrong: TypeError"),
        ("exporters:\n  - class_name: FileExporter\n    confg: {}", "has no field 'confg'; did you mean 'config'?"),
        ("exporters:\n  - FileExporter", "each exporter needs a class_name"),
        ("exporters:\n  - class_name: FileExporter\n    enabled: 7", "true or false as enabled"),
        ("exporters: 5", "expected a list `exporters`"),
        ("exporters: [", "is not valid"),
        ("exporters: !!python/object/apply:os.system ['touch hacked']", "is not valid"),
    ],
)
def test_wrong_file_is_an_error_and_executes_nothing(tmp_path, text, message):
    (tmp_path / "one_logger_exporters_config.yaml").write_text(text)
    with pytest.raises(OneLoggerError) as error:
        made()
    assert message in str(error.value)
    assert not (tmp_path / "hacked").exists()


def test_missing_file_is_an_error():
    with pytest.raises(OneLoggerError, match=r"cannot read the exporter config 'nothing\.yaml'"):
        made(path="nothing.yaml")


def test_errors_do_not_quote_secrets():
    config = {"config": {"api_key": "s3cret-key", "wrong": 1}}
    with pytest.raises(OneLoggerError) as error:
        made({"class_name": "WandBExporterSync", "config": config})
    assert "wrong" in str(error.value) and "s3cret-key" not in str(error.value)
