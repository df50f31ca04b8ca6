"""Anonymous usage telemetry in a framework: coarse, private, and only with the consent of its users.

    python examples/usage_telemetry.py
    tacho usage status greyjacket
    tacho usage log greyjacket

The policy here is `local`: events are recorded on this machine, and nothing is sent.
"""

from __future__ import annotations

from tachograph.usage import Choice, Count, TelemetryManager, UsageConfig, send_errors

USAGE = UsageConfig(
    app="greyjacket",
    organizations=["google"],
    # Where to find the fields of the config events. Nothing else of a config is read.
    config_map={"base_model": "model.name", "lora_rank": "lora.r", "sequence_length": "sequence_len"},
    # A custom event. There is no field for free text.
    events={
        "dataset-packed": {
            "num_packs": Count("Number of packs."),
            "method": Choice("Packing method.", "greedy", "best-fit"),
        }
    },
)


@send_errors
def train(config: dict) -> None:
    """Train, and fail with a message that contains a path."""
    manager = TelemetryManager.get_instance()
    manager.send_config(config)
    manager.send_event("dataset-packed", {"num_packs": 1312, "method": "best-fit", "path": config["path"]})
    raise FileNotFoundError(config["path"])


if __name__ == "__main__":
    manager = TelemetryManager.configure(USAGE)
    print(f"usage telemetry is {manager.decision.mode}: {manager.decision.reason}")
    try:
        train(
            {
                "model": {"name": "google/gemma-3-1b"},
                "lora": {"r": 16},
                "sequence_len": 4096,
                "path": "/home/alice/patients.jsonl",
            }
        )
    except FileNotFoundError as error:
        print(f"the error propagates unchanged: {error}")
