/** The view of the workspace: which runs are listed, which of them are drawn, and how. The address contains all of it. */

import type { RunSummary } from "../api";
import { type CompareView, defaultCompareView, readCompareView, writeCompareView } from "./compare-view";
import { defaultTable, readTable, type TableView } from "./table-view";
import { type AddedPanel, panelKey, readPanels, withPanel, writePanel } from "./workspace-panels";

/** What the list of runs and the table of runs have in common. */
export type RunSelection = Pick<TableView, "filter" | "sort" | "archived" | "group">;

export interface WorkspaceView {
  /** An expression, see docs/runs.md. */
  filter: string;
  sort: string;
  archived: TableView["archived"];
  /** Whether only the runs of `also` are drawn, instead of the first ones of the list. */
  drawsOnly: boolean;
  /** Runs that are drawn although they are not among the first ones of the list. */
  also: string[];
  /** `by` has the groups, and `hidden` the runs and groups that are not drawn. */
  charts: CompareView;
  /** Panels above the charts of the metrics. */
  panels: AddedPanel[];
}

/** The most runs that are drawn unless the user chooses more. */
export const maxDrawnRuns = 200;

export const defaultWorkspace: WorkspaceView = {
  filter: "",
  sort: defaultTable.sort,
  archived: "no",
  drawsOnly: false,
  also: [],
  charts: defaultCompareView,
  panels: [],
};

/** Parameters of charts whose names the table of runs uses for something else: here, and on the compare page. */
const renamed: [here: string, there: string][] = [
  ["find", "q"],
  ["chart", "pin"],
];

/** Parameters that only addresses of the table have. The table was the first page once. */
export const isTableAddress = (parameters: URLSearchParams): boolean =>
  ["c", "pin", "differ", "color"].some((name) => parameters.has(name));

export function readWorkspace(parameters: URLSearchParams): WorkspaceView {
  const { filter, sort, archived } = readTable(parameters);
  const chartParameters = new URLSearchParams(parameters);
  for (const [here, there] of renamed) {
    chartParameters.delete(there);
    for (const value of parameters.getAll(here)) chartParameters.append(there, value);
  }
  const { differences, sweep, verdict } = defaultCompareView;
  return {
    filter,
    sort,
    archived,
    drawsOnly: parameters.get("draw") === "only",
    also: [...new Set(parameters.getAll("also").filter(Boolean))],
    charts: { ...readCompareView(chartParameters), only: [], differences, sweep, verdict },
    panels: readPanels(parameters.getAll("panel")),
  };
}

export function writeWorkspace(view: WorkspaceView): URLSearchParams {
  const parameters = new URLSearchParams();
  if (view.filter) parameters.set("q", view.filter);
  if (view.sort !== defaultWorkspace.sort) parameters.set("sort", view.sort);
  if (view.archived !== "no") parameters.set("archived", view.archived);
  if (view.drawsOnly) parameters.set("draw", "only");
  for (const run of view.also) parameters.append("also", run);
  for (const panel of view.panels) parameters.append("panel", writePanel(panel));
  const chartParameters = new URLSearchParams();
  writeCompareView(view.charts, chartParameters);
  for (const [name, value] of chartParameters)
    parameters.append(renamed.find(([, there]) => there === name)?.[0] ?? name, value);
  return parameters;
}

/**
 * The part of a view that is used again when the workspace is opened without one.
 *
 * A zoom, a search for charts and the choice of a few runs belong to one question: without them, every run is there
 * again, also one that was started since.
 */
export const lastingView = (view: WorkspaceView): WorkspaceView => ({
  ...view,
  drawsOnly: false,
  also: [],
  charts: { ...view.charts, search: "", low: null, high: null },
});

export const selectionOf = ({ filter, sort, archived, charts }: WorkspaceView): RunSelection => ({
  filter,
  sort,
  archived,
  group: charts.by,
});

/** List other runs. Which ones are drawn starts from the beginning, except for those that are hidden. */
export function withSelection(view: WorkspaceView, change: Partial<RunSelection>): WorkspaceView {
  const { group = view.charts.by, ...list } = change;
  const isOther =
    (change.filter ?? view.filter) !== view.filter || (change.archived ?? view.archived) !== view.archived;
  const isOtherGroup = group.join("\n") !== view.charts.by.join("\n");
  const hidden = isOtherGroup ? view.charts.hidden.filter((id) => !isGroupId(id)) : view.charts.hidden;
  return {
    ...view,
    ...list,
    ...(isOther ? { drawsOnly: false, also: [] } : {}),
    charts: { ...view.charts, by: group, hidden },
  };
}

const parallelSize = { columns: 2, heightPx: 330 };

/** Add a panel, in the place of another one if one is replaced. Parallel coordinates need room. */
export function addPanel(view: WorkspaceView, panel: AddedPanel, replaced?: AddedPanel): WorkspaceView {
  const { [replaced ? panelKey(replaced) : ""]: replacedSize, ...sizes } = view.charts.sizes;
  const key = panelKey(panel);
  const size = sizes[key] ?? replacedSize ?? (panel.kind === "parallel" ? parallelSize : undefined);
  return {
    ...view,
    panels: withPanel(view.panels, panel, replaced),
    charts: { ...view.charts, sizes: size ? { ...sizes, [key]: size } : sizes },
  };
}

export function removePanel(view: WorkspaceView, panel: AddedPanel): WorkspaceView {
  const { [panelKey(panel)]: _, ...sizes } = view.charts.sizes;
  return {
    ...view,
    panels: view.panels.filter((each) => each !== panel),
    charts: { ...view.charts, sizes },
  };
}

// Which runs are drawn

