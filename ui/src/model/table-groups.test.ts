import { expect, test } from "vitest";
import type { TableGroup, TableGroupsPage } from "../api";
import { bestGroups, groupId, groupRows, groupTitle } from "./table-groups";

const group = (key: string | null, runs: string[], mean: number | null): TableGroup => ({
  key: [key],
  runs,
  cells: [{ num_values: runs.length, mean, spread: null, best: mean, best_run: null }],
});
const page: TableGroupsPage = {
  by: ["host"],
  columns: ["loss"],
  groups: [group("b", ["1", "2"], 3), group("a", ["3"], 1), group(null, ["4"], null)],
  problems: [],
  indexed: 1,
};
const shown = (sort: string, open: string[] = []): string[] =>
  groupRows(page, new Set(open), sort).map((row) => (row.kind === "run" ? row.name : `${row.group.key}`));

test("groups are sorted by mean, key or size, and open to their runs", () => {
  expect(shown("-started")).toEqual(["b", "a", ""]);
  expect(shown("loss")).toEqual(["a", "b", ""]);
  expect(shown("-loss")).toEqual(["b", "a", ""]);
  expect(shown("host")).toEqual(["a", "b", ""]);
  expect(shown("loss", ['["b"]'])).toEqual(["a", "b", "1", "2", ""]);
});

test("the group with the best mean is known where the direction is", () => {
  const [first, second] = page.groups.map(groupId);
  expect(bestGroups(page, () => -1)).toEqual({ loss: second });
  expect(bestGroups(page, () => 1)).toEqual({ loss: first });
  expect(bestGroups(page, () => 0)).toEqual({});
});

test("the title of a group has what its runs have, in short names", () => {
  const by = ["config.optim.lr", "config.model.width", "config.decoder.width", "tags"];
  expect(groupTitle(by, [0.1, 64, null, ["a", "b"]])).toBe("lr 0.1 · model.width 64 · tags a, b");
  expect(groupTitle(by, [null, null, null, null])).toBe("none of these fields");
  expect(groupTitle(["config.lr"], [null])).toBe("lr –");
});
