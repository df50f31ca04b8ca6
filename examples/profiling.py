"""Time your own functions and blocks in a plain PyTorch loop: `profiling/…` in the charts, about one point a second."""

import torch

import tachograph as tacho


class Trainer:
    """A small network that learns to tell whether a sum is positive."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    @tacho.profile_function  # profiling/Trainer.batch; in a subclass, its name would stand there
    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Make some samples."""
        inputs = torch.randn(256, 32)
        return inputs, (inputs.sum(1) > 0).long()

    @tacho.profile_function
    def step(self) -> float:
        """Train on a batch."""
        inputs, labels = self.batch()
        with tacho.profile_block("forward"):  # profiling/forward
            loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        with tacho.profile_block("backward"):
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        return loss.item()


@tacho.profile_function(name="evaluate", config=tacho.ProfilingConfig(min_duration_ms=1, log_interval=2))
def accuracy(trainer: Trainer) -> float:
    """Measure on new samples; of its calls, the first and every second is recorded, if it took a millisecond."""
    inputs, labels = trainer.batch()
    with torch.no_grad():
        return (trainer.model(inputs).argmax(1) == labels).float().mean().item()


def main() -> None:
    """Train for a second or two; then `tacho show profiling`, or `tacho ui`, has what took how long."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so little work is done fastest by one
    trainer = Trainer()
    with tacho.init("profiling") as run:
        # With `watch`, the dashboard's Control page can also wrap some steps in torch's profiler.
        tacho.watch(trainer.model, trainer.optimizer, run=run, logs=False)
        for step in range(500):
            run.log({"train_loss": trainer.step()}, step=step)
            if step % 100 == 99:
                run.log_validation({"accuracy": accuracy(trainer)}, step=step)


if __name__ == "__main__":
    main()
