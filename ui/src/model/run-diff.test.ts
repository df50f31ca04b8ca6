import { expect, test } from "vitest";
import type { DiffPage } from "../api";
import { countValues, deltaText, diffLines, orderBy } from "./run-diff";

const page: Pick<DiffPage, "runs" | "results" | "config"> = {
  runs: ["a", "b", "c"].map((name) => ({ name, title: name, state: "finished", has_patch: false })),
  results: [{ field: "val_loss.best", direction: -1, best: "b", values: [2, 1.5, "NaN"] }],
  config: [
    { name: "lr", values: [0.1, 0.01, null], differs: true, is_ignored: false },
    { name: "layers", values: [4], differs: false, is_ignored: false },
  ],
};

test("results come first, with the best marked and deltas to the reference", () => {
  const [loss, lr, layers] = diffLines(page, 0);
  expect(loss?.cells.map(({ text, delta, verdict, isBest }) => [text, delta, verdict, isBest])).toEqual([
    ["2", "", 0, false],
    ["1.5", "−0.5 (−25 %)", 1, true],
    ["NaN", "", 0, false],
  ]);
  expect(lr?.cells.map(({ text, isDifferent }) => [text, isDifferent])).toEqual([
    ["0.1", false],
    ["0.01", true],
    ["–", true],
  ]);
  expect(layers?.cells.map(({ text, isDifferent }) => [text, isDifferent])).toEqual(Array(3).fill(["4", false]));
  expect(diffLines(page, null).every(({ cells }) => cells.every((cell) => !cell.isDifferent))).toBe(true);
});

test("runs without a value come last in both directions", () => {
  const [loss] = diffLines(page, null);
  expect(loss && orderBy(loss, false)).toEqual([1, 0, 2]);
  expect(loss && orderBy(loss, true)).toEqual([0, 1, 2]);
});

test("a delta has no share of a reference of zero", () => {
  expect(deltaText(0.5, 0)).toBe("+0.5");
  expect(deltaText(-1.02, -1)).toBe("−0.02 (−2 %)");
});

test("values are counted, the most frequent first", () => {
  expect(countValues(["2.1", "2.2", "2.2", null])).toEqual([
    { text: "2.2", numRuns: 2 },
    { text: "2.1", numRuns: 1 },
    { text: "–", numRuns: 1 },
  ]);
});
