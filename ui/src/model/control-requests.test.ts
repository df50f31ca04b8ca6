import { expect, test } from "vitest";
import type { ControlAnswer } from "../api";
import { isValidStepCount, resolveRequests } from "./control-requests";

test("the outcome of a trace states its steps and reason", () => {
  const sent = [{ id: "1", control: "profile_steps", value: 5, time: 100 }];
  const outcomeText = (value: number, reason: string | null = null): string | undefined => {
    const answer: ControlAnswer = {
      id: "1",
      control: "profile_steps",
      status: "applied",
      time: 120,
      value,
      reason,
      wait_s: null,
    };
    return resolveRequests(sent, [answer], 130)[0]?.text;
  };
  expect(outcomeText(5)).toBe("stored a trace of 5 steps");
  expect(outcomeText(1, "ended after 120 s")).toBe("stored a trace of 1 step; ended after 120 s");
});

test("a step count is an integer from 1 to 1000", () => {
  expect([1, 5, 1000].every(isValidStepCount)).toBe(true);
  expect([0, -1, 1001, 2.5, Number.NaN, null, undefined].some(isValidStepCount)).toBe(false);
});

test("requests are matched with answers by id", () => {
  const sent = [{ id: "1", control: "log_every", value: 1, time: 100 }];
  const answer = (status: string, more: Partial<ControlAnswer> = {}): ControlAnswer => ({
    id: "1",
    control: "log_every",
    status,
    time: 101,
    value: 5,
    reason: null,
    wait_s: null,
    ...more,
  });
  const outcome = (answers: ControlAnswer[], now = 101) => resolveRequests(sent, answers, now)[0];
  expect(outcome([])).toMatchObject({ status: "waiting", isFinal: false });
  expect(outcome([], 200)?.text).toContain("no answer for 100 s");
  expect(outcome([answer("pending", { wait_s: 10 })], 105)?.text).toContain("6 s");
  expect(outcome([answer("clamped", { time: 130 }), answer("pending", { wait_s: 10 })])).toMatchObject({
    status: "clamped",
    isFinal: true,
    text: "limited to its range: 5",
  });
  expect(outcome([answer("rejected", { reason: "not a number" })])?.text).toBe("not a number");
  expect(outcome([{ ...answer("applied"), id: "2" }])?.status).toBe("waiting");
});
