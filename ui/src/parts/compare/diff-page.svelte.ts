/** The config and the results of the compared runs, which two tabs show. */

import { api, type DiffPage, type DiffQuery } from "../../api";
import { live } from "../../live.svelte";
import { keepEqual } from "../../model/equal";
import { refreshUntilIndexed, Resource } from "../../resource.svelte";
import { LiveVersions } from "./live-versions.svelte";

/** The most runs that a request may name. */
export const maxDiffRuns = 450;

export class DiffLoader {
  readonly #page: Resource<DiffPage>;
  readonly #runs: () => string[];

  /** Create it during a component's initialisation. */
  constructor(runs: () => string[], query: () => Pick<DiffQuery, "column" | "all">) {
    this.#runs = runs;
    this.#page = new Resource(() => api.getDiff({ ...query(), run: this.asked, code: false }), 250);
    $effect(() => this.#page.refreshWhenChanged(this.asked, query(), this.versions.value, live.numReconnects));
    refreshUntilIndexed(this.#page);
  }

  readonly versions = new LiveVersions(() => this.#runs());

  asked = $derived.by(keepEqual(() => this.#runs().slice(0, maxDiffRuns)));

  get page(): DiffPage | null {
    return this.#page.value;
  }

  get error(): string | null {
    return this.#page.error;
  }
}
