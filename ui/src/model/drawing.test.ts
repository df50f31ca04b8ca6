import { expect, test } from "vitest";
import type { Line, Series } from "../api";
import { drawn } from "./drawing";

const line = (attempt: number, count: number, stream = "step"): Line => {
  const x = Array.from({ length: count }, (_, index) => index);
  return { stream, attempt, x, y: x, mean_x: [], mean_y: [], mean_count: [], num_points: count };
};
const series = (name: string, ...lines: Line[]): Record<string, Series> => ({
  run: { name, last: 0, lines, marks: [] },
});

test("a noisy line stands behind its smoothed one, each attempt by itself", () => {
  const found = drawn("train_loss", ["run"], series("train_loss", line(0, 100), line(1, 100)), 0.9);
  expect(found.map(({ isRaw, isBehind, isEarlier }) => [isRaw, isBehind, isEarlier])).toEqual([
    [true, true, true],
    [false, false, true],
    [true, true, false],
    [false, false, false],
  ]);
  expect(new Set(found.map((each) => each.label)).size).toBe(4);
});

test("schedules, validations, windows and short lines are shown as they are", () => {
  const asRecorded = (name: string, shown: Line) => drawn(name, ["run"], series(name, shown), 0.9).length === 1;
  expect(asRecorded("lr", line(0, 100))).toBe(true);
  expect(asRecorded("val_loss", line(0, 100, "validation"))).toBe(true);
  expect(asRecorded("loss", line(0, 100, "window"))).toBe(true);
  expect(asRecorded("loss", line(0, 10))).toBe(true);
  expect(asRecorded("loss", line(0, 100))).toBe(false);
  expect(drawn("loss", ["run"], series("loss", line(0, 100)), 0)).toHaveLength(1);
});

test("what is recorded with steps and between them is one line", () => {
  const between = { ...line(0, 2, "system"), x: [0.5, 1.5], y: [7, 8] };
  const [only, ...others] = drawn("cpu_mem_rss_mb", ["run"], series("cpu_mem_rss_mb", line(0, 3), between), 0);
  expect(others).toEqual([]);
  expect(only?.points).toMatchObject({ x: [0, 0.5, 1, 1.5, 2], y: [0, 7, 1, 8, 2] });
});

test("runs of which nothing is known yet have no lines", () => {
  expect(drawn("loss", ["run", "other"], {}, 0.9)).toEqual([]);
});
