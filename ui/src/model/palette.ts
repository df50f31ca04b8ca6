/** Colours by name, the same in every view. */

const numColours = 12;
/** Names by colour index. A phase has the colour of its spans. */
const namesByIndex = [
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
const fixedIndexes = new Map(namesByIndex.flatMap((names, index) => names.map((name) => [name, index] as const)));

/** The colour of a name, as an index into the palette. Unknown names are hashed (FNV-1a). */
export function colourIndex(name: string): number {
  const fixed = fixedIndexes.get(name);
  if (fixed !== undefined) return fixed;
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return ((hash ^ (hash >>> 15)) >>> 0) % numColours;
}
