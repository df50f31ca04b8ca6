import { expect, test } from "vitest";
import type { Answer, RunLine } from "../api";
import { compare, flatten } from "./diff";
import { detail, keyed, severity, title } from "./events";
import { outcomes } from "./requests";
import { nextSort, select, silence_s } from "./table";

const run = (name: string, more: Partial<RunLine> = {}): RunLine => ({
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

test("runs are found by name, tag and host, and by state", () => {
  const runs = [run("a", { tags: ["lora"] }), run("b", { host: "gpu7", state: "running" }), run("lora-2")];
  expect(select(runs, "lora", [], "name").map((each) => each.name)).toEqual(["a", "lora-2"]);
  expect(select(runs, "GPU", [], "name").map((each) => each.name)).toEqual(["b"]);
  expect(select(runs, "", ["running"], "name")).toHaveLength(1);
});

test("what is missing comes last both ways, and a loss that is NaN is the highest", () => {
  const runs = [run("none"), run("low", { train_loss: 1 }), run("nan", { train_loss: "NaN" })];
  expect(select(runs, "", [], "train_loss").map((each) => each.name)).toEqual(["low", "nan", "none"]);
  expect(select(runs, "", [], "-train_loss").map((each) => each.name)).toEqual(["nan", "low", "none"]);
  expect(select([run("r10"), run("r9")], "", [], "name").map((each) => each.name)).toEqual(["r9", "r10"]);
});

test("a loop that makes no steps is not taken for healthy", () => {
  const hung = run("a", { state: "running", stepped: 100, steps_per_sec: 50 });
  expect(silence_s(hung, 110)).toBeNull();
  expect(silence_s(hung, 130)).toBe(30);
  expect(silence_s({ ...hung, steps_per_sec: 0.01 }, 130)).toBeNull();
  expect(silence_s({ ...hung, state: "finished" }, 1000)).toBeNull();
});

test("a click on a column sorts by it, another one the other way round", () => {
  expect(nextSort("name", "train_loss")).toBe("-train_loss");
  expect(nextSort("-train_loss", "train_loss")).toBe("train_loss");
  expect(nextSort("train_loss", "train_loss")).toBe("-train_loss");
});

test("configs are compared setting by setting", () => {
  expect([...flatten({ a: { b: 1, c: [] }, d: {} })]).toEqual([
    ["a.b", 1],
    ["a.c", []],
    ["d", {}],
  ]);
  expect([...flatten({ "a.b": 1, a: { b: 2 } }).keys()]).toEqual(['"a.b"', "a.b"]);
  const entries = compare({ lr: 1, same: [1], gone: null }, { lr: 2, same: [1], extra: "x" });
  expect(entries.filter((entry) => entry.isDifferent).map((entry) => entry.path)).toEqual(["lr", "gone", "extra"]);
  expect(compare({ lr: 1 }, null)[0]?.isDifferent).toBe(false);
});

test("requests are followed by the trainer's answers with the same id", () => {
  const asked = [{ id: "1", control: "log_every", value: 1, time: 100 }];
  const answer = (status: string, more: Partial<Answer> = {}): Answer => ({
    id: "1",
    control: "log_every",
    status,
    time: 101,
    value: 5,
    reason: null,
    wait_s: null,
    ...more,
  });
  const told = (answers: Answer[], now = 101) => outcomes(asked, answers, now)[0];
  expect(told([])).toMatchObject({ status: "waiting", isSettled: false });
  expect(told([], 200)?.text).toContain("no answer for 100 s");
  expect(told([answer("pending", { wait_s: 10 })], 105)?.text).toContain("6 s");
  expect(told([answer("clamped", { time: 130 }), answer("pending", { wait_s: 10 })])).toMatchObject({
    status: "clamped",
    isSettled: true,
    text: "kept within its bounds: 5",
  });
  expect(told([answer("rejected", { reason: "not a number" })])?.text).toBe("not a number");
  expect(told([{ ...answer("applied"), id: "2" }])?.status).toBe("waiting");
});

test("records are told in a line", () => {
  const record = (event: string, more = {}) => ({ event, time: 1, ...more });
  expect(title(record("control_change", { name: "lr", old: 1, new: 2 }))).toBe("lr 1 → 2");
  expect(title(record("telemetry_error", { kind: "records_lost" }))).toBe("telemetry: records lost");
  expect(detail(record("validation", { val_loss: 0.5, global_step: 3 }))).toBe("val_loss 0.5");
  expect(severity(record("error"))).toBe("bad");
  const twice = [record("a"), record("b"), record("b")];
  expect(keyed(twice).map(([key]) => key)).toEqual(["1 a  0", "1 b  1", "1 b  0"]);
  expect(keyed([record("new"), ...twice]).slice(1)).toEqual(keyed(twice));
  expect(severity(record("end", { status: "failed" }))).toBe("bad");
  expect(severity(record("alert", { status: "resolved", severity: "critical" }))).toBe("good");
  expect(title(record("alert", { status: "opened", title: "Loss spike" }))).toBe("Loss spike");
  expect(title(record("alert", { status: "resolved", title: "Loss spike" }))).toBe("resolved: Loss spike");
});
