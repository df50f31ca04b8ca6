import { expect, test } from "vitest";
import type { Failure } from "../api";
import { failureTitle, failureView, newOutput } from "./failure";
import { defaultView } from "./route";

const failure = (more: Partial<Failure> = {}): Failure => ({
  error_type: "ValueError",
  message: "shapes differ",
  traceback: "",
  step: 39,
  time: 0,
  exit_code: null,
  cause: "",
  confidence: "",
  output: {},
  ...more,
});

test("a failure is named by its exception, else by the state", () => {
  expect(failureTitle(failure(), "failed")).toBe("ValueError: shapes differ");
  expect(failureTitle(failure({ error_type: null, message: "exit code 3" }), "failed")).toBe("exit code 3");
  expect(failureTitle(failure({ error_type: null, message: "" }), "crashed")).toContain("killed");
});

test("output that repeats the traceback is left out", () => {
  const output = { stderr: "Traceback…\nValueError", stdout: "step 39\n" };
  expect(newOutput(failure({ output, traceback: "Traceback…\nValueError\n" }))).toEqual([["stdout", "step 39\n"]]);
  expect(newOutput(failure({ output }))).toHaveLength(2);
});

test("a failure links to the steps before it", () => {
  expect(failureView(39, defaultView)).toMatchObject({ x: "step", low: 0, high: 39 });
  expect(failureView(10_000, defaultView)).toMatchObject({ low: 9_500, high: 10_000 });
  expect(failureView(null, defaultView)).toBeNull();
});
