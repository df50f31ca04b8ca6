"""Metrics that a script only prints are recorded, at the right step, and nothing else that looks like them."""

from __future__ import annotations

import pytest

from tachograph.integrations.zero_code._printed_values import parse_line
from tests.integrations.zero_code.conftest import Tacho, program_stderr

pytestmark = pytest.mark.xdist_group("injected-programs")

POSITIVE = [
    ("step 250: train loss 1.9012, val loss 2.0115", {"train_loss": 1.9012, "val_loss": 2.0115}, 250, None),
    ("iter 100: loss 2.5012, time 35.01ms, mfu 12.30%", {"loss": 2.5012}, 100, None),
    (
        "1875/1875 [======] - 3s 2ms/step - loss: 0.2912 - accuracy: 0.9154 - val_loss: 0.1410 - val_accuracy: 0.9571",
        {"loss": 0.2912, "accuracy": 0.9154, "val_loss": 0.1410, "val_accuracy": 0.9571},
        None,
        None,
    ),
    ("Epoch 3 | valid loss 0.4 | acc 91.2%", {"val_loss": 0.4, "val_accuracy": 0.912}, None, 3),
    (
        "Test set: Average loss: 0.0312, Accuracy: 9900/10000 (99%)",
        {"test_loss": 0.0312, "test_accuracy": 0.99},
        None,
        None,
    ),
    ("Train Epoch: 3 [640/60000 (1%)]\tLoss: 0.512300", {"train_loss": 0.5123}, None, 3),
    ("Epoch [2/10], Step [100/600], Loss: 0.4321", {"loss": 0.4321}, 100, 2),
    ("val_loss: 0.3", {"val_loss": 0.3}, None, None),
    ("val_loss=0.3", {"val_loss": 0.3}, None, None),
    ("Validation loss: 1.25", {"val_loss": 1.25}, None, None),
    ("validation loss is 1.25", {"val_loss": 1.25}, None, None),
    ("  Val loss = 3.2e-05", {"val_loss": 3.2e-05}, None, None),
    (
        "100%|##########| 469/469 [00:12<00:00, 38.9it/s, loss=0.1, val_loss=0.25]",
        {"loss": 0.1, "val_loss": 0.25},
        469,
        None,
    ),
    ("Epoch 7:  45%|####5     | 90/200 [00:01<00:01, 88.1it/s, loss=0.731]", {"loss": 0.731}, 90, 7),
    ("{'loss': 1.2, 'eval_loss': 0.75, 'epoch': 1.0}", {"loss": 1.2, "val_loss": 0.75}, None, None),
    ('{"step": 500, "val_loss": 0.31, "val_acc": 0.88}', {"val_loss": 0.31, "val_accuracy": 0.88}, 500, None),
    ("2024-05-01 12:00:01,123 - INFO - step 250: val loss 2.01", {"val_loss": 2.01}, 250, None),
    ("INFO:root:epoch 4 val_loss=0.30", {"val_loss": 0.30}, None, 4),
    (
        "[Epoch 12] Train Loss: 0.5012 | Train Acc: 88.10% | Val Loss: 0.4023 | Val Acc: 91.05%",
        {"train_loss": 0.5012, "train_accuracy": 0.881, "val_loss": 0.4023, "val_accuracy": 0.9105},
        None,
        12,
    ),
    (
        "Epoch: 01 | Train Loss: 0.500 | Train PPL: 7.2 | Val. Loss: 0.400",
        {"train_loss": 0.5, "train_perplexity": 7.2, "val_loss": 0.4},
        None,
        1,
    ),
    (
        "| end of epoch   1 | time: 12.34s | valid loss  5.43 | valid ppl   228.15",
        {"val_loss": 5.43, "val_perplexity": 228.15},
        None,
        1,
    ),
    ("Accuracy of the network on the 10000 test images: 54 %", {"test_accuracy": 0.54}, None, None),
    ("Test Accuracy of the model on the 10,000 test images: 97.5 %", {"test_accuracy": 0.975}, None, None),
    ("Epoch 2: loss on the validation set is 0.31", {"val_loss": 0.31}, None, 2),
    ("val_loss tensor(0.1234, device='cuda:0')", {"val_loss": 0.1234}, None, None),
    ("val_loss: tensor(0.1234, grad_fn=<NllLossBackward0>)", {"val_loss": 0.1234}, None, None),
    ("val/loss: 1,234.5", {"val_loss": 1234.5}, None, None),
    ("Step 1,000/10,000: val loss 12,345,678.25", {"val_loss": 12_345_678.25}, 1000, None),
    ("Average Score: 12.5", {"score": 12.5}, None, None),
    ("Episode 10\tScore: 12", {"score": 12.0}, None, None),
    ("Accuracy: 91.2%", {"accuracy": 0.912}, None, None),
    ("Test accuracy: 0.9312", {"test_accuracy": 0.9312}, None, None),
    ("test acc 0.9312", {"test_accuracy": 0.9312}, None, None),
    ("Test Acc@1: 76.13 Acc@5: 92.86", {"test_accuracy_top1": 76.13, "test_accuracy_top5": 92.86}, None, None),
    (" * Acc@1 76.130 Acc@5 92.862", {"accuracy_top1": 76.13, "accuracy_top5": 92.862}, None, None),
    ("Loss: nan", {"loss": "nan"}, None, None),
    ("step 10 val loss: inf", {"val_loss": "inf"}, 10, None),
    ("dev perplexity: 35.2", {"val_perplexity": 35.2}, None, None),
    ("step:125/5100 val_loss:6.3711 train_time:30021ms step_avg:240.17ms", {"val_loss": 6.3711}, 125, None),
    ("Eval loss: tensor(0.4321)", {"val_loss": 0.4321}, None, None),
    ("valid | loss 3.921 | ppl 50.45", {"val_loss": 3.921, "val_perplexity": 50.45}, None, None),
    ("Final test loss: 0.0421", {"test_loss": 0.0421}, None, None),
    ("global_step=1024, episodic_return=21.0", {"episodic_return": 21.0}, 1024, None),
    ("Episode 10 reward: 200", {"reward": 200.0}, None, None),
    ("Episode 10\tAverage reward: 20.5", {"reward": 20.5}, None, None),
    ("val_f1: 0.81, val_auc: 0.93", {"val_f1": 0.81, "val_auc": 0.93}, None, None),
    ("Test MSE: 0.123, Test MAE: 0.25", {"test_mse": 0.123, "test_mae": 0.25}, None, None),
    ("mse: 0.4501, mae: 0.4612", {"mse": 0.4501, "mae": 0.4612}, None, None),
    ("val loss at step 250: 2.0115", {"val_loss": 2.0115}, 250, None),
    ("epoch=3 val/loss=0.21 val/acc=0.9", {"val_loss": 0.21, "val_accuracy": 0.9}, None, 3),
    ("Epoch 5/20 - train_loss: 0.41 - val_loss: 0.52", {"train_loss": 0.41, "val_loss": 0.52}, None, 5),
    ("=> validation top-1 accuracy: 71.2%", {"val_top_1_accuracy": 0.712}, None, None),
    ("Test error: 3.2%", {"test_error": 0.032}, None, None),
    ("val_bpb: 0.9979", {"val_bpb": 0.9979}, None, None),
    ("Mean IoU: 0.734", {"iou": 0.734}, None, None),
    ("[valid] loss: 0.5 acc: 0.7", {"val_loss": 0.5, "val_accuracy": 0.7}, None, None),
    ("Iteration 300, loss = 0.02510012", {"loss": 0.02510012}, 300, None),
    ("val loss 2.0115 train loss 1.9", {"val_loss": 2.0115, "train_loss": 1.9}, None, None),
]
NEGATIVE = [
    "best val loss: 0.31",
    "best_val_loss: 0.31",
    "val_loss improved from inf to 0.32, saving model to best.pt",
    "val_loss did not improve from 0.32",
    "No improvement in val loss for 3 epochs",
    "EarlyStopping: val loss 0.3 patience 5",
    "loss scale: 65536",
    "Loss scaling 65536.0",
    "loss_scale=65536",
    "loss weight 0.5",
    "loss_weight: 0.5",
    "val_loss_weight=0.3",
    "label smoothing loss factor 0.1",
    "Using focal loss with gamma 2.0",
    "using loss 2.0",
    "lossless compression 0.9",
    "gloss: 1.0",
    "glossary 3.5",
    "Namespace(lr=0.1, loss=0.5, epochs=3)",
    "TrainConfig(loss=0.5, val_acc=1.0)",
    "--val_loss_every 125",
    "loss: mse",
    "loss = F.cross_entropy(x, y)",
    "    loss = 0.5 * criterion(out, y)",
    "accumulate 4 batches",
    "acc_steps: 4",
    "grad_acc: 8",
    "gradient accumulation steps: 4",
    "accelerate 1.15.0",
    "UserWarning: loss: 0.5 is a scalar",
    "precision: 16",
    "precision=32",
    "expected loss=0.5, got 0.7",
    "if val loss < 0.5 then stop",
    "threshold val loss 0.5",
    "target loss: 0.1",
    "packet loss 0.5% on eth0",
    "stop loss: 12.5",
    "map: 1024 entries",
    "error: 404",
    "err 2",
    "exit code 1, error 5",
    "returned 3 rows",
    "return 0.5",
    "return code: 1",
    "score 12",
    "Score: 12",
    "val loss: 1,234",
    "acc: 0,912",
    "losses: [0.5,0.4]",
    "Resuming from checkpoint with val loss 0.33",
    "=> loaded checkpoint 'best.pt' (epoch 3, val loss 0.33)",
    "Restored the model, val accuracy: 91.2%",
    "Accuracy of plane : 60 %",
    "Accuracy for class: plane is 34.3 %",
    "Number of samples in test set: 100",
    "threshold for accuracy on the test set: 0.5",
    "best accuracy on the test set: 0.9",
    "http://host/loss/0.5",
    "model.loss.2.weight 0.3",
    "loss 3 epochs",
    "val loss takes 3.5s",
    "val loss in 3.5 seconds",
    "Evaluating loss every 100 steps",
    "loss computed on 3 batches",
    "memory loss: 1.2GB",
    "lr: 0.001, wd: 0.1",
    "step 250: lr 0.001, time 35.0 ms",
    "epoch 3 done in 12.5s",
    "test 3 passed, 0.5 s",
    "tests: 3.0",
    "f1.example.com: 0.5",
    "loss-weight: 0.5",
    "file val_loss_0.32.pt saved",
    "checkpoint saved to ckpt-loss=0.31.pt",
    "accession: 1234.5",
    "weighted loss coefficient: 0.5",
    "loss_fn: 1",
    "total parameters: 12.5",
    "recall 10",
    "delta loss: 0.01",
]


