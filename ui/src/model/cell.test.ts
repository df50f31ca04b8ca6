import { expect, test } from "vitest";
import type { TableColumn } from "../api";
import { cellText, colorShare } from "./cell";

const column = (low: number, high: number, direction = 0): TableColumn => ({
  field: "x",
  kind: "number",
  direction,
  best: null,
  differs: true,
  low,
  high,
});

test("values are shown by their kind", () => {
  expect(cellText("duration", 90, 0).text).toBe("1 min 30 s");
  expect(cellText("share", 0.5, 0).text).toBe("50 %");
  expect(cellText("bytes", 2_000, 0).text).toBe("2.0 kB");
  expect(cellText("time", 100, 160).text).toBe("1 min ago");
  expect(cellText("number", "NaN", 0).text).toBe("NaN");
  expect(cellText("text", "Infinity", 0).text).toBe("Infinity");
  expect(cellText("bool", false, 0).text).toBe("no");
  expect(cellText("list", ["a", "b"], 0).text).toBe("a, b");
  expect(cellText("number", null, 0).text).toBe("–");
  expect(cellText("number", 0.123456789, 0)).toEqual({ text: "0.1235", title: "0.123456789" });
});

test("colours go from worst to best, on a logarithmic scale for wide ranges", () => {
  expect(colorShare(column(0, 10), 5)).toBe(0.5);
  expect(colorShare(column(0, 10, -1), 10)).toBe(0);
  expect(colorShare(column(1e-5, 1e-1), 1e-3)).toBeCloseTo(0.5);
  expect(colorShare(column(3, 3), 3)).toBeNull();
  expect(colorShare(column(0, 1), "NaN")).toBeNull();
});
