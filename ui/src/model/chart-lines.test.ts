import { expect, test } from "vitest";
import type { Line, SeriesView } from "../api";
import { buildChartLines } from "./chart-lines";

const line = (attempt: number, count: number, stream = "step"): Line => {
  const x = Array.from({ length: count }, (_, index) => index);
  return { stream, attempt, x, y: x, mean_x: [], mean_y: [], mean_count: [], num_points: count };
};
const series = (name: string, ...lines: Line[]): Record<string, SeriesView> => ({
  run: { name, last: 0, lines, marks: [], reason: null, num_unplaced: 0 },
});

test("a noisy line gets a smoothed line per attempt", () => {
  const found = buildChartLines("train_loss", ["run"], series("train_loss", line(0, 100), line(1, 100)), 0.9);
  expect(found.map(({ isRaw, isBehind, isEarlier }) => [isRaw, isBehind, isEarlier])).toEqual([
    [true, true, true],
    [false, false, true],
    [true, true, false],
    [false, false, false],
  ]);
  expect(new Set(found.map((each) => each.label)).size).toBe(4);
});

test("schedules, validations, windows and short lines stay raw", () => {
  const asRecorded = (name: string, shown: Line) =>
    buildChartLines(name, ["run"], series(name, shown), 0.9).length === 1;
  expect(asRecorded("lr", line(0, 100))).toBe(true);
  expect(asRecorded("val_loss", line(0, 100, "validation"))).toBe(true);
  expect(asRecorded("loss", line(0, 100, "window"))).toBe(true);
  expect(asRecorded("loss", line(0, 10))).toBe(true);
  expect(asRecorded("loss", line(0, 100))).toBe(false);
  expect(buildChartLines("loss", ["run"], series("loss", line(0, 100)), 0)).toHaveLength(1);
});

test("points recorded with and between steps form one line", () => {
  const between = { ...line(0, 2, "system"), x: [0.5, 1.5], y: [7, 8] };
  const [only, ...others] = buildChartLines(
    "cpu_mem_rss_mb",
    ["run"],
    series("cpu_mem_rss_mb", line(0, 3), between),
    0,
  );
  expect(others).toEqual([]);
  expect(only?.points).toMatchObject({ x: [0, 0.5, 1, 1.5, 2], y: [0, 7, 1, 8, 2] });
});

test("the epoch has one line", () => {
  const lines = [line(0, 50), line(0, 5, "epoch"), line(0, 5, "validation")];
  expect(buildChartLines("epoch", ["run"], series("epoch", ...lines), 0)).toHaveLength(1);
  expect(buildChartLines("epoch", ["run"], series("epoch", line(0, 5, "epoch")), 0)).toHaveLength(1);
  expect(buildChartLines("val_loss", ["run"], series("val_loss", ...lines), 0)).toHaveLength(3);
});

test("runs without data have no lines", () => {
  expect(buildChartLines("loss", ["run", "other"], {}, 0.9)).toEqual([]);
});
