"""Tensors of torch as media."""

from __future__ import annotations

import torch

import tachograph as tacho
from tests.media.recording import picture_of, record


def test_tensors_are_channels_first_and_copied(logs):
    tensor = torch.full((3, 10, 20), 0.5, requires_grad=True)
    with torch.no_grad():
        tensor[0] = 1.0

    def log(run):
        run.log({"float": tacho.Image(tensor), "half": tacho.Image(tensor.detach().bfloat16())})
        run.log(
            {"batch": tacho.Image(torch.zeros(2, 1, 10, 20, dtype=torch.uint8)), "view": tacho.Image(tensor[:, ::2])}
        )
        run.log({"h": tacho.Histogram(tensor), "voice": tacho.Audio(torch.zeros(2, 80), rate=8)})
        run.log({"clip": tacho.Video(torch.zeros(4, 3, 16, 16))})
        with torch.no_grad():
            tensor.zero_()

    lines = record(logs, log)
    media = {line["name"]: line["items"] for line in lines if line["event"] == "media"}
    for name in ("float", "half", "view"):
        assert picture_of(logs / "media", media[name][0]).getpixel((1, 1)) == (255, 128, 128)
    assert [(item["width"], item["height"]) for item in media["batch"]] == [(20, 10)] * 2
    assert media["voice"][0]["seconds"] == 10 and media["clip"][0]["num_frames"] == 4
    histograms = next(line for line in lines if line["event"] == "histograms")
    assert histograms["values"]["h"]["n"] == 600
