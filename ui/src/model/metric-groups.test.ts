import { expect, test } from "vitest";
import type { MetricView } from "../api";
import {
  filterMetrics,
  groupMetrics,
  isInvalidExpression,
  isOpenAtFirst,
  isSchedule,
  isShown,
  mergeMetrics,
} from "./metric-groups";

const signals: Record<string, string> = {
  train_loss: "loss",
  "train/loss": "loss",
  training_loss: "loss",
  val_loss: "val_loss",
  "eval/loss": "val_loss",
  lr: "lr",
  "window/iteration_sec_mean": "step_s",
};

const metric = (name: string, kind = "step"): MetricView => ({
  name,
  kind,
  signal: signals[name] ?? null,
  same_as: null,
  count: 1,
  last: 1,
  last_step: 0,
  x_metric: null,
  is_printed: false,
  low: 1,
  high: 1,
  num_not_finite: 0,
});

test("training metrics come first, system metrics last", () => {
  const names = ["cpu_pct", "lr", "val_loss", "reward/mean", "train_loss", "reward/std", "gpu0_util_pct"];
  const groups = groupMetrics(names.map((name) => metric(name, /pct/.test(name) ? "system" : "step")));
  expect(groups).toEqual([
    { title: "training", names: ["train_loss", "val_loss", "lr"] },
    { title: "reward", names: ["reward/mean", "reward/std"] },
    { title: "gpu", names: ["gpu0_util_pct"] },
    { title: "cpu", names: ["cpu_pct"] },
  ]);
});

test("profiling metrics come before system metrics", () => {
  const names = ["cpu_pct", "profiling/Trainer.step", "loss/kl", "profiling/Trainer.step/p95", "gpu_mem_reserved"];
  expect(groupMetrics(names.map((name) => metric(name, /pct/.test(name) ? "system" : "profile")))).toEqual([
    { title: "loss", names: ["loss/kl"] },
    { title: "profiling", names: ["profiling/Trainer.step", "profiling/Trainer.step/p95"] },
    { title: "memory", names: ["gpu_mem_reserved"] },
    { title: "cpu", names: ["cpu_pct"] },
  ]);
});

test("a metric of several runs is printed if one of them only printed it", () => {
  const printed = { ...metric("loss"), is_printed: true };
  for (const runs of [
    [[metric("loss")], [printed]],
    [[printed], [metric("loss")]],
  ])
    expect(mergeMetrics(runs).map(({ is_printed }) => is_printed)).toEqual([true]);
});

test("the losses of a GAN come before the loss of windows", () => {
  const losses = ["loss_D", "loss_G"].map((name) => ({ ...metric(name), signal: "adversarial_loss" }));
  expect(groupMetrics([metric("window/latest_loss"), ...losses])).toEqual([
    { title: "training", names: ["loss_D", "loss_G"] },
    { title: "windows", names: ["window/latest_loss"] },
  ]);
});

test("a window's loss is a training metric if no loss is logged", () => {
  expect(groupMetrics([metric("window/latest_loss")])[0]?.title).toBe("training");
  expect(groupMetrics([metric("window/latest_loss"), metric("train_loss")]).map((each) => each.title)).toEqual([
    "training",
    "windows",
  ]);
});

test("the loss comes first under any of its names", () => {
  const names = ["acc", "train/acc", "training_loss", "eval/loss", "eval/bleu", "epoch"];
  expect(groupMetrics(names.map((name) => metric(name)))).toEqual([
    { title: "training", names: ["training_loss", "eval/loss", "acc", "train/acc", "epoch"] },
    { title: "validation", names: ["eval/bleu"] },
  ]);
});

test("a window's metric does not replace one of the same signal", () => {
  const names = ["window/latest_loss", "train/loss", "window/iteration_sec_mean"];
  expect(groupMetrics(names.map((name) => metric(name)))).toEqual([
    { title: "training", names: ["train/loss", "window/iteration_sec_mean"] },
    { title: "windows", names: ["window/latest_loss"] },
  ]);
});

