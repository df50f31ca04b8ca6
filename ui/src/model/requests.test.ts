import { expect, test } from "vitest";
import type { Answer } from "../api";
import { isNumberOfSteps, outcomes } from "./requests";

test("a trace is told as what it is, and why it is shorter than was asked for", () => {
  const asked = [{ id: "1", control: "profile_steps", value: 5, time: 100 }];
  const told = (value: number, reason: string | null = null): string | undefined => {
    const answer: Answer = {
      id: "1",
      control: "profile_steps",
      status: "applied",
      time: 120,
      value,
      reason,
      wait_s: null,
    };
    return outcomes(asked, [answer], 130)[0]?.text;
  };
  expect(told(5)).toBe("5 steps are stored as a trace");
  expect(told(1, "ended after 120 s")).toBe("1 step is stored as a trace; ended after 120 s");
});

test("steps are whole, and there are some, but not too many", () => {
  expect([1, 5, 1000].every(isNumberOfSteps)).toBe(true);
  expect([0, -1, 1001, 2.5, Number.NaN, null, undefined].some(isNumberOfSteps)).toBe(false);
});
