/** Values of the table of runs as texts and colours. */

import type { Json, Num, TableColumn } from "../api";
import { ago, bytes, clock, duration, nothing, number, plain, share } from "./format";
import type { Kind } from "./table-view";

export const isNumeric = (kind: Kind): boolean => !["text", "list", "bool"].includes(kind);

/** The text of a value, and a longer one for a tooltip. */
export function cellText(kind: Kind, value: Json | undefined, now: number): { text: string; title: string } {
  if (value === null || value === undefined) return { text: nothing, title: "" };
  const is = (text: string, title = text): { text: string; title: string } => ({ text, title });
  if (Array.isArray(value)) return is(value.map(plain).join(", "));
  if (typeof value === "boolean") return is(value ? "yes" : "no");
  if (typeof value === "number") {
    if (kind === "time") return is(ago(value, now), clock(value));
    if (kind === "duration") return is(duration(value), `${value} s`);
    if (kind === "share") return is(share(value), String(value));
    if (kind === "bytes") return is(bytes(value), `${value} bytes`);
    return is(number(value), String(value));
  }
  if (isNumeric(kind) && isNonFinite(value)) return is(number(value as Num));
  return is(plain(value));
}

export const isNonFinite = (value: Json | undefined): boolean =>
  value === "NaN" || value === "Infinity" || value === "-Infinity";

/** Where a number lies between the lowest and the highest of its column, 0 to 1; 1 is best where that is known. */
export function colorShare(column: TableColumn | undefined, value: Json | undefined): number | null {
  if (!column || column.low === null || column.high === null || column.low === column.high) return null;
  if (typeof value !== "number" || !isNumeric(column.kind) || column.kind === "time") return null;
  const { low, high } = column;
  // Learning rates and the like span several orders of magnitude.
  const isLog = low > 0 && high / low > 100;
  const at = (number: number): number => (isLog ? Math.log(number) : number);
  const found = Math.min(1, Math.max(0, (at(value) - at(low)) / (at(high) - at(low))));
  return column.direction < 0 ? 1 - found : found;
}
