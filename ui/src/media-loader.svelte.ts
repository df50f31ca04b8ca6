/** Loads the media of one name, step by step as they come into view. */

import { api } from "./api";
import { itemsByStep, type MediaItem } from "./model/media";

const maxSteps = 400;

export class MediaLoader {
  /** The items of the steps that are loaded. */
  steps = $state.raw(new Map<number, MediaItem[]>());
  error = $state<string | null>(null);

  readonly #run: string;
  readonly #name: string;
  /** For each step the version of the media that it was loaded with. */
  #versions = new Map<number, number>();
  #wanted: number[] = [];
  #version = 0;
  #isLoading = false;

  constructor(run: string, name: string) {
    this.#run = run;
    this.#name = name;
  }

  /** Load steps that are not loaded, and those that may have changed since another version. */
  async load(steps: number[], version: number): Promise<void> {
    [this.#wanted, this.#version] = [steps, version];
    if (this.#isLoading) return;
    this.#isLoading = true;
    for (let missing = this.#missing(); missing.length; missing = this.#missing()) {
      try {
        await this.#fetch(missing, this.#version);
        this.error = null;
      } catch (error) {
        this.error = error instanceof Error ? error.message : String(error);
        break;
      }
    }
    this.#isLoading = false;
  }

  #missing(): number[] {
    return this.#wanted.filter((step) => this.#versions.get(step) !== this.#version);
  }

  async #fetch(steps: number[], version: number): Promise<void> {
    const [low, high] = [Math.min(...steps), Math.max(...steps)];
    const query = { name: this.#name, step_min: low, step_max: high, limit: 1000 };
    const page = await api.getMediaItems(this.#run, query);
    const oldest = page.is_whole ? low : Math.min(high, ...page.records.map((record) => record.step));
    const added = itemsByStep(page.records);
    for (const step of steps.filter((each) => each >= oldest)) {
      if (!added.has(step)) added.set(step, []);
    }
    for (const step of added.keys()) this.#versions.set(step, version);
    const all = new Map([...[...this.steps].filter(([step]) => !added.has(step)), ...added]);
    for (const step of [...all.keys()].slice(0, Math.max(0, all.size - maxSteps))) {
      if (steps.includes(step)) continue;
      all.delete(step);
      this.#versions.delete(step);
    }
    this.steps = all;
  }
}