def test_metrics_of_lines_are_read():
    for line, values, step, epoch in POSITIVE:
        printed = parse_line(line)
        if values is None:
            assert printed is None, line
            continue
        assert printed is not None, line
        assert (printed.step, printed.epoch) == (step, epoch), line
        assert printed.values == pytest.approx({name: float(value) for name, value in values.items()}, nan_ok=True), (
            line
        )


def test_other_lines_are_not_read():
    for line in NEGATIVE:
        assert parse_line(line) is None, line


def printed_values(tacho: Tacho, name: str) -> dict[str, list[tuple[int, float]]]:
    """Return the metrics that were marked as read from the output, with their steps."""
    names = [event["metric"] for event in tacho.records(name, "event") if event["name"] == "read_from_output"]
    return {
        name_of_metric: [
            (record["global_step"], record[name_of_metric])
            for record in tacho.records(name, "step")
            if name_of_metric in record
        ]
        for name_of_metric in names
    }


LOOP = """
    import torch
    from torch.utils.tensorboard import SummaryWriter
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    writer = SummaryWriter("tb")
    for step in range(41):
        if step % 10 == 0:
            print(f"step {step}: train loss 9.5, val loss {step}.5, dev acc 50%")
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"iter {step}: loss 9.5, time 1.00ms")
        print(f"global_step={step}, episodic_return=21.0")
        if step % 10 == 0:
            writer.add_scalar("eval/accuracy", 0.5, step)
            writer.add_scalar("charts/episodic_return", 21.0, step)
    print("Test set: Average loss: 0.03, Accuracy: 9900/10000 (99%)")
    """


