/** Groups of runs as rows of a table. */

import type { Json, TableGroup, TableGroupsPage } from "../api";
import { plain } from "./format";
import { fieldParts } from "./table-view";

export type TableRow =
  { kind: "run"; name: string } | { kind: "group"; id: string; group: TableGroup; isOpen: boolean };

/** The identity of a group, also after it has gained runs. */
export const groupId = (group: TableGroup): string => JSON.stringify(group.key);

const valueText = (value: Json): string =>
  Array.isArray(value) ? value.map(plain).join(", ") || "none" : plain(value);

/**
 * What the runs of a group have in common. Fields that they lack are left out, and nested names are short if they are
 * clear without their parents.
 */
export function groupTitle(by: string[], key: Json[]): string {
  const names = by.map((field) => fieldParts(field).name);
  const lastWords = names.map((name) => name.slice(name.lastIndexOf(".") + 1));
  const parts = names.flatMap((name, index) => {
    const value = key[index] ?? null;
    if (value === null && by.length > 1) return [];
    const last = lastWords[index] ?? name;
    return `${lastWords.indexOf(last) === lastWords.lastIndexOf(last) ? last : name} ${valueText(value)}`;
  });
  return parts.join(" · ") || "none of these fields";
}

/** The groups, with the runs of those that are open. */
export function groupRows(page: TableGroupsPage, open: ReadonlySet<string>, sort: string): TableRow[] {
  return sortGroups(page, sort).flatMap((group): TableRow[] => {
    const id = groupId(group);
    const isOpen = open.has(id);
    const members = isOpen ? group.runs.map((name): TableRow => ({ kind: "run", name })) : [];
    return [{ kind: "group", id, group, isOpen }, ...members];
  });
}

/** Order groups by the mean of a column, or by a field they are grouped by; else the largest come first. */
function sortGroups({ groups, columns, by }: TableGroupsPage, sort: string): TableGroup[] {
  const field = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  const [column, key] = [columns.indexOf(field), by.indexOf(field)];
  const value = (group: TableGroup): Json => group.key[key] ?? group.cells[column]?.mean ?? null;
  if (column < 0 && key < 0) return groups;
  return groups.toSorted((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    if (typeof left === "number" && typeof right === "number") return sign * (left - right);
    return sign * String(left).localeCompare(String(right), "en", { numeric: true });
  });
}

/** By column, the index of the group with the best mean. */
export function bestGroups(page: TableGroupsPage, direction: (column: string) => number): Record<string, string> {
  const found: Record<string, string> = {};
  page.columns.forEach((column, index) => {
    const sign = direction(column);
    const known = page.groups.filter((group) => typeof group.cells[index]?.mean === "number");
    if (!sign || known.length < 2) return;
    const score = (group: TableGroup): number => sign * (group.cells[index]?.mean ?? 0);
    found[column] = groupId(known.reduce((best, group) => (score(group) > score(best) ? group : best)));
  });
  return found;
}