test("a metric is hidden only if it repeats another one in every run", () => {
  const copy = { ...metric("loss"), same_as: "train_loss" };
  const shown = (...pages: MetricView[][]) =>
    mergeMetrics(pages)
      .filter(isShown)
      .map(({ name }) => name);
  expect(shown([metric("train_loss"), copy])).toEqual(["train_loss"]);
  expect(shown([metric("train_loss"), copy], [metric("loss")])).toEqual(["train_loss", "loss"]);
  expect(shown([metric("loss")], [metric("train_loss"), copy])).toEqual(["loss", "train_loss"]);
});

test("metrics of several runs have an x axis of their own if it is the same in all", () => {
  const on = (x_metric: string | null): MetricView[] => [{ ...metric("val/acc"), x_metric }];
  const axis = (...pages: MetricView[][]): string | null | undefined => mergeMetrics(pages)[0]?.x_metric;
  expect([axis(on("epoch")), axis(on("epoch"), on("epoch"))]).toEqual(["epoch", "epoch"]);
  expect([axis(on("epoch"), on(null)), axis(on("epoch"), on("frames"), on("frames"))]).toEqual([null, null]);
});

test("metrics that many runs have come before those of a few runs of another script", () => {
  const [ours, theirs] = [
    ["train_loss", "lr"],
    ["reward/mean", "steps"],
  ];
  const page = (names: string[]): MetricView[] =>
    names.map((name) => ({ ...metric(name), signal: name === "reward/mean" ? "reward" : (signals[name] ?? null) }));
  const first = (numOurs: number): string[] | undefined =>
    groupMetrics(mergeMetrics([page(theirs), ...Array.from({ length: numOurs }, () => page(ours))]))[0]?.names;
  expect(first(3)).toEqual(["reward/mean", "train_loss", "lr", "steps"]);
  expect(first(9)).toEqual(["train_loss", "lr", "reward/mean", "steps"]);
});

test("metrics of many layers are a group", () => {
  const layers = (count: number) => Array.from({ length: count }, (_, index) => metric(`layers.${index}.norm`));
  const titles = (count: number): string[] =>
    groupMetrics([metric("train_loss"), ...layers(count)]).map(({ title }) => title);
  expect([titles(4), titles(5)]).toEqual([["training"], ["training", "layers"]]);
});

test("only groups about the training are open at first", () => {
  const names = ["train_loss", "val_acc", "reward/mean", "window/sec", "gpu_mem_reserved", "profiling/step"];
  const groups = groupMetrics(names.map((name) => metric(name)));
  const open = (maxPanels: number): string[] =>
    groups.filter((_, index) => isOpenAtFirst(groups, index, maxPanels)).map(({ title }) => title);
  expect(open(100)).toEqual(["training", "validation", "reward", "profiling"]);
  expect(open(2)).toEqual(["training", "validation"]);
  expect(open(0)).toEqual(["training"]);
});

test("numbers in names sort numerically", () => {
  expect(groupMetrics(["layer/10", "layer/9"].map((name) => metric(name)))[0]?.names).toEqual(["layer/9", "layer/10"]);
});

test("a search matches all words, or a regular expression", () => {
  const metrics = ["loss/kl", "loss/ce", "kl_coef"].map((name) => metric(name));
  const names = (search: string): string[] => filterMetrics(metrics, search).map((each) => each.name);
  expect(names("")).toHaveLength(3);
  expect(names("KL loss")).toEqual(["loss/kl"]);
  expect(names("/^loss/")).toEqual(["loss/kl", "loss/ce"]);
  expect(names("/(/")).toEqual([]);
  expect(names("/^\\S+$/")).toHaveLength(3);
  expect([isInvalidExpression("/(/"), isInvalidExpression("/a/"), isInvalidExpression("(")]).toEqual([
    true,
    false,
    false,
  ]);
});

test("a learning rate is a schedule, a loss is not", () => {
  expect(["lr", "opt/lr", "learning_rate", "epoch"].every(isSchedule)).toBe(true);
  expect(["train_loss", "grad_norm", "flr"].some(isSchedule)).toBe(false);
});

test("rewards come first, and steps of other trackers are folded", () => {
  const reward = { ...metric("episodic_return"), signal: "reward" };
  const groups = groupMetrics([metric("tensorboard_step"), metric("train_loss"), reward]);
  expect(groups).toEqual([
    { title: "training", names: ["episodic_return", "train_loss"] },
    { title: "counters", names: ["tensorboard_step"] },
  ]);
  expect(isOpenAtFirst(groups, 1, 100)).toBe(false);
});
