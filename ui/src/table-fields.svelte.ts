/** The fields of runs: names for expressions, columns and groups. */

import { api, type FieldsPage } from "./api";
import { live } from "./live.svelte";
import { Resource } from "./resource.svelte";

const usualPeriodSeconds = 20;

/** Create it during a component's initialisation. `revision` changes when fields may have changed otherwise. */
export function tableFields(revision: () => unknown = () => null): Resource<FieldsPage> {
  return fieldsOf(() => "", revision);
}

/**
 * The fields of the runs that match a filter, which vary less than those of all runs.
 *
 * Returns those of all runs without a filter, until the others are loaded, and if no run matches.
 */
export function matchingFields(
  all: Resource<FieldsPage>,
  filter: () => string,
  revision: () => unknown = () => null,
): () => FieldsPage | null {
  const matching = fieldsOf(filter, revision, () => filter() !== "");
  return () => (filter() !== "" && matching.value?.fields.length ? matching.value : all.value);
}

function fieldsOf(
  filter: () => string,
  revision: () => unknown,
  isWanted: () => boolean = () => true,
): Resource<FieldsPage> {
  let durationSeconds = 0;
  const fields = new Resource(async () => {
    const startedAtSeconds = live.clock();
    const page = await api.listFields(filter());
    durationSeconds = live.clock() - startedAtSeconds;
    return page;
  }, 1_500);
  const isTraining = $derived(live.runs.some((run) => run.state === "running"));
  const period = $derived(
    isTraining ? Math.floor(live.now / Math.max(usualPeriodSeconds, durationSeconds * usualPeriodSeconds)) : 0,
  );
  $effect(() => {
    // The list of runs arrives first; asking before would ask twice, and thousands of runs take seconds.
    if (live.isLoaded && isWanted())
      fields.refreshWhenChanged(live.numReconnects, live.runs.length, period, revision(), filter());
  });
  $effect(() => {
    if (isWanted() && (fields.value?.indexed ?? 1) < 1) void fields.refresh();
  });
  return fields;
}
