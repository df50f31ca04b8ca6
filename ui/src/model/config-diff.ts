/** Compares the configs of two runs. */

import type { Json } from "../api";
import { isEqual } from "./equal";

export interface ConfigEntry {
  path: string;
  value: Json | undefined;
  other: Json | undefined;
  isDifferent: boolean;
}

/** Flatten nested values to paths such as `optimizer.lr`. */
export function flatten(value: Json, path = "", into = new Map<string, Json>()): Map<string, Json> {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0) {
    for (const [key, item] of Object.entries(value)) {
      const name = /[."]/.test(key) ? JSON.stringify(key) : key; // quoted, because `a.b` is also the path of a nested value
      flatten(item, path ? `${path}.${name}` : name, into);
    }
  } else if (path) {
    into.set(path, value);
  }
  return into;
}

export function compare(mine: Json, theirs: Json | null): ConfigEntry[] {
  const [left, right] = [flatten(mine), theirs === null ? null : flatten(theirs)];
  const paths = [...new Set([...left.keys(), ...(right?.keys() ?? [])])];
  return paths.map((path) => {
    const [value, other] = [left.get(path), right?.get(path)];
    return { path, value, other, isDifferent: right !== null && !isEqual(value, other) };
  });
}
