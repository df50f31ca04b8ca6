/** Saved views of the table as the API has them. */

import type { ViewDetail, ViewRequest } from "../api";
import { defaultTable, maxGroupFields, newestFirst, type TableView } from "./table-view";

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

/** The address of a comparison that was saved as a view; null if the view is one of the table. */
export function comparisonOf(saved: ViewDetail): string | null {
  const [chart] = saved.charts;
  const query = chart && typeof chart === "object" && !Array.isArray(chart) ? chart["compare"] : null;
  return typeof query === "string" ? `#/compare/charts?${query}` : null;
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
