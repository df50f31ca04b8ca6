"""Record a training loop with Accelerate: logged metrics, optimizer steps, phases and checkpoints.

Run it with `python examples/accelerate_loop.py`, or with two processes:
`torchrun --nproc-per-node 2 examples/accelerate_loop.py`. Then show the run with `tacho show accelerate-example`.
"""

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from tachograph.integrations.accelerate import TachographTracker


def main() -> None:
    """Train a small network to add numbers."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tracker = TachographTracker("accelerate-example", log_dir="./logs")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=tracker)
    tracker.attach(accelerator)  # in every process
    accelerator.init_trackers("examples", config={"lr": 0.01, "batch_size": 8})

    inputs = torch.randn(512, 16)
    targets = inputs.sum(dim=1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(3):
        for batch, wanted in loader:
            with accelerator.accumulate(model):
                loss = mse_loss(model(batch), wanted)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                # The step defaults to the number of optimizer steps.
                accelerator.log({"loss": loss.item(), "epoch": epoch})
        with torch.no_grad():
            found = mse_loss(model(inputs), targets)
        accelerator.log({"val_loss": found.item(), "epoch": epoch})
        accelerator.save_state("./logs/checkpoints/accelerate-example")
        if tracker.poll_requests().stop:  # `tacho control accelerate-example --stop`
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
