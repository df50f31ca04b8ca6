/** Configs side by side. */

import type { Json } from "../api";

export interface Entry {
  path: string;
  value: Json | undefined;
  other: Json | undefined;
  isDifferent: boolean;
}

/** Give nested values one name each: `optimizer.lr`. */
export function flatten(value: Json, path = "", into = new Map<string, Json>()): Map<string, Json> {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0) {
    for (const [key, item] of Object.entries(value)) {
      const name = /[."]/.test(key) ? JSON.stringify(key) : key; // or `a.b` could be two things
      flatten(item, path ? `${path}.${name}` : name, into);
    }
  } else if (path) {
    into.set(path, value);
  }
  return into;
}

export function compare(mine: Json, theirs: Json | null): Entry[] {
  const [left, right] = [flatten(mine), theirs === null ? null : flatten(theirs)];
  const paths = [...new Set([...left.keys(), ...(right?.keys() ?? [])])];
  return paths.map((path) => {
    const [value, other] = [left.get(path), right?.get(path)];
    return { path, value, other, isDifferent: right !== null && JSON.stringify(value) !== JSON.stringify(other) };
  });
}
