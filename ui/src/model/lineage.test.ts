import { expect, test } from "vitest";
import type { RelatedRun } from "../api";
import { lineageGraph, parentLines } from "./lineage";

const related = (run: string, depth: number, step: number | null = 10, more: Partial<RelatedRun> = {}): RelatedRun => ({
  run,
  run_id: `id-${run}`,
  global_step: step,
  how: "init",
  checkpoint_path: null,
  is_here: true,
  depth,
  ...more,
});

test("a graph has parents above and left of their children", () => {
  const { nodes, edges } = lineageGraph("self", {
    indexed: 1,
    ancestors: [related("parent", 0), related("root", 1, 5, { is_here: false }), related("other", 0, null)],
    descendants: [related("child", 0), related("grandchild", 1), related("second", 0)],
  });
  expect(nodes.map(({ run, generation }) => [run, generation])).toEqual([
    ["other", 1],
    ["root", 0],
    ["parent", 1],
    ["self", 2],
    ["child", 3],
    ["grandchild", 4],
    ["second", 3],
  ]);
  const names = edges.map(([from, to]) => `${nodes[from]?.run} ${nodes[to]?.run}`);
  expect(names.toSorted()).toEqual(
    ["parent self", "root parent", "other self", "self child", "child grandchild", "self second"].toSorted(),
  );
  expect(nodes[1]?.text).toBe("until step 5, init, not in these folders, id id-root");
  expect(nodes[0]?.text).toBe("init");
  expect(nodes[4]?.text).toBe("from step 10, init");
});

test("parents are drawn up to the last step at which a run left them", () => {
  const page = (...ancestors: RelatedRun[]) => ({ indexed: 1, ancestors, descendants: [] });
  const pages = [
    {
      run: "a",
      page: page(
        related("p", 0, 20),
        related("root", 1, 5),
        related("teacher", 0, 9, { how: "distill" }),
        related("school", 1),
        related("dataset", 0, null, { how: "artifact" }),
        related("downloads", 1),
        related("gone", 0, 3, { is_here: false }),
        related("b", 0),
      ),
    },
    { run: "b", page: page(related("p", 0, 30)) },
    { run: "closed", page: page(related("x", 0)) },
  ];
  expect(parentLines(["a", "b"], pages)).toEqual([
    { run: "p", child: "a", until: 30 },
    { run: "root", child: "a", until: 5 },
  ]);
});
