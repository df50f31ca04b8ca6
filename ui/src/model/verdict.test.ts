import { expect, test } from "vitest";
import { defaultVerdict } from "./compare-choices";
import { compareCommand, listValues, moveRun, splitRuns, swapSides } from "./verdict";

const runs = ["a", "b", "c"];

test("the first run is compared with the others", () => {
  expect(splitRuns(runs, defaultVerdict)).toEqual({ before: ["a"], after: ["b", "c"] });
  expect(splitRuns(runs, { before: ["c", "gone"], out: ["a"] })).toEqual({ before: ["c"], after: ["b"] });
});

test("runs change sides", () => {
  const moved = moveRun(runs, defaultVerdict, "b", "before");
  expect(moved).toEqual({ before: ["a", "b"], out: [] });
  const left = moveRun(runs, moved, "a", "out");
  expect(splitRuns(runs, left)).toEqual({ before: ["b"], after: ["c"] });
  expect(splitRuns(runs, swapSides(runs, left))).toEqual({ before: ["c"], after: ["b"] });
  // A side may be empty for a while.
  const empty = moveRun(runs, defaultVerdict, "a", "after");
  expect(splitRuns(runs, empty)).toEqual({ before: [], after: runs });
  expect(moveRun(runs, empty, "a", "before")).toEqual(defaultVerdict);
});

test("the command compares the same runs", () => {
  expect(compareCommand({ before: ["a"], after: ["b"] })).toBe("tacho compare b a");
  expect(compareCommand({ before: ["a", "x y"], after: ["b"] })).toBe("tacho compare b --against a 'x y'");
});

test("many values are counted", () => {
  expect(listValues(["a", 1])).toBe("a, 1");
  expect(listValues([1, 2, 3, 4, 5, 6, 7, 8])).toBe("1, 2, 3, 4, 5, 6 and 2 more");
});
