/** The colours of runs, as long as the dashboard is open: also a page that is opened later gives a run the same one. */

import type { RunSummary } from "./api";
import { assignPlaces, placesOf, type RunPlace } from "./model/workspace-view";

let indexes: ReadonlyMap<string, number> = new Map();

/** The index of the colour of each run: of some whose places are known, and of the list of all runs. */
export function runIndexes(places: RunPlace[], runs: RunSummary[]): ReadonlyMap<string, number> {
  // A run that only the list knows has no place otherwise.
  indexes = assignPlaces(
    indexes,
    places.filter(({ place }) => place !== null),
  );
  if (!runs.every(({ name }) => indexes.has(name))) indexes = assignPlaces(indexes, placesOf(runs));
  return (indexes = assignPlaces(indexes, places));
}
