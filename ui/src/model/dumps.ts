/** The parts of a dump as rows to show. A dump comes from a file, so each value is checked. */

import type { DumpView, Json, JsonObject } from "../api";

export interface LayerRow {
  name: string;
  /** Largest absolute values; null if they were not measured. */
  weight: number | null;
  gradient: number | null;
  /** By how much of its weights the last update changed the layer. */
  update: number | null;
  numNotFinite: number;
}

export interface MemoryUse {
  name: string;
  bytes: number;
  share: number;
}

const maxRows = 12;

const isObject = (value: Json | undefined): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const asObject = (value: Json | undefined): JsonObject => (isObject(value) ? value : {});

/** Return a number, also if it is written as text because JSON has no infinity. */
function asNumber(value: Json | undefined): number | null {
  if (value === "NaN" || value === "Infinity" || value === "-Infinity") return Number(value);
  return typeof value === "number" ? value : null;
}

/** Return the layers with values that are not finite, then those with the largest gradients. */
export function layerRows(content: JsonObject): LayerRow[] {
  const layers = asObject(content["layers"])["layers"];
  if (!Array.isArray(layers)) return [];
  const rows = layers.filter(isObject).map((layer) => {
    const [weight, gradient] = [asObject(layer["weight"]), asObject(layer["gradient"])];
    return {
      name: String(layer["name"] ?? ""),
      weight: asNumber(weight["absmax"]),
      gradient: asNumber(gradient["absmax"]),
      update: asNumber(layer["update_ratio"]),
      numNotFinite: (asNumber(weight["non_finite"]) ?? 0) + (asNumber(gradient["non_finite"]) ?? 0),
    };
  });
  const size = (row: LayerRow): number => (row.gradient !== null && Number.isFinite(row.gradient) ? row.gradient : 0);
  return rows.sort((a, b) => b.numNotFinite - a.numNotFinite || size(b) - size(a)).slice(0, maxRows);
}

/** Return what the memory of a GPU was used for, the largest part first. */
export function memoryUses(content: JsonObject): MemoryUse[] {
  const uses = Object.entries(asObject(asObject(content["memory"])["uses_bytes"]))
    .map(([name, bytes]) => ({ name, bytes: asNumber(bytes) ?? 0 }))
    .filter(({ bytes }) => bytes > 0);
  const total = uses.reduce((sum, { bytes }) => sum + bytes, 0);
  return uses.map((use) => ({ ...use, share: use.bytes / total })).sort((a, b) => b.bytes - a.bytes);
}

/** Return the stacks of threads as one text. */
export function stackText(content: JsonObject): string {
  const threads = asObject(content["stacks"])["threads"];
  if (!Array.isArray(threads)) return "";
  return threads
    .filter(isObject)
    .map((thread) => `Thread ${String(thread["thread"] ?? "")}\n${String(thread["stack"] ?? "")}`)
    .join("\n\n");
}

/** Return the last lines that the program printed as one text. */
export function outputText(content: JsonObject): string {
  const lines = asObject(content["output"])["lines"];
  return Array.isArray(lines) ? lines.map(String).join("\n") : "";
}

/** Return the dumps that no alert on the page refers to. */
export function dumpsWithoutAlert(dumps: DumpView[], alertIds: Iterable<string>): DumpView[] {
  const ids = new Set(alertIds);
  return dumps.filter(({ alert_id }) => alert_id === null || !ids.has(alert_id));
}
