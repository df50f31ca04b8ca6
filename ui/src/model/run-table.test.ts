import { expect, test } from "vitest";
import type { RunSummary } from "../api";
import { nextSort, select, stalled_s } from "./run-table";

const run = (name: string, more: Partial<RunSummary> = {}): RunSummary => ({
  name,
  state: "finished",
  started: 1,
  updated: 2,
  duration_s: 1,
  step: 1,
  stepped: null,
  max_steps: null,
  progress: null,
  eta_s: null,
  steps_per_sec: null,
  train_loss: null,
  host: null,
  tags: [],
  session_tag: null,
  reason: null,
  size_bytes: 0,
  num_dropped: 0,
  num_open_alerts: 0,
  num_critical_alerts: 0,
  ...more,
});

test("runs are filtered by name, tag, host and state", () => {
  const runs = [run("a", { tags: ["lora"] }), run("b", { host: "gpu7", state: "running" }), run("lora-2")];
  expect(select(runs, "lora", [], "name").map((each) => each.name)).toEqual(["a", "lora-2"]);
  expect(select(runs, "GPU", [], "name").map((each) => each.name)).toEqual(["b"]);
  expect(select(runs, "", ["running"], "name")).toHaveLength(1);
});

test("missing values sort last, and a NaN loss sorts highest", () => {
  const runs = [run("none"), run("low", { train_loss: 1 }), run("nan", { train_loss: "NaN" })];
  expect(select(runs, "", [], "train_loss").map((each) => each.name)).toEqual(["low", "nan", "none"]);
  expect(select(runs, "", [], "-train_loss").map((each) => each.name)).toEqual(["nan", "low", "none"]);
  expect(select([run("r10"), run("r9")], "", [], "name").map((each) => each.name)).toEqual(["r9", "r10"]);
});

test("a running loop without steps is stalled", () => {
  const hung = run("a", { state: "running", stepped: 100, steps_per_sec: 50 });
  expect(stalled_s(hung, 110)).toBeNull();
  expect(stalled_s(hung, 130)).toBe(30);
  expect(stalled_s({ ...hung, steps_per_sec: 0.01 }, 130)).toBeNull();
  expect(stalled_s({ ...hung, state: "finished" }, 1000)).toBeNull();
});

test("clicking a column sorts by it, then reverses", () => {
  expect(nextSort("name", "train_loss")).toBe("-train_loss");
  expect(nextSort("-train_loss", "train_loss")).toBe("train_loss");
  expect(nextSort("train_loss", "train_loss")).toBe("-train_loss");
});
