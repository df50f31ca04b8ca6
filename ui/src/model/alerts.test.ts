import { describe, expect, test } from "vitest";
import type { AlertView } from "../api";
import {
  mergeBands,
  recurrenceSteps,
  remarkMarks,
  chartViewFor,
  alertBadge,
  openCauses,
  closedAs,
  evidenceRows,
  evidenceView,
  judgementField,
  explainCommand,
  hasEnded,
  withKeys,
  withoutMetrics,
  openDurationSeconds,
  toneOf,
  marksNear,
  alertMarks,
  stepRange,
  verdict,
} from "./alerts";
import { filterMetrics } from "./metric-groups";
import { defaultView } from "./route";

const alert = (more: Partial<AlertView> = {}): AlertView => ({
  id: "1",
  rule: "loss_spike",
  severity: "warning",
  title: "Loss spike",
  message: "",
  meaning: "",
  advice: [],
  evidence: { metric: "train_loss" },
  occurrences: [],
  num_occurrences: 1,
  attempt: 0,
  opened_time: 1000,
  opened_step: 1200,
  updated_time: 1000,
  updated_step: 1200,
  resolved_time: null,
  resolved_step: null,
  outcome: "",
  cause: null,
  is_open: true,
  judgement: "",
  ...more,
});
const resolved = (more: Partial<AlertView> = {}): AlertView =>
  alert({ resolved_time: 1060, resolved_step: 1350, is_open: false, ...more });

test("causes of open alerts are listed once", () => {
  const cause = { kind: "bad_input", text: "Sample 41.", confidence: "certain" } as const;
  const alerts = [alert({ cause }), alert(), alert({ cause }), resolved({ cause: { ...cause, text: "Old." } })];
  expect(openCauses(alerts)).toEqual([cause]);
});

test("the badge counts open alerts and shows the worst tone", () => {
  const count = (open: number, critical: number) =>
    alertBadge({ num_open_alerts: open, num_critical_alerts: critical });
  expect(count(0, 0)).toBeNull();
  expect(count(1, 0)).toEqual({ text: "1 alert", tone: "warn" });
  expect(count(2, 1)).toEqual({ text: "2 alerts", tone: "bad" });
  expect([toneOf("critical"), toneOf("warning"), toneOf("info")]).toEqual(["bad", "warn", ""]);
});

test("alerts with the same id get distinct, stable keys", () => {
  expect(withKeys([alert(), alert(), alert({ id: "2" })]).map(([key]) => key)).toEqual(["1 0", "1 1", "2 0"]);
});

test("durations and end states of alerts", () => {
  expect([hasEnded("running"), hasEnded("stale"), hasEnded("crashed")]).toEqual([false, false, true]);
  expect([withoutMetrics("finished"), withoutMetrics("crashed")]).toEqual([
    "The run recorded no metrics.",
    "The run ended before it recorded any metrics.",
  ]);
  expect(closedAs(resolved())).toBe("resolved");
  expect(closedAs(alert({ is_open: false, outcome: "Back at the level before." }))).toBe("resolved");
  expect(closedAs(alert({ is_open: false }))).toBe("unresolved");
  expect(openDurationSeconds(alert(), 1010)).toBe(10);
  expect(openDurationSeconds(alert(), 900)).toBe(0);
  expect(openDurationSeconds(resolved(), 9999)).toBe(60);
  expect(openDurationSeconds(alert({ is_open: false, updated_time: 1003 }), 9999)).toBeNull();
  expect(openDurationSeconds(alert({ opened_time: null }), 1010)).toBeNull();
});

test("step ranges and recurrences of alerts", () => {
  expect(stepRange(alert())).toBe("step 1200");
  expect(stepRange(resolved())).toBe("steps 1200 … 1350");
  expect(stepRange(alert({ opened_step: null }))).toBe("");
  expect(recurrenceSteps(alert({ num_occurrences: 1, occurrences: [{ step: 1200 }] }))).toBe("");
  expect(recurrenceSteps(alert({ num_occurrences: 2, occurrences: [{ step: 1200 }, { step: 1300 }] }))).toBe(
    "1200, 1300",
  );
  expect(recurrenceSteps(alert({ num_occurrences: 99, occurrences: [{ step: 1200 }, { step: null }] }))).toBe("… 1200");
  expect(recurrenceSteps(alert({ num_occurrences: 99 }))).toBe("");
});

