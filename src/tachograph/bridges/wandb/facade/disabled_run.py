"""`DisabledWandbRun`: the run that `wandb.init(mode="disabled")` returns."""

from __future__ import annotations

from collections.abc import Mapping
from gc import is_tracked
from typing import Any

from tachograph._base.settings import Settings
from tachograph.bridges.wandb.facade.artifact import LoggedArtifact
from tachograph.bridges.wandb.facade.run import WandbRun
from tachograph.bridges.wandb.facade.summary import copy_value
from tachograph.journal.artifacts import ArtifactVersion
from tachograph.recorder import DisabledRun

__all__ = ["DisabledWandbRun"]


class DisabledWandbRun(WandbRun):
    """A run that is not recorded: only its config and its summary can be read."""

    __slots__ = ()

    disabled = True

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Remember the values for the summary."""
        if type(data) is dict and not is_tracked(data):
            self._last.update(data)
        elif isinstance(data, Mapping):
            self._last.update({name: copy_value(value) for name, value in data.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_disabled, (self._id, self._name, dict(self._config), dict(self._last))

    def use_artifact(self, artifact_or_name: Any, *_arguments: Any, **_options: Any) -> LoggedArtifact:
        """Return an artifact without files, unless one is passed."""
        if isinstance(artifact_or_name, LoggedArtifact):
            return artifact_or_name
        name, _, version = str(artifact_or_name).rpartition("/")[2].partition(":")
        return LoggedArtifact.from_version(ArtifactVersion(name=name, version=version or "v0", digest=""))


def _unpickle_disabled(run_id: str, name: str, config: dict[str, Any], last_values: dict[str, Any]) -> DisabledWandbRun:
    recorder_run = DisabledRun(name, settings=Settings(enabled=False), backend=None)
    run = DisabledWandbRun(recorder_run, id=run_id, config=config, is_ours=True, on_finish=lambda _: None)
    run._last.update(last_values)
    return run
