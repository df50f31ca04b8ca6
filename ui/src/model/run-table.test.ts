import { expect, test } from "vitest";
import type { RunSummary } from "../api";
import { runWarnings, stalledSeconds } from "./run-table";

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
  annotated: null,
  ...more,
});

test("a running loop without steps is stalled", () => {
  const hung = run("a", { state: "running", stepped: 100, steps_per_sec: 50 });
  expect(stalledSeconds(hung, 110)).toBeNull();
  expect(stalledSeconds(hung, 130)).toBe(30);
  expect(stalledSeconds({ ...hung, steps_per_sec: 0.01 }, 130)).toBeNull();
  expect(stalledSeconds({ ...hung, state: "finished" }, 1000)).toBeNull();
});

test("warnings name what is wrong", () => {
  expect(runWarnings(run("a"), 100)).toEqual([]);
  const odd = run("a", { train_loss: "NaN", num_dropped: 2, state: "running", stepped: 0, steps_per_sec: 1 });
  expect(runWarnings(odd, 100)).toEqual(["loss is NaN", "2 records lost", "last step 1 min 40 s ago"]);
});
