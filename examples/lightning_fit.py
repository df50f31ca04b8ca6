"""Record a Lightning `Trainer` with one additional line.

Run it, then open the dashboard with `tacho ui`. It fits a small network to synthetic data, on any machine. It works the
same with `pytorch_lightning` instead of `lightning.pytorch`.
"""

import torch
from lightning.pytorch import LightningModule, Trainer

from tachograph.integrations.lightning import TachographCallback


class Regression(LightningModule):
    """Learns a sum of sines."""

    def __init__(self, lr: float = 1e-2, num_hidden: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()  # they are recorded in the run's config
        self.net = torch.nn.Sequential(torch.nn.Linear(4, num_hidden), torch.nn.Tanh(), torch.nn.Linear(num_hidden, 1))

    def loss_of(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean squared error of a batch."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.net(inputs), targets)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Train on a batch. The returned loss is recorded at every step."""
        return self.loss_of(batch)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Validate on a batch. Logged metrics are recorded under their own names."""
        self.log("val_loss", self.loss_of(batch))

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Test on a batch."""
        self.log("test_loss", self.loss_of(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def samples(num_samples: int, seed: int) -> torch.utils.data.DataLoader:
    """Return a loader of synthetic data."""
    inputs = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(seed))
    data = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=16)


def main() -> None:
    """Train, validate and test."""
    torch.manual_seed(0)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        accumulate_grad_batches=2,  # a recorded step is two batches
        gradient_clip_val=1.0,  # the gradient norm that clipping computes is recorded
        log_every_n_steps=5,
        logger=False,
        enable_progress_bar=False,
        default_root_dir="checkpoints/lightning-example",
        callbacks=[TachographCallback("lightning-example")],  # the only change
    )
    module = Regression()
    trainer.fit(module, samples(512, seed=0), samples(64, seed=1))
    trainer.test(module, samples(64, seed=2))


if __name__ == "__main__":
    main()
