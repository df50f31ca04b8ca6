/** Saved views as the API has them: of the table, of the workspace, and comparisons. */

import type { ViewDetail, ViewRequest } from "../api";
import { format } from "./route";
import { defaultTable, maxGroupFields, newestFirst, type TableView } from "./table-view";
import { readWorkspace, selectionOf, withSelection, type WorkspaceView, writeWorkspace } from "./workspace-view";

/** The name of a view's file: lower-case letters, digits and dashes; empty if the name has none of them. */
export function slugOf(name: string): string {
  const plain = name
    .normalize("NFKD")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-");
  return plain.replace(/^-+/, "").slice(0, 64).replace(/-+$/, "");
}

export function fromSaved(saved: ViewDetail): TableView {
  return {
    filter: saved.filter,
    columns: saved.columns.length ? saved.columns : null,
    pinned: saved.pinned_columns,
    sort: saved.sort || newestFirst,
    group: saved.group.slice(0, maxGroupFields),
    archived: saved.archived,
    isOnlyDifferent: saved.only_differing,
    isColored: saved.colors["scale"] === true,
  };
}

/** The charts of a view, as the address of their page has them; null if it is a view of another page. */
function chartsOf(saved: ViewDetail, page: "compare" | "workspace"): string | null {
  const [chart] = saved.charts;
  const query = chart && typeof chart === "object" && !Array.isArray(chart) ? chart[page] : null;
  return typeof query === "string" ? query : null;
}

/** The address of a comparison that was saved as a view; null if the view is another one. */
export function comparisonOf(saved: ViewDetail): string | null {
  const query = chartsOf(saved, "compare");
  return query === null ? null : `#/compare/charts?${query}`;
}

/** The address that opens a view. */
export function viewAddress(saved: ViewDetail): string {
  const charts = chartsOf(saved, "workspace");
  if (charts === null) return comparisonOf(saved) ?? format({ page: "runs", table: fromSaved(saved) });
  const { filter, sort, group, archived } = fromSaved(saved);
  const view = readWorkspace(new URLSearchParams(charts));
  // The view was saved with these; someone may have changed the file since.
  return format({ page: "workspace", view: { ...withSelection(view, { sort, group }), filter, archived } });
}

/** Why a view of one page must not replace a saved one; empty if it may. */
export function viewConflict(replaced: ViewDetail, page: "table" | "workspace"): string {
  if (comparisonOf(replaced) !== null) return "A comparison has this name.";
  return chartsOf(replaced, "workspace") === null && page === "workspace"
    ? "A view of the table has this name."
    : chartsOf(replaced, "workspace") !== null && page === "table"
      ? "A view with charts has this name."
      : "";
}

/** A view of the workspace to save: an expression that selects runs, not the runs themselves, and the charts. */
export function toSavedWorkspace(name: string, view: WorkspaceView): ViewRequest {
  const query = writeWorkspace({ ...view, filter: "", sort: newestFirst, archived: "no" }).toString();
  const table = { ...defaultTable, ...selectionOf(view) };
  return { ...toSaved(name, table, []), charts: [{ workspace: query }] };
}

/** A comparison to save: the part of its address after the question mark. */
export function toSavedComparison(name: string, address: string): ViewRequest {
  const view = toSaved(name, defaultTable, []);
  return { ...view, charts: [{ compare: address.split("?").slice(1).join("?") }] };
}

/** A view to save; what the table does not know, such as charts, is kept from the one that it replaces. */
export function toSaved(name: string, view: TableView, columns: string[], replaced?: ViewDetail): ViewRequest {
  return {
    name,
    filter: view.filter,
    columns: view.columns ?? columns,
    sort: view.sort,
    group: view.group,
    archived: view.archived,
    only_differing: view.isOnlyDifferent,
    pinned_columns: view.pinned,
    pinned_runs: replaced?.pinned_runs ?? [],
    charts: replaced?.charts ?? [],
    colors: { ...replaced?.colors, scale: view.isColored },
    x: replaced?.x ?? "",
  };
}