test("evidence is formatted with units", () => {
  const evidence = {
    value: 8.123456,
    level: "NaN",
    word: "\\NaN",
    silence_s: 93,
    size_bytes: 2500,
    steps: [1, 20000, "Infinity"],
    missing: null,
    deep: { a: 1 },
    is_new: true,
    path: "a\\b",
  };
  expect(evidenceRows(alert({ evidence }))).toEqual([
    ["value", "8.12346"],
    ["level", "NaN"],
    ["word", "NaN"],
    ["silence", "1 min 33 s"],
    ["size", "2.5 kB"],
    ["steps", "1, 20\u202f000, ∞"],
    ["deep", '{"a":1}'],
    ["is new", "true"],
    ["path", "a\\b"],
  ]);
});

test("only a safe rule name becomes a shell command", () => {
  expect(explainCommand("loss_spike")).toBe("tacho doctor --explain loss_spike");
  for (const rule of ["", "x; rm -rf ~", "$(id)", "--help", "a b", "a\nb", "x".repeat(99), "ΩΩ"])
    expect(explainCommand(rule)).toBeNull();
});

describe("the chart view of an alert", () => {
  test("shows its metric alone, around its steps", () => {
    const view = chartViewFor(resolved(), { ...defaultView, smoothing: 0.5, isLogY: true }, 50_000);
    expect(view).toEqual({
      ...defaultView,
      x: "step",
      usesDefinedAxes: false,
      smoothing: 0.5,
      isLogY: true,
      showsParents: false,
      search: "/^train_loss$/",
      low: 700,
      high: 1850,
    });
    expect(chartViewFor(alert(), defaultView, 1205)).toMatchObject({ low: 1180, high: 1205 });
    expect(chartViewFor(alert({ opened_step: 0, updated_step: 0 }), defaultView, 0)).toMatchObject({ low: 0, high: 1 });
    const again = alert({ updated_step: 2000, occurrences: [{ step: 1200 }, { step: 1800 }, { step: "x" }] });
    expect(chartViewFor(again, defaultView, 2000)).toMatchObject({ low: 800, high: 2001 });
  });

  test("escapes metric names that look like expressions", () => {
    for (const name of ["a.b*(c)[d]{e}|f^$?+\\g", "gpu/0/mem", "ünï ☃"]) {
      const metric = { name };
      const search = chartViewFor(alert({ evidence: { metric: name } }), defaultView, 10)?.search ?? "";
      expect(filterMetrics([metric, { ...metric, name: `${name}x` }], search).map((each) => each.name)).toEqual([name]);
    }
  });

  test("falls back to time, then to the whole metric", () => {
    const timed = { opened_step: null, updated_step: null };
    const lost = { ...timed, opened_time: null, updated_time: null };
    expect(chartViewFor(alert(timed), defaultView, 10)).toMatchObject({ x: "time", low: 940, high: 1060 });
    expect(chartViewFor(alert(lost), { ...defaultView, low: 1 }, 10)).toMatchObject({ x: "step", low: null });
    expect(chartViewFor(alert({ ...lost, evidence: { metric: 7 } }), defaultView, 10)).toBeNull();
  });
});

