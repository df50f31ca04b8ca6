"""The config that a script reads from its arguments or files is the config of the run that `tacho run` records.

The programs here do not train: `test_trackers` has one that does.
"""

from __future__ import annotations

import importlib.util

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


SCRIPTS = {
    "configurator": """
        learning_rate = 6e-4
        betas = (0.9, 0.95)
        config_keys = [key for key, value in globals().items() if not key.startswith("_") and type(value) is float]
        exec("import sys\\nfor arg in sys.argv[1:]: globals()['learning_rate'] = float(arg[5:])")
        config = {key: globals()[key] for key in config_keys}
        print("loss: 0.5")
        """,
    "dataclass": """
        import dataclasses, sys
        @dataclasses.dataclass
        class Config:
            learning_rate: float
            betas: tuple = (0.9, 0.95)
            model: object = dataclasses.field(default_factory=object)
        args = None
        cfg = Config(float(sys.argv[1][5:]))
        print("loss: 0.5")
        """,
    "class": """
        import sys
        class CFG:
            learning_rate = float(sys.argv[1][5:])
            betas = (0.9, 0.95)
            model = {"depth": 2, "kernel": {"size": [3, 3]}}
            def describe(self): return "a method is no value"
        print("loss: 0.5")
        """,
    "local": """
        import sys
        def main():
            class Config:
                learning_rate = 6e-4
                betas = (0.9, 0.95)
            args, cfg = None, Config()
            cfg.learning_rate = float(sys.argv[1][5:])
            evaluate()
        def evaluate():
            print("loss: 0.5")
        main()
        """,
    "any_name": """
        import dataclasses, sys
        import hyper
        @dataclasses.dataclass(slots=True)
        class ModelConfig:
            depth: int = 2
        @dataclasses.dataclass
        class TrainConfig:
            lr: float
            model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
        @dataclasses.dataclass
        class State:
            step: int = 0
            lr: float = 3.0
        class DataOptions:
            def __init__(self): self.workers, self.loader = 3, object()
        def main():
            tc, state, extra = TrainConfig(float(sys.argv[1][5:])), State(), hyper.Experiment()
            options_of_data = DataOptions()
            model_part = tc.model
            print("loss: 0.5")
        main()
        """,
    "executed": """
        import sys
        out_dir = "out"; n_layer = 2; betas = (0.9, 0.95)
        dropout: float = 0.0
        learning_rate, compile = 6e-4, False
        config_keys = [key for key, value in globals().items() if not key.startswith("_")]
        exec(open("configurator.txt").read())
        tokens_per_iteration = 100
        print("loss: 0.5")
        """,
    "not_executed": """
        out_dir = "out"
        exec("print('loss: 0.5')")
        """,
    "click": """
        import click
        @click.command()
        @click.option("--lr", "learning_rate", type=float)
        def main(learning_rate):
            print("loss: 0.5")
        main()
        """,
    "absl": """
        from absl import app, flags
        flags.DEFINE_float("lr", 0.1, "")
        app.run(lambda _: print("loss: 0.5"))
        """,
    "fire": """
        import fire
        class Trainer:
            def train(self, lr: float = 0.1, *, betas=(0.9, 0.95)):
                print("loss: 0.5")
        fire.Fire(Trainer().train)
        """,
    "tyro": """
        from dataclasses import dataclass, field
        import tyro
        @dataclass
        class Model:
            depth: int = 2
        @dataclass
        class Args:
            lr: float = 0.1
            model: Model = field(default_factory=Model)
        assert tyro.cli(Args, args=["--lr", "7"]).lr == 7
        parsed_args = tyro.cli(Args)
        print("loss: 0.5")
        """,
    "tyro_function": """
        import tyro
        def main(lr: float, depth: int = 2) -> None:
            "Train."
            print("loss: 0.5")
        tyro.cli(main)
        """,
}


def test_config_of_other_parsers_and_of_variables(tacho, python):
    expected = {
        "configurator": {"learning_rate": 0.25},
        "dataclass": {"learning_rate": 0.25, "betas": [0.9, 0.95]},
        "class": {
            "learning_rate": 0.25,
            "betas": [0.9, 0.95],
            "model": {"depth": 2, "kernel": {"size": [3, 3]}},
        },
        "local": {"learning_rate": 0.25, "betas": [0.9, 0.95]},
        "any_name": {
            "lr": 0.25,
            "model": {"depth": 2},
            "batch_size": 8,
            "epochs": 2,
            "workers": 3,
        },
        "executed": {"out_dir": "out", "n_layer": 2, "dropout": 0.0, "learning_rate": 0.25, "compile": False},
        "not_executed": {},
        "click": {"learning_rate": 0.25},
        "absl": {"lr": 0.25},
        "fire": {"lr": 0.25, "betas": [0.9, 0.95]},
        "tyro": {"lr": 0.25, "model": {"depth": 2}},
        "tyro_function": {"lr": 0.25, "depth": 2},
    }
    fields = "batch_size: int = 8\n    epochs: int = 2\n"
    tacho.write("hyper.py", f"import dataclasses\n@dataclasses.dataclass\nclass Experiment:\n    {fields}")
    tacho.write("configurator.txt", "learning_rate = float(sys.argv[1][5:])")
    for name, source in SCRIPTS.items():
        package = name.partition("_")[0]
        if package in {"fire", "tyro"} and importlib.util.find_spec(package) is None:
            continue
        tacho.write(f"{name}_script.py", source)
        done = tacho.run(python, f"{name}_script.py", "--lr=0.25")
        assert done.returncode == 0, done.stderr.decode()
        assert tacho.records(f"{name}_script", "start")[0].get("config", {}) == expected[name], name