def test_printed_validation_gets_the_step_of_the_loop(tacho, python):
    tacho.write("train.py", LOOP)
    done = tacho.run(python, "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert printed_values(tacho, "train") == {
        "val_loss": [(step, step + 0.5) for step in range(0, 41, 10)],
        "test_loss": [(40, 0.03)],
        "test_accuracy": [(40, 0.99)],
    }  # the training loss is that of the loop, and the script logs the accuracy and the return
    losses = [record["train_loss"] for record in tacho.records("train", "step") if "train_loss" in record]
    assert losses and 9.5 not in losses


def test_script_that_only_prints_becomes_a_run(tacho, python):
    tacho.write(
        "train.py",
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        for epoch in range(1, 4):
            for step in range(0, 100, 50):
                print(f"Epoch [{epoch}/3], Step [{step}/100], Loss: {epoch}.{step}")
                sys.stderr.write(f"\\r{step}%|##  | {step}/100 [00:00, loss={epoch}.{step}]")
            print(file=sys.stderr)
            logging.info("epoch %d val_loss=%.1f, best val_loss=0.1", epoch, epoch)
        """,
    )
    bare, done = tacho.bare(python, "train.py"), tacho.run(python, "train.py")
    assert (done.returncode, done.stdout, program_stderr(done.stderr)) == (0, bare.stdout, bare.stderr)
    values = printed_values(tacho, "train")
    assert values.keys() == {"loss", "val_loss"}
    assert values["val_loss"] == [(50, 1.0), (150, 2.0), (250, 3.0)]
    assert sorted({step for step, _ in values["loss"]}) == [0, 50, 100, 150, 200, 250]
    [instrumented] = [event for event in tacho.records("train", "event") if event["name"] == "instrumented"]
    assert instrumented["method"] == "output"
    tacho.run(python, "train.py", options=("--no-output", "--name", "unread"))
    assert printed_values(tacho, "unread") == {}