const groupPrefix = "group ";
export const isGroupId = (id: string): boolean => id.startsWith(groupPrefix);
/** The id of a group as a line of a chart and as something hidden; `key` identifies it among the rows of the list. */
export const groupLineId = (key: string): string => groupPrefix + key;

/** The group of a run, if runs are grouped, and all runs of that group. */
export type GroupOf = (run: string) => { id: string; runs: string[] } | null;

/** The runs that are drawn. `first` are the first ones of the list. */
export function drawnRuns(view: WorkspaceView, first: string[], groupOf: GroupOf): string[] {
  const hidden = new Set(view.charts.hidden);
  const chosen = new Set([...(view.drawsOnly ? [] : first), ...view.also]);
  return [...chosen].filter((run) => !hidden.has(run) && !hidden.has(groupOf(run)?.id ?? ""));
}

type Drawing = Pick<WorkspaceView, "drawsOnly" | "also"> & { hidden: string[] };
const drawingOf = ({ drawsOnly, also, charts }: WorkspaceView): Drawing => ({ drawsOnly, also, hidden: charts.hidden });
const withDrawing = (view: WorkspaceView, { hidden, ...change }: Drawing): WorkspaceView => ({
  ...view,
  ...change,
  charts: { ...view.charts, hidden },
});

/** Draw a run, or do not. */
export function toggleRun(view: WorkspaceView, run: string, first: string[], groupOf: GroupOf): WorkspaceView {
  const isDrawn = drawnRuns(view, first, groupOf).includes(run);
  const isFirst = !view.drawsOnly && first.includes(run);
  const { drawsOnly, also, hidden } = drawingOf(view);
  const others = (names: string[]): string[] => names.filter((other) => other !== run);
  if (isDrawn)
    return withDrawing(view, { drawsOnly, also: others(also), hidden: isFirst ? [...others(hidden), run] : hidden });
  const group = groupOf(run);
  let next = others(hidden);
  if (group && hidden.includes(group.id)) {
    // Only this one of a hidden group: hide the others one by one.
    const members = others(group.runs).filter((member) => first.includes(member) || also.includes(member));
    next = [...new Set([...next.filter((id) => id !== group.id), ...members])];
  }
  return withDrawing(view, { drawsOnly, also: isFirst ? also : [...others(also), run], hidden: next });
}

/** Draw all runs of a group, or none of them if some are drawn. */
export function toggleGroup(
  view: WorkspaceView,
  group: { id: string; runs: string[] },
  first: string[],
  groupOf: GroupOf,
): WorkspaceView {
  const members = new Set(group.runs);
  const { drawsOnly, also, hidden } = drawingOf(view);
  const isDrawn = drawnRuns(view, first, groupOf).some((run) => members.has(run));
  const outside = (names: string[]): string[] => names.filter((name) => !members.has(name) && name !== group.id);
  if (isDrawn)
    return withDrawing(view, {
      drawsOnly,
      also: outside(also),
      hidden: drawsOnly ? hidden : [...outside(hidden), group.id],
    });
  const later = group.runs.filter((run) => drawsOnly || !first.includes(run)).slice(0, maxDrawnRuns);
  return withDrawing(view, { drawsOnly, also: [...outside(also), ...later], hidden: outside(hidden) });
}

/** Draw only some runs. */
export const drawOnly = (view: WorkspaceView, runs: string[]): WorkspaceView =>
  withDrawing(view, { drawsOnly: true, also: runs.slice(0, maxDrawnRuns), hidden: [] });

/** Draw the first runs of the list again. */
export const drawAll = (view: WorkspaceView): WorkspaceView =>
  withDrawing(view, { drawsOnly: false, also: [], hidden: [] });

// Colours

/** A run, and how many runs were started before it; null if that is not known. */
export interface RunPlace {
  name: string;
  place: number | null;
}

/**
 * Give each run an index that it keeps: its place, or the next one if another run has it.
 *
 * A run has a colour because of the order in which runs were started, and not because of those that are drawn: it keeps
 * the colour when others are hidden or the filter changes, and everyone who opens the folder sees the same one. Runs
 * that were started one after another, such as those of a sweep, get the colours that differ most. The same map is
 * returned if it has all runs already.
 */
export function assignPlaces(
  known: ReadonlyMap<string, number>,
  runs: Iterable<RunPlace>,
): ReadonlyMap<string, number> {
  const missing = [...runs].filter(({ name }) => !known.has(name));
  if (missing.length === 0) return known;
  const next = new Map(known);
  const taken = new Set(known.values());
  let last = -1;
  for (const index of taken) last = Math.max(last, index);
  for (const { name, place } of missing) {
    if (next.has(name)) continue;
    const index = place === null || taken.has(place) ? last + 1 : place;
    last = Math.max(last, index);
    taken.add(index);
    next.set(name, index);
  }
  return next;
}

/** Give each name an index that it keeps, in the order of the names. */
export function assignIndexes(known: ReadonlyMap<string, number>, names: string[]): ReadonlyMap<string, number> {
  const missing = names.filter((name) => !known.has(name));
  if (missing.length === 0) return known;
  const next = new Map(known);
  let index = known.size;
  for (const name of missing) if (!next.has(name)) next.set(name, index++);
  return next;
}

/** The places of all runs, in the same order as the server has them in its table. */
export const placesOf = (runs: Pick<RunSummary, "name" | "started">[]): RunPlace[] =>
  runs
    .toSorted((a, b) => compare(a.started ?? Infinity, b.started ?? Infinity) || compare(a.name, b.name))
    .map(({ name }, place) => ({ name, place }));
const compare = <Value extends number | string>(a: Value, b: Value): number => (a < b ? -1 : a > b ? 1 : 0);
