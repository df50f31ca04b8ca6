"""The config that a script reads from its arguments or files is the config of the run that `tacho run` records.

The programs here do not train: `test_trackers` has one that does.
"""

from __future__ import annotations

import pytest

from tests.integrations.zero_code.conftest import Tacho


def config_of(tacho: Tacho, python: str, *arguments: str) -> dict[str, object]:
    done = tacho.run(python, "train.py", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    (start,) = tacho.records("train", "start")
    return dict(start["config"])


def test_arguments_of_the_program_are_the_config(tacho, python):
    tacho.write(
        "train.py",
        """
        import argparse
        library = argparse.ArgumentParser()
        library.add_argument("--other", default="not ours")
        library.parse_args([])
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        parser.add_argument("--password", default="hunter2hunter2")
        parser.set_defaults(call=print)
        known, rest = parser.parse_known_args()
        assert rest == ["--unknown"] and known.call is print
        """,
    )
    config = config_of(tacho, python, "--lr", "0.5", "--unknown")
    assert "hunter2" not in str(config.pop("password"))
    assert config == {"lr": 0.5}


def test_simple_parsing_config_is_nested(tacho, python):
    pytest.importorskip("simple_parsing")
    tacho.write(
        "train.py",
        """
        from dataclasses import dataclass
        import simple_parsing

        @dataclass
        class Options:
            lr: float = 0.1
            depth: int = 2

        parser = simple_parsing.ArgumentParser()
        parser.add_arguments(Options, dest="options")
        assert parser.parse_args().options == Options(lr=0.5)
        """,
    )
    assert config_of(tacho, python, "--lr", "0.5") == {"options": {"lr": 0.5, "depth": 2}}


def test_hydra_config_is_recorded(tacho, python):
    pytest.importorskip("hydra")
    tacho.write("conf/config.yaml", "model: {depth: 2, width: '${model.depth}'}\nlr: 0.1\n")
    tacho.write(
        "train.py",
        """
        import hydra

        @hydra.main(version_base=None, config_path="conf", config_name="config")
        def main(config):
            assert config.lr == 0.5

        main()
        """,
    )
    assert config_of(tacho, python, "lr=0.5") == {"model": {"depth": 2, "width": 2}, "lr": 0.5}


def test_merged_omegaconf_is_recorded(tacho, python):
    pytest.importorskip("omegaconf")
    tacho.write("base.yaml", "model: {depth: 2}\nlr: 0.1\n")
    tacho.write(
        "train.py",
        """
        from omegaconf import OmegaConf
        config = OmegaConf.merge(OmegaConf.load("base.yaml"), OmegaConf.from_cli())
        assert config.lr == 0.5 and isinstance(vars(OmegaConf)["merge"], staticmethod)
        """,
    )
    assert config_of(tacho, python, "lr=0.5") == {"model": {"depth": 2}, "lr": 0.5}
