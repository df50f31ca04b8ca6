/** Runs that descend from each other: as a small graph, and as lines behind those of a chart. */

import type { LineagePage, RelatedRun } from "../api";

export interface GraphNode {
  run: string;
  /** The step at which a child left its parent, and how; of a run that is missing, also its id. */
  text: string;
  path: string | null;
  isSelf: boolean;
  /** Whether the run is in the log folders. */
  isHere: boolean;
  /** The column: parents are left of their children. */
  generation: number;
}

export interface LineageGraph {
  /** One per row, parents above their children. */
  nodes: GraphNode[];
  /** From parents to children, as indices of nodes. */
  edges: [from: number, to: number][];
}

export function lineageGraph(run: string, { ancestors, descendants }: LineagePage): LineageGraph {
  const generation = Math.max(-1, ...ancestors.map(({ depth }) => depth)) + 1;
  // Ancestors come with each run before its parents, so in the opposite order every parent is above its child.
  const self = ancestors.length;
  const nodes = [
    ...ancestors.toReversed().map((each) => node(each, generation - 1 - each.depth, "until")),
    { run, text: "this run", path: null, isSelf: true, isHere: true, generation },
    ...descendants.map((each) => node(each, generation + 1 + each.depth, "from")),
  ];
  return {
    nodes,
    edges: [
      ...links(ancestors).map(([near, far]): [number, number] => [self - 1 - far, near < 0 ? self : self - 1 - near]),
      ...links(descendants).map(([near, far]): [number, number] => [near < 0 ? self : self + 1 + near, self + 1 + far]),
    ],
  };
}

function node(related: RelatedRun, generation: number, word: string): GraphNode {
  const { run, run_id: id, global_step: step, how, checkpoint_path: path, is_here: isHere } = related;
  const parts = [
    step === null ? null : `${word} step ${step}`,
    how,
    isHere ? null : `not in these folders${id === null ? "" : `, id ${id}`}`,
  ];
  const text = parts.filter((part) => part !== null).join(", ");
  return { run, text, path: path === run ? null : path, isSelf: false, isHere, generation };
}

/** Each run with the one that it follows: the last one before it that is nearer; -1 is the run itself. */
function links(related: RelatedRun[]): [near: number, far: number][] {
  return related.map(({ depth }, far) => [related.findLastIndex((each, at) => at < far && each.depth < depth), far]);
}

export interface ParentLine {
  run: string;
  /** The run that descends from it. */
  child: string;
  /** The step at which its child left it; null if that is unknown. */
  until: number | null;
}

/** The lines to draw behind those of some runs: of all runs whose weights they descend from. */
export function parentLines(runs: string[], pages: { run: string; page: LineagePage }[]): ParentLine[] {
  const found = new Map<string, ParentLine>();
  for (const { run: child, page } of pages) {
    if (!runs.includes(child)) continue;
    let skippedDepth = Infinity;
    for (const { run, is_here, how, depth, global_step: until } of page.ancestors) {
      if (depth > skippedDepth) continue; // a teacher has other weights, and so have its parents; an artifact may be data
      const hasOtherWeights = how === "distill" || how === "artifact";
      skippedDepth = hasOtherWeights ? depth : Infinity;
      if (!is_here || hasOtherWeights || runs.includes(run)) continue;
      const known = found.get(run);
      const isLonger = known && known.until !== null && (until === null || until > known.until);
      if (!known || isLonger) found.set(run, { run, child: known?.child ?? child, until });
    }
  }
  return [...found.values()];
}
