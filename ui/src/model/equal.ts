/** Structural equality, and derived values that change only when their content does. */

/** Whether two values have the same content: primitives, arrays and plain objects. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every(
    (key) => Object.hasOwn(b, key) && isEqual((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key]),
  );
}

/**
 * Wrap a computation so that it returns the previous object while the content is the same.
 *
 * Svelte compares derived values by identity: `$derived.by(keepEqual(() => [...]))` does not rerun the effects that
 * depend on it when the array is new but its content is not.
 */
export function keepEqual<Value>(compute: () => Value): () => Value {
  let previous: Value | undefined;
  return () => {
    const next = compute();
    if (previous === undefined || !isEqual(previous, next)) previous = next;
    return previous;
  };
}
