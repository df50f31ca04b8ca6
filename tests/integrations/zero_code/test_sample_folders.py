"""Samples that trainers write to their own folders are recorded under `tacho run`."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.xdist_group("injected-programs")

LOOP = """
import io, os, time, torch
import numpy as np
from PIL import Image

def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8))

def train(num_steps, sample):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, num_steps + 1):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sample(step)
"""

AI_TOOLKIT = """
import argparse, yaml
parser = argparse.ArgumentParser()
parser.add_argument("config_file_list", nargs="+")
parser.add_argument("-n", "--name")
for path in parser.parse_args().config_file_list:
    with open(path) as file:
        job = yaml.safe_load(file)["config"]
    folder = os.path.join(job["process"][0]["training_folder"], job["name"], "samples")
    os.makedirs(folder)

    def sample(step):
        for index in range(2):
            picture(step).save(f"{folder}/{int(time.time() * 1000)}__{step:09d}_{index}.jpg")

    sample(0)
    train(20, lambda step: step % 10 or sample(step))
"""

SD_SCRIPTS = """
import argparse
parser = argparse.ArgumentParser()
for option in ("output_dir", "output_name", "sample_prompts"):
    parser.add_argument(f"--{option}")
parser.add_argument("--sample_every_n_steps", type=int)
args = parser.parse_args()
os.makedirs(f"{args.output_dir}/sample")

def sample(step):
    if step % args.sample_every_n_steps == 0:
        date = time.strftime("%Y%m%d%H%M%S", time.localtime())
        picture(step).save(f"{args.output_dir}/sample/{args.output_name}_{step:06d}_00_{date}_42.png")

train(10, sample)
"""


def test_samples_of_trainers_are_recorded(tacho, python):
    tacho.write("run.py", LOOP + AI_TOOLKIT)
    process = {"training_folder": "output", "sample": {"prompts": ["a fox", "a wolf"]}}
    tacho.write("job.yaml", json.dumps({"job": "extension", "config": {"name": "fox", "process": [process]}}))
    tacho.write("train_network.py", LOOP + SD_SCRIPTS)
    tacho.write("prompts.txt", "# prompts\na red fox --n blurry --d 42\n")
    options = "--output_dir out --output_name lora --sample_prompts prompts.txt --sample_every_n_steps 5".split()
    for arguments in (("run.py", "job.yaml"), ("train_network.py", *options)):
        done = tacho.run(python, *arguments)
        assert done.returncode == 0, done.stderr.decode()
    # A trainer that is slow between two pictures has them in two records.
    pictures = [(line["global_step"], item) for line in tacho.records("run", "media") for item in line["items"]]
    captions = {(step, item["index"]): item["caption"] for step, item in pictures}
    assert len(pictures) == 6
    assert captions == {(step, index): ("a fox", "a wolf")[index] for step in (0, 10, 20) for index in (0, 1)}
    media = tacho.records("train_network", "media")
    assert [line["global_step"] for line in media] == [5, 10]
    assert media[0]["items"][0]["meta"] == {"negative_prompt": "blurry", "seed": 42, "prompt_id": 0}
    assert media[0]["items"][0]["caption"] == "a red fox"
