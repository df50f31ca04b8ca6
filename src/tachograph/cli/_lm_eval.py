"""`tacho lm-eval`: evaluate a model with the LM Evaluation Harness."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from tachograph._base.settings import read_config
from tachograph.cli._format import new_console
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError

__all__ = ["lm_eval"]


@click.command("lm-eval")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
def lm_eval(config: Path) -> None:
    """Evaluate a model with the LM Evaluation Harness.

    CONFIG is the YAML file of a training. Its key lm_eval_tasks lists the tasks, and other lm_eval_... keys their
    options. The model is lm_eval_model, else hub_model_id, else the model in output_dir. Prints a table and writes JSON
    to lm_eval_results in output_dir. Other keys have no effect here.
    """
    values = read_config(config)
    try:
        from tachograph.plugins.lm_eval import evaluate_config
    except ImportError as error:
        raise ConfigError(
            f"lm-eval needs {error.name}, which is not installed: pip install 'tachograph[plugins,lm-eval]'"
        ) from error

    result, path = evaluate_config(values, origin=str(config))
    new_console().print(result.table())
    echo(str(path))
