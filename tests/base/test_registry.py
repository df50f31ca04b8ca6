"""The registry of extensions: built-in names, entry points, and errors with a remedy."""

from __future__ import annotations

import re
import sys

import pytest

from tachograph._base.registry import Registry
from tachograph.exceptions import ConfigError


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put packages on the path that declare entry points."""

    def add(package, points, module=""):
        site = tmp_path / package
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[tachograph.things]\n" + "\n".join(points))
        (site / f"{package}_module.py").write_text(module)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)

    return add


@pytest.fixture
def registry():
    return Registry("thing", "tachograph.things", {"fraction": "fractions:Fraction", "lost": "no_such_module:Lost"})


def test_built_in_names_come_first(registry, install):
    install("zoo", ["zebra = zoo_module:Zebra", "ant = zoo_module:Ant"])
    assert registry.names() == ["fraction", "lost", "ant", "zebra"]


def test_built_in_is_loaded(registry):
    from fractions import Fraction

    assert registry.load("fraction") is Fraction


def test_installed_extension_is_loaded(registry, install):
    install("zoo", ["zebra = zoo_module:ZEBRA"], "ZEBRA = 'striped'")
    assert registry.load("zebra") == "striped"


def test_installed_extension_cannot_replace_built_in(registry, install):
    install("evil", ["fraction = evil_module:Fraction"], "raise RuntimeError('imported')")
    assert registry.names() == ["fraction", "lost"]
    assert registry.load("fraction").__module__ == "fractions"


def test_missing_package_of_built_in_names_remedy(registry):
    with pytest.raises(ConfigError, match=re.escape("pip install 'tachograph[lost]'")):
        registry.load("lost")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fracton", "unknown thing 'fracton'; did you mean 'fraction'? Available: fraction, lost"),
        ("xyz", "unknown thing 'xyz'. Available: fraction, lost"),
    ],
)
def test_unknown_name_lists_available_ones(registry, name, message):
    with pytest.raises(ConfigError) as error:
        registry.load(name)
    assert str(error.value) == message


def test_broken_extension_names_its_package(registry, install):
    install("zoo", ["zebra = zoo_module:Zebra"], "raise RuntimeError('no grass')")
    message = "thing 'zebra' of package 'zoo' cannot be loaded: RuntimeError: no grass"
    with pytest.raises(ConfigError, match=re.escape(message)):
        registry.load("zebra")


def test_name_of_two_packages_is_ambiguous(registry, install):
    install("zoo", ["zebra = zoo_module:Zebra"])
    install("farm", ["zebra = farm_module:Zebra"])
    assert registry.names().count("zebra") == 1
    with pytest.raises(ConfigError, match="several packages provide the thing 'zebra': farm, zoo; uninstall all but"):
        registry.load("zebra")
