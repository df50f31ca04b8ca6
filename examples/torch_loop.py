"""Record a plain PyTorch loop with two lines: data loading, forward, backward, optimizer, loss and gradient norm."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import tachograph as tacho


def main() -> None:
    """Train a small network to predict whether a sum is positive."""
    torch.manual_seed(0)
    inputs = torch.randn(2048, 32)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    tacho.init("torch-loop", config={"lr": 1e-3, "batch_size": 32})
    tacho.watch(model, optimizer)
    for _epoch in range(3):
        for batch, labels in tacho.track(loader):
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    main()
