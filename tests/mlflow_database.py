"""An empty database of MLflow. Creating one takes seconds, so each process of tests makes one and copies it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import warnings
from pathlib import Path

__all__ = ["copy_empty_database"]


def copy_empty_database(path: Path) -> None:
    """Write an empty database with all tables."""
    shutil.copyfile(_empty_database(), path)


@functools.cache
def _empty_database() -> Path:
    from mlflow import MlflowClient

    folder = tempfile.mkdtemp(prefix="tachograph-mlflow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "mlflow.db")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # MLflow's own
        MlflowClient(f"sqlite:///{path}").search_experiments()  # which creates the tables
    return path
