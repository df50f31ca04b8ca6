import { expect, test } from "vitest";
import type { SeriesView } from "../api";
import { buildChartLines } from "./chart-lines";
import { type Member, memberValue } from "./overlay";
import { alertTitles, countNonPositive, emptyText, positionText } from "./panel";

const x = [0, 1, 2];
const line = { stream: "step", attempt: 0, x, y: [3, -2, 0], mean_x: [], mean_y: [], mean_count: [], num_points: 3 };
const resumed = { ...line, attempt: 1, x: [2, 3, 4], y: [7, 8, 9] };
const series: Record<string, SeriesView> = {
  a: { name: "loss", last: "NaN", lines: [line, resumed], marks: [], reason: null, num_unplaced: 0 },
};
const lines = buildChartLines("loss", ["a", "b"], series, 0);

const member = (run: string): Member => ({ id: run, label: run, runs: [run], isGroup: false, colour: "" });

test("the header shows the latest values without a cursor", () => {
  const values = { byRun: series, lines, groupLines: {} };
  expect(["a", "b"].map((run) => memberValue(values, member(run), null))).toEqual(["NaN", null]);
});

test("the header shows the value at the cursor, of the last attempt", () => {
  const valueAt = (shown: typeof lines) => memberValue({ byRun: series, lines: shown, groupLines: {} }, member("a"), 1);
  expect(valueAt(lines)).toBe(7);
  expect(valueAt(lines.slice(0, 1))).toBe(-2);
});

test("values without a place on a logarithmic scale are counted", () => {
  expect(countNonPositive(lines)).toBe(2);
});

test("positions carry the unit of their axis", () => {
  expect(positionText(12.4, "step")).toBe("step 12");
  expect(positionText(90, "relative")).toBe("1 min 30 s");
  expect(positionText(1.5, "epoch")).toBe("epoch 1.5");
  expect(positionText(1.5, "metric:env/frames")).toBe("env/frames 1.5");
});

test("an empty chart says why it is empty", () => {
  expect(emptyText("step", false)).toBe("No points yet.");
  expect(emptyText("epoch", false)).toBe("No epochs were recorded with this metric.");
  expect(emptyText("tokens", false)).toBe("No points on this axis.");
  expect(emptyText("epoch", true)).toBe("No points in this range.");
});

test("alert titles are limited and can name the run", () => {
  const alert = (title: string) => ({ run: "r", title, tone: "warn" as const, x: 0, end: null });
  expect(alertTitles([alert("a")], false)).toBe("a");
  expect(alertTitles([alert("a")], true)).toBe("r: a");
  expect(alertTitles(["a", "b", "c", "d", "e", "f"].map(alert), false)).toBe("a\nb\nc\nd\nand 2 more");
});