describe("alert marks", () => {
  const marks = (
    alerts: AlertView[],
    x: "step" | "time" | "relative" | "epoch" = "step",
    started: number | null = 990,
  ) => alertMarks({ run: "r", alerts, remarks: [], started }, "train_loss", x);

  test("appear on their metric, or everywhere above info", () => {
    const others = [alert({ evidence: { metric: "grad_norm" } }), alert({ evidence: {}, severity: "info" })];
    const found = marks([alert(), alert({ evidence: {} }), ...others]);
    expect(found).toHaveLength(2);
    expect(found[0]).toEqual({ run: "r", title: "Loss spike", tone: "warn", x: 1200, end: null });
  });

  test("work on the step, time and relative axes", () => {
    expect(marks([resolved()])).toMatchObject([{ x: 1200, end: 1350 }]);
    expect(marks([resolved()], "time")).toMatchObject([{ x: 1000, end: 1060 }]);
    expect(marks([resolved()], "relative")).toMatchObject([{ x: 10, end: 70 }]);
    expect(marks([resolved()], "relative", null)).toEqual([]);
    expect(marks([resolved()], "epoch")).toEqual([]);
    expect(marks([alert({ opened_step: null })])).toEqual([]);
    expect(marks([alert({ is_open: false, updated_step: 1100 })])).toMatchObject([{ x: 1200, end: 1200 }]);
  });

  test("include remarks about steps, on the step axis only", () => {
    const remark = { id: "1", global_step: 40, text: "lr too high here", by: "ana", time: 1 };
    const run = { run: "r", alerts: [], remarks: [remark], started: 990 };
    expect(remarkMarks(run, "step")).toEqual([{ run: "r", title: "lr too high here", tone: "", x: 40, end: 40 }]);
    expect(remarkMarks(run, "time")).toEqual([]);
  });

  test("merge into bands and are found near the cursor", () => {
    const at = (x: number, end: number | null) => ({ run: "r", title: `${x}`, tone: "warn" as const, x, end });
    const found = [at(50, 60), at(10, 20), at(15, 30), at(12, 13), at(90, null), at(95, 96)];
    expect(mergeBands(found)).toEqual([
      [10, 30],
      [50, 60],
      [90, Infinity],
    ]);
    const scale = { low: 0, high: 100, isLog: false };
    expect(marksNear(found, 11, scale).map((mark) => mark.x)).toEqual([10, 12]);
    expect(marksNear(found, null, scale)).toEqual([]);
  });
});

test("the chart of evidence shows the onset, what came before, and the expected values", () => {
  const evidence = { metric: "train_loss", from_step: 1150, expected: [1.5, 2.5] };
  expect(evidenceView("run", alert({ evidence }), 2000)).toEqual({
    metric: "train_loss",
    low: 1050,
    high: 1300,
    mark: { run: "run", title: "Loss spike", tone: "warn", x: 1150, end: null },
    expected: { low: 1.5, high: 2.5 },
  });
  const view = evidenceView("run", resolved({ evidence: { metric: "m", expected: [null, 3] } }), 1360);
  expect(view).toMatchObject({ low: 1050, high: 1360, expected: { low: null, high: 3 }, mark: { x: 1200, end: 1350 } });
  expect(evidenceView("run", alert({ evidence: { metric: "m", expected: "soon" } }), null)?.expected).toBeNull();
  expect(evidenceView("run", alert({ evidence: {} }), null)).toBeNull();
  expect(evidenceView("run", alert({ opened_step: null }), null)).toBeNull();
});

test("expected values are shown as a range", () => {
  const text = (expected: (number | null)[]) => evidenceRows(alert({ evidence: { expected } }))[0]?.[1];
  expect([text([1, 2.5]), text([null, 3]), text([0.5, null])]).toEqual(["1 to 2.5", "at most 3", "at least 0.5"]);
});

test("a judgement belongs to the rule and the step of an alert", () => {
  expect(judgementField(alert())).toBe("alert.loss_spike@1200");
  expect(judgementField(alert({ opened_step: null }))).toBe("alert.loss_spike@");
});

test("a failed run is not said to be without problems", () => {
  const page = { num_open: 0, num_critical: 0, alerts: [] };
  const metrics = [{ name: "loss", signal: "loss" }];
  expect(verdict(page, metrics, "finished")).toBe("No open alerts.");
  for (const state of ["failed", "crashed"] as const)
    expect(verdict(page, metrics, state)).toBe("The run failed; its metrics have no open alerts.");
});
