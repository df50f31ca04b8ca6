"""An ordinary training script without telemetry. Record it with `tacho run -- python zero_code.py`."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train a small network to predict whether a sum is positive."""
    torch.manual_seed(0)
    inputs = torch.randn(2048, 32)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    loader, held_out = DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=256)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader))
    for epoch in range(3):
        for batch, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            right = sum((model(batch).argmax(1) == labels).sum().item() for batch, labels in held_out)
        print(f"epoch {epoch}: {right / len(data):.1%} right")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
