"""The options of NeMo Gym."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["GymDataset", "NemoGymOptions"]


class GymDataset(BaseModel):
    """One entry of `nemo_gym_datasets`."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="JSONL file; a relative path starts at the working directory, or at `nemo_gym_dir`.")
    server_name: str | None = Field(None, description="The server of rows that name no other in `agent_ref`.")
    max_samples: int | None = Field(None, ge=1, description="The number of rows to use; all if unset.")


class NemoGymOptions(BaseModel):
    """The options of NeMo Gym."""

    nemo_gym_enabled: bool = Field(True, description="`false` turns the plugin off.")
    nemo_gym_datasets: list[GymDataset] = Field(
        default_factory=list, description="The data: `path`, and optionally `server_name` and `max_samples`."
    )
    nemo_gym_head_host: str = Field("127.0.0.1", min_length=1, description="The host of the head server.")
    nemo_gym_head_port: int = Field(11000, ge=1, le=65535, description="The port of the head server.")
    nemo_gym_server_timeout: float = Field(
        0, ge=0, description="Seconds to wait for servers that are still starting; by default they must be running."
    )
    nemo_gym_multi_turn: bool = Field(False, description="Let agent servers generate completions (`/run`).")
    nemo_gym_max_turns: int | None = Field(
        None, ge=1, description="Leave out rollouts with more turns of the model; their reward is missing."
    )
    nemo_gym_verify_timeout: float = Field(30, gt=0, description="Seconds that one request to `/verify` may take.")
    nemo_gym_run_timeout: float = Field(300, gt=0, description="Seconds that one request to `/run` may take.")
    nemo_gym_batch_timeout: float | None = Field(
        None, gt=0, description="Seconds for all requests of a batch; if unset, twice the time that they may need."
    )
    nemo_gym_max_concurrency: int = Field(16, ge=1, le=1024, description="Requests at the same time, per process.")
    nemo_gym_max_retries: int = Field(
        3, ge=0, le=20, description="How often a request is repeated if there was no connection, or a status of 5xx."
    )
    nemo_gym_max_failed_batches: int = Field(
        3, ge=1, description="Stop training if a server rewarded nothing in so many batches in a row."
    )
    nemo_gym_max_response_mb: float = Field(16, gt=0, le=1024, description="The maximum size of a response.")
    nemo_gym_model_name: str | None = Field(
        None, description="The name of the model in requests; `base_model` if unset."
    )
    nemo_gym_dir: str = Field("~/Gym", description="Folder at which relative paths of datasets may start.")
    nemo_gym_config_paths: list[str] = Field(
        default_factory=list, description="Without effect: the configs of servers, for `ng_run`."
    )
    nemo_gym_auto_clone: bool = Field(False, description="Must be false: NeMo Gym is not installed for you.")
    nemo_gym_auto_start: bool = Field(False, description="Must be false: servers are not started for you.")

    @model_validator(mode="after")
    def _check(self) -> NemoGymOptions:
        if not self.nemo_gym_enabled:
            return self
        if self.nemo_gym_auto_clone:
            raise ValueError(
                "nemo_gym_auto_clone=True: no code is downloaded here. Clone and install NeMo Gym yourself, and set "
                "`nemo_gym_auto_clone: false`"
            )
        if self.nemo_gym_auto_start:
            raise ValueError(
                "nemo_gym_auto_start=True: no servers are started here. Start them with `ng_run "
                "'+config_paths=[…]'` in the folder of NeMo Gym, and set `nemo_gym_auto_start: false`"
            )
        if not self.nemo_gym_datasets:
            raise ValueError(
                "nemo_gym_datasets is missing: add `nemo_gym_datasets: [{path: data.jsonl, server_name: my_server}]`"
            )
        if self.nemo_gym_max_turns is not None and not self.nemo_gym_multi_turn:
            raise ValueError("nemo_gym_max_turns has no effect without `nemo_gym_multi_turn: true`: remove it")
        return self
