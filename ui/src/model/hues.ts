/** The colour of each name, the same wherever it is drawn. */

const numHues = 12;
/** By hue. Spans, and the phases that they are summed up in, have the same one. */
const known = [
  ["training_single_iteration", "iterations", "iteration"],
  ["checkpoint_save_sync", "checkpoint_save_async", "checkpoint_save_finalization", "checkpoint"],
  ["model_forward", "forward"],
  ["validation_loop", "validation_single_iteration", "validation"],
  ["model_backward", "backward"],
  ["optimizer_update", "zero_grad", "optimizer_initialization", "optimizer"],
  ["data_loading", "data_loader_initialization", "data"],
  ["testing_loop", "TESTING_SINGLE_ITERATION", "testing"],
  ["training_loop"],
  ["model_initialization"],
  ["checkpoint_load", "distributed_code_initialization", "failed"],
  ["application", "other"],
];
const fixedHues = new Map(known.flatMap((names, hue) => names.map((name) => [name, hue] as const)));

/** The colour of a name, always the same, as an index into the palette. */
export function colourOf(name: string): number {
  const fixed = fixedHues.get(name);
  if (fixed !== undefined) return fixed;
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return ((hash ^ (hash >>> 15)) >>> 0) % numHues;
}
