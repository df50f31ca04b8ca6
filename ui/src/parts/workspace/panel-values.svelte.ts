/** The values of the drawn runs in the fields of all added panels. */

import { api, type Json, type TableColumn } from "../../api";
import { live } from "../../live.svelte";
import { selectRuns } from "../../model/query-text";
import { refreshUntilIndexed, Resource } from "../../resource.svelte";
import { LiveVersions } from "../compare/live-versions.svelte";

const maxRows = 1_000;

interface LoadedValues {
  byRun: ReadonlyMap<string, ReadonlyMap<string, Json>>;
  columns: Record<string, TableColumn>;
  /** The share of runs whose journals are read. */
  indexed: number;
}

export class PanelValues {
  readonly #loaded: Resource<LoadedValues>;

  /** Create it during a component's initialisation. */
  constructor(runs: () => string[], fields: () => string[]) {
    const versions = new LiveVersions(runs);
    this.#loaded = new Resource(() => load(runs(), fields()), 500);
    $effect(() => {
      if (fields().length > 0 && runs().length > 0)
        this.#loaded.refreshWhenChanged(runs(), fields(), versions.value, live.numReconnects);
    });
    refreshUntilIndexed(this.#loaded as Resource<{ indexed: number }>);
  }

  get error(): string | null {
    return this.#loaded.error;
  }

  get isLoaded(): boolean {
    return this.#loaded.value !== null;
  }

  /** The value of a run; undefined before it is loaded, null if the run has none. */
  valueOf(run: string, field: string): Json | undefined {
    return this.#loaded.value?.byRun.get(run)?.get(field);
  }

  columnOf(field: string): TableColumn | undefined {
    return this.#loaded.value?.columns[field];
  }
}

async function load(runs: string[], fields: string[]): Promise<LoadedValues> {
  const byRun = new Map<string, ReadonlyMap<string, Json>>();
  let columns: Record<string, TableColumn> = {};
  let indexed = 1;
  for (const { filter } of selectRuns(runs)) {
    const page = await api.getTable({ filter, sort: "", archived: "all", column: fields, limit: maxRows, offset: 0 });
    indexed = Math.min(indexed, page.indexed);
    columns = { ...columns, ...Object.fromEntries(page.columns.map((column) => [column.field, column])) };
    for (const { name, values } of page.rows)
      byRun.set(name, new Map(page.columns.map(({ field }, index) => [field, values[index] ?? null])));
  }
  return { byRun, columns, indexed };
}
