import { expect, test } from "vitest";
import { defaultVerdict } from "./compare-choices";
import {
  chooseGroups,
  compareCommand,
  configGroups,
  fillSides,
  listValues,
  moveRun,
  splitRuns,
  swapSides,
} from "./verdict";

const runs = ["a", "b", "c"];

test("the repeats of the first run are compared with those of the next other one", () => {
  const groups = configGroups(
    runs,
    ["config.lr"],
    [
      { key: [0.1], runs: ["c", "b"] },
      { key: [0.2], runs: ["a"] },
    ],
  );
  expect(groups).toEqual([
    { label: "lr 0.2", runs: ["a"] },
    { label: "lr 0.1", runs: ["b", "c"] },
  ]);
  expect(splitRuns(runs, fillSides(runs, defaultVerdict, groups))).toEqual({ before: ["a"], after: ["b", "c"] });
  const three = [...groups, { label: "lr 0.3", runs: ["d", "e"] }];
  const five = [...runs, "d", "e"];
  expect(splitRuns(five, fillSides(five, defaultVerdict, three))).toEqual({ before: ["a"], after: ["b", "c"] });
  const chosen = chooseGroups(defaultVerdict, three, 2, 1);
  expect(splitRuns(five, fillSides(five, chosen, three))).toEqual({ before: ["d", "e"], after: ["b", "c"] });
});

test("without repeats, the first run is compared with the others", () => {
  expect(splitRuns(runs, fillSides(runs, defaultVerdict, []))).toEqual({ before: ["a"], after: ["b", "c"] });
  const chosen = { ...defaultVerdict, before: ["c", "gone"], out: ["a"] };
  expect(splitRuns(runs, fillSides(runs, chosen, []))).toEqual({ before: ["c"], after: ["b"] });
});

test("runs change sides", () => {
  const moved = moveRun(runs, fillSides(runs, defaultVerdict, []), "b", "before");
  expect(splitRuns(runs, moved)).toEqual({ before: ["a", "b"], after: ["c"] });
  const left = moveRun(runs, moved, "a", "out");
  expect(splitRuns(runs, left)).toEqual({ before: ["b"], after: ["c"] });
  expect(splitRuns(runs, swapSides(runs, left))).toEqual({ before: ["c"], after: ["b"] });
  // A side may be empty for a while.
  const empty = moveRun(runs, moved, "c", "before");
  expect(splitRuns(runs, empty)).toEqual({ before: runs, after: [] });
});

test("the command compares the same runs", () => {
  expect(compareCommand({ before: ["a"], after: ["b"] })).toBe("tacho compare b a");
  expect(compareCommand({ before: ["a"], after: ["b"] }, true)).toBe("tacho compare b a --anyway");
  expect(compareCommand({ before: ["a", "x y"], after: ["b"] })).toBe("tacho compare b --against a 'x y'");
});

test("many values are counted", () => {
  expect(listValues(["a", 1])).toBe("a, 1");
  expect(listValues([1, 2, 3, 4, 5, 6, 7, 8])).toBe("1, 2, 3, 4, 5, 6 and 2 more");
});
