"""What media costs a loop and a process: the two budgets beside the cost of a call. Prints ratios.

Run it with ``python -m benchmarks.media.loop``. It measures in child processes, which take turns:

- The 99th percentile of the time that one step of a loop at 10 ms takes beyond its sleep, with a picture of 512 × 512
  logged at every tenth step, beside a loop that does nothing. At most 3. Then the same beside a loop that copies the
  pictures for a thread that only encodes them: without a free core that costs as much.
- The processor time of a process that logs pictures, beside one that only encodes them to the same format. At most 1.2.
"""

from __future__ import annotations

import io
import os
import queue
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

STEP_S = 0.01
NUM_STEPS = 600
NUM_PICTURES = 200
NUM_ROUNDS = 3


def paced(logs_pictures: bool) -> float:
    """Return the 99th percentile of the lateness of a step, in seconds."""
    import tachograph as tacho

    pixels = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        late_s = []
        with tacho.init("bench", log_dir=folder, console=False, code=False, enabled=logs_pictures) as run:
            run.log({"first": tacho.Image(pixels[:8, :8])}, step=0)
            run.flush()
            for step in range(NUM_STEPS):
                started_s = time.perf_counter()
                # Every tenth step: no processor encodes a hundred pictures in a second.
                run.log({"samples": tacho.Image(pixels)} if step % 10 == 0 else {"train_loss": 1.0}, step=step)
                time.sleep(STEP_S)
                late_s.append(time.perf_counter() - started_s - STEP_S)
    return float(np.percentile(late_s, 99))


def paced_beside_encoder() -> float:
    """Return the same for a loop whose pictures a thread encodes, without Tachograph."""
    pixels = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    waiting: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()

    def encode() -> None:
        from PIL import Image

        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        while (picture := waiting.get()) is not None:
            Image.fromarray(picture).save(io.BytesIO(), "webp", quality=90, method=1)

    thread = threading.Thread(target=encode)
    thread.start()
    late_s = []
    for step in range(NUM_STEPS):
        started_s = time.perf_counter()
        if step % 10 == 0:
            waiting.put(pixels.copy())
        time.sleep(STEP_S)
        late_s.append(time.perf_counter() - started_s - STEP_S)
    waiting.put(None)
    thread.join()
    return float(np.percentile(late_s, 99))


def processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pictures() -> list[np.ndarray]:
    """Return smooth pictures with noise, which take as long to encode as photographs."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 200, 512)[:, None, None] + np.linspace(0, 30, 512)[None, :, None]
    return [(ramp + rng.normal(0, 8, (512, 512, 3))).clip(0, 255).astype(np.uint8) for _ in range(8)]


def encode_only() -> float:
    """Return the processor time of encoding pictures."""
    from PIL import Image

    samples = pictures()
    Image.fromarray(samples[0]).save(io.BytesIO(), "webp", quality=90, method=1)
    started_s = processor_s()
    for number in range(NUM_PICTURES):
        samples[number % 8][0, 0, 0] = number
        Image.fromarray(samples[number % 8]).save(io.BytesIO(), "webp", quality=90, method=1)
    return processor_s() - started_s


def log_pictures() -> float:
    """Return the processor time of logging pictures, until all of them are stored."""
    import tachograph as tacho

    samples = pictures()
    with (
        tempfile.TemporaryDirectory() as folder,
        tacho.init("bench", log_dir=folder, console=False, code=False) as run,
    ):
        run.log({"first": tacho.Image(samples[0])}, step=0)
        run.flush(60)
        started_s = processor_s()
        for number in range(NUM_PICTURES):
            samples[number % 8][0, 0, 0] = number
            run.log({"samples": tacho.Image(samples[number % 8])}, step=number)
        run.flush(600)
        return processor_s() - started_s


MEASUREMENTS = {
    "idle": lambda: paced(False),
    "paced": lambda: paced(True),
    "paced_beside_encoder": paced_beside_encoder,
    "encode": encode_only,
    "log": log_pictures,
}


def main() -> None:
    if len(sys.argv) > 1:
        print(MEASUREMENTS[sys.argv[1]]())
        return
    for title, (measured, baseline), budget in (
        ("99th percentile of a loop at 10 ms", ("paced", "idle"), 3.0),
        ("the same, beside a thread that encodes", ("paced", "paced_beside_encoder"), None),
        ("processor time of the process", ("log", "encode"), 1.2),
    ):
        ratios = []
        for _ in range(NUM_ROUNDS):
            values = [
                float(subprocess.check_output([sys.executable, "-m", "benchmarks.media.loop", name]))
                for name in (baseline, measured)
            ]
            ratios.append(values[1] / values[0])
        goal = "" if budget is None else f", budget {budget:g}"
        print(f"{title}: {statistics.median(ratios):.2f}{goal}, rounds {sorted(ratios)}", flush=True)


if __name__ == "__main__":
    main()
