/** Routes and their addresses. The address contains the whole view, so that it can be shared. */

import { type AxisName, readAxis } from "./axis-name";
import {
  type Arrangement,
  type CompareTab,
  compareTabs,
  type CompareView,
  defaultCompareView,
  readArrangement,
  readCompareView,
  writeArrangement,
  writeCompareView,
} from "./compare-view";
import { readNumber } from "./compare-choices";
import { readZoom } from "./media-grid";
import { type Against, readAgainst } from "./media-table";
import { readTable, type TableView, writeTable } from "./table-view";
import { defaultWorkspace, isTableAddress, readWorkspace, type WorkspaceView, writeWorkspace } from "./workspace-view";

export const tabs = [
  "charts",
  "overview",
  "timeline",
  "health",
  "log",
  "events",
  "completions",
  "control",
  "ranks",
  "media",
] as const;
export type Tab = (typeof tabs)[number];

export type Route =
  | { page: "workspace"; view: WorkspaceView }
  | { page: "runs"; table: TableView }
  | { page: "trash" }
  | { page: "compare"; tab: CompareTab; runs: string[]; view: CompareView }
  | { page: "run"; run: string; tab: Tab; others: string[]; view: ChartView };

export interface ChartView extends Arrangement {
  x: AxisName;
  /** Whether the lines of the runs that a run started from are drawn behind its own. */
  showsParents: boolean;
  search: string;
  low: number | null;
  high: number | null;
  /** The name whose media are shown; empty for all. */
  mediaName: string;
  /** The step whose media are shown; null for the latest. */
  mediaStep: number | null;
  /** The zoom of the viewer of pictures: `fit`, or a factor. */
  mediaZoom: string;
  /** The step that logged tables are compared with. */
  mediaAgainst: Against;
  /** Whether the pictures of all steps are shown side by side. */
  showsMediaSteps: boolean;
  /** Whether histograms are ridges instead of a map. */
  showsRidges: boolean;
}

/** The most runs in the charts of a run; the compare page has no limit. */
export const maxComparedRuns = 12;
export const defaultView: ChartView = {
  ...readArrangement(new URLSearchParams()),
  x: "step",
  showsParents: false,
  search: "",
  low: null,
  high: null,
  mediaName: "",
  mediaStep: null,
  mediaZoom: "fit",
  mediaAgainst: "",
  showsMediaSteps: false,
  showsRidges: false,
};

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parameters = new URLSearchParams(query);
  const [first, name, tab] = path.replace(/^\//, "").split("/").map(decode);
  if (first === "run" && name) {
    return {
      page: "run",
      run: name,
      tab: tabs.find((known) => known === tab) ?? "charts",
      others: [...new Set(parameters.getAll("with"))].filter((other) => other !== name).slice(0, maxComparedRuns - 1),
      view: parseView(parameters),
    };
  }
  if (first === "compare") {
    return {
      page: "compare",
      tab: compareTabs.find((known) => known === name) ?? "charts",
      runs: [...new Set(parameters.getAll("run"))].filter(Boolean),
      view: readCompareView(parameters),
    };
  }
  if (first === "trash") return { page: "trash" };
  if (first === "table" || isTableAddress(parameters)) return { page: "runs", table: readTable(parameters) };
  return { page: "workspace", view: readWorkspace(parameters) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parseView(parameters: URLSearchParams): ChartView {
  return {
    ...readArrangement(parameters),
    x: readAxis(parameters.get("x")) ?? defaultView.x,
    showsParents: parameters.get("parents") === "1",
    search: parameters.get("q") ?? "",
    low: readNumber(parameters.get("low")),
    high: readNumber(parameters.get("high")),
    mediaName: parameters.get("media") ?? "",
    mediaStep: readNumber(parameters.get("step")),
    mediaZoom: readZoom(parameters.get("zoom")),
    mediaAgainst: readAgainst(parameters.get("against")),
    showsMediaSteps: parameters.get("pictures") === "steps",
    showsRidges: parameters.get("histograms") === "ridges",
  };
}

export function format(route: Route): string {
  const parameters = new URLSearchParams();
  if (route.page === "trash") return "#/trash";
  if (route.page === "workspace") return withQuery("#/", writeWorkspace(route.view));
  if (route.page === "runs") return withQuery("#/table", writeTable(route.table));
  if (route.page === "compare") {
    for (const run of route.runs) parameters.append("run", run);
    writeCompareView(route.view, parameters);
    return withQuery(`#/compare/${route.tab}`, parameters);
  }
  for (const other of route.others) parameters.append("with", other);
  const { view } = route;
  if (view.x !== defaultView.x) parameters.set("x", view.x);
  if (view.showsParents) parameters.set("parents", "1");
  if (view.search) parameters.set("q", view.search);
  if (view.low !== null) parameters.set("low", String(view.low));
  if (view.high !== null) parameters.set("high", String(view.high));
  if (view.mediaName) parameters.set("media", view.mediaName);
  if (view.mediaStep !== null) parameters.set("step", String(view.mediaStep));
  if (view.mediaZoom !== defaultView.mediaZoom) parameters.set("zoom", view.mediaZoom);
  if (view.mediaAgainst !== "") parameters.set("against", String(view.mediaAgainst));
  if (view.showsMediaSteps) parameters.set("pictures", "steps");
  if (view.showsRidges) parameters.set("histograms", "ridges");
  writeArrangement(view, parameters);
  return withQuery(`#/run/${encodeURIComponent(route.run)}/${route.tab}`, parameters);
}

function withQuery(path: string, parameters: URLSearchParams): string {
  const query = parameters.toString();
  return query ? `${path}?${query}` : path;
}

/** The route of someone who sees only one project, in which runs are named without it; the same one if it is right. */
export function withoutProject(route: Route, project: string | null): Route {
  const own = (run: string): string =>
    project !== null && run.startsWith(`${project}/`) ? run.slice(project.length + 1) : run;
  if (route.page === "run") {
    const names = [route.run, ...route.others];
    if (names.every((name) => own(name) === name)) return route;
    return { ...route, run: own(route.run), others: route.others.map(own) };
  }
  if (route.page === "compare" && route.runs.some((name) => own(name) !== name)) {
    return { ...route, runs: [...new Set(route.runs.map(own))] };
  }
  return route;
}

/** The first page. */
export const workspacePage: Route = { page: "workspace", view: defaultWorkspace };

export function runAddress(run: string, tab: Tab = "charts", others: string[] = []): string {
  return format({ page: "run", run, tab, others, view: defaultView });
}

export function compareAddress(runs: string[], tab: CompareTab = "charts"): string {
  return format({ page: "compare", tab, runs, view: defaultCompareView });
}
