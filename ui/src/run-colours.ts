/** The colours of runs, as long as the dashboard is open: also a page that is opened later gives a run the same one. */

import type { RunSummary } from "./api";
import { assignIndexes, byCreation } from "./model/workspace-view";

let indexes: ReadonlyMap<string, number> = new Map();

/** The index of the colour of each run. `others` are runs that may not be listed yet. */
export function runIndexes(runs: RunSummary[], others: string[]): ReadonlyMap<string, number> {
  if (!runs.every(({ name }) => indexes.has(name))) indexes = assignIndexes(indexes, byCreation(runs));
  return (indexes = assignIndexes(indexes, others));
}
