"""Takes the screenshots of the dashboard for the documentation.

Run ``python docs/pictures.py`` for all of them, or name some: ``python docs/pictures.py runs health``. Check the result
by eye before you commit it.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import tachograph
from tachograph.cli._demo_training import train

PICTURES = Path(__file__).parent / "pictures"
PORT = 8599
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
QUIET = {"console": False, "git": False}
SCREENSHOTS = {
    "workspace": ("#/", "light", (1280, 800)),
    "runs": ("#/table", "light", (1280, 560)),
    "overview": ("#/run/greyjacket/overview?with=baseline", "light", (1280, 980)),
    "charts": ("#/run/greyjacket/charts?with=baseline", "light", (1280, 860)),
    "charts-dark": ("#/run/greyjacket/charts?with=baseline&log=1", "dark", (1280, 860)),
    "nan": ("#/run/diverged/charts?q=loss", "light", (1280, 600)),
    "timeline": ("#/run/greyjacket/timeline", "dark", (1280, 720)),
    "health": ("#/run/unstable/health", "light", (1280, 960)),
    "events": ("#/run/resumed/events", "light", (1280, 620)),
    "completions": ("#/run/grpo/completions", "light", (1280, 620)),
    "control": ("#/run/greyjacket/control", "light", (1280, 800)),
    "phone": ("#/run/greyjacket/charts", "dark", (390, 780)),
}


def record_completions(run: tachograph.Run, source: random.Random) -> None:
    """Record completions that improve over time."""
    with tachograph.Completions(run, every=20, max_buffer=64) as completions:
        for step in range(200):
            for _ in range(2):
                first, second = source.randint(2, 9), source.randint(2, 9)
                is_right = source.random() < step / 160
                answer = first * second if is_right else first + second
                thought = f"{first} boxes with {second} apples each: " + ("multiply. " if is_right else "add them up. ")
                completions.add(
                    step,
                    prompt=f"There are {first} boxes. Each holds {second} apples. How many apples are there?",
                    completion=f"{thought}The answer is {answer}.",
                    reward=1.0 if is_right else 0.1,
                    advantage=source.gauss(0.6 if is_right else -0.6, 0.3),
                )
            run.log({"train_loss": 0.1 / (1 + step / 50), "reward": 0.1 + 0.9 * min(1, step / 160)}, step=step)
            completions.maybe_flush(step)


def make_runs(logs: Path) -> subprocess.Popen[bytes]:
    """Record runs in every state; return the process of a run that is still training."""
    train(name="baseline", log_dir=str(logs), num_steps=3000, seed=1)
    source = random.Random(0)
    with tachograph.init(
        "diverged", log_dir=str(logs), config={"learning_rate": 0.3}, tags=["lr-sweep"], **QUIET
    ) as run:
        for step in range(600):
            loss = 2 * math.exp(-step / 200) + source.random() * 0.2
            is_nan = step in (240, 241) or step > 520
            run.log(
                {"train_loss": math.nan if is_nan else loss, "loss/kl": math.inf if step == 400 else loss / 9},
                step=step,
            )
    with tachograph.init(
        "unstable", log_dir=str(logs), config={"learning_rate": 0.01}, tags=["lr-sweep"], **QUIET
    ) as run:
        for step in range(3000):
            loss = 1.6 + 4 / (1 + step / 60) + source.gauss(0, 0.04) + max(0, step - 2600) * 0.01
            run.log({"train_loss": loss * (2.2 if step in (900, 1100, 1105) else 1), "lr": 3e-4}, step=step)
            if step % 200 == 199:
                rise = max(0, step - 1200) * 0.0004
                run.log_validation({"loss": 1.8 + 3 / (1 + step / 60) + rise}, step=step)
    with tachograph.init("grpo", log_dir=str(logs), config={"learning_rate": 1e-6}, **QUIET) as run:
        record_completions(run, source)
    with tachograph.init("resumed", log_dir=str(logs), config={"learning_rate": 0.1}, **QUIET) as run:
        for step in range(400):
            run.log({"train_loss": 3 / (1 + step / 50)}, step=step)
        run.log_checkpoint("out/step-300.safetensors", step=300)
        run.log_error(RuntimeError("CUDA out of memory: tried to allocate 2.00 GiB"))
    with tachograph.init("resumed", log_dir=str(logs), resume=True, **QUIET) as run:
        for step in range(301, 700):
            run.log({"train_loss": 3 / (1 + step / 50)}, step=step)
        run.log_validation({"loss": 0.21}, step=step)
    trainer = "import sys, time; from tachograph.cli._demo_training import train\n"
    trainer += "train(name=sys.argv[1], log_dir=sys.argv[2], num_steps=20000, on_step=lambda *_: time.sleep(0.004))"
    killed = subprocess.Popen([sys.executable, "-c", trainer, "oom-killed", str(logs)], stdout=subprocess.DEVNULL)
    live = subprocess.Popen([sys.executable, "-c", trainer, "greyjacket", str(logs)], stdout=subprocess.DEVNULL)
    time.sleep(10)
    killed.kill()
    time.sleep(25)
    return live


def wait_until_ready() -> None:
    """Wait until the server accepts connections."""
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), 1):
            return
        time.sleep(0.1)
    raise TimeoutError("the server did not start within 30 seconds")


def take_screenshot(browser: Browser, name: str) -> None:
    """Take one screenshot."""
    path, scheme, (width, height) = SCREENSHOTS[name]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{PORT}/{path}")
    page.wait_for_timeout(2000)  # until the page knows whether journals have to be read
    page.get_by_text("Reading journals").wait_for(state="hidden")
    page.wait_for_timeout(3000)
    page.screenshot(path=PICTURES / f"{name}.png")
    context.close()


def main() -> None:
    """Take all screenshots, or those named on the command line."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        logs = Path(folder) / "logs"
        live = make_runs(logs)
        command = [sys.executable, "-m", "tachograph", "ui", "--log-dir", "logs", "--port", str(PORT)]
        ui = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
        try:
            wait_until_ready()
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for name in sys.argv[1:] or SCREENSHOTS:
                take_screenshot(browser, name)
            browser.close()
        finally:
            for process in (live, ui):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
