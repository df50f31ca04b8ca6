/** Fetches the series that panels show: many in one request, whole ones once, and from then on what is new. */

import type { Series, ViewQuery, Views, XAxis } from "./api";
import { merge, numPoints } from "./model/series";

export interface View {
  x: XAxis;
  low: number | null;
  high: number | null;
}

type Fetch = (run: string, query: ViewQuery, signal: AbortSignal) => Promise<Views>;
type Listener = (series: Series) => void;

interface Entry {
  run: string;
  name: string;
  series: Series | null;
  /** What has come so far; null if nothing, or if all is to be fetched again. */
  cursor: string | null;
  /** The latest version that was asked for. */
  version: string;
  /** When it was last fetched, in requests. */
  turn: number;
  /** Whether the last request failed; it is made again after a while. */
  hasFailed: boolean;
  listeners: Set<Listener>;
}

const mostNames = 24;
const pauseMs = 150;
const retryMs = 2000;

export class SeriesLoader {
  readonly #entries = new Map<string, Entry>();
  readonly #versions = new Map<string, string>();
  readonly #pumping = new Set<string>();
  readonly #fetch: Fetch;
  readonly #points: number;
  readonly #onFault: (message: string | null) => void;
  #view: View;
  #aborter = new AbortController();
  #turn = 0;
  #retry: ReturnType<typeof setTimeout> | undefined;

  constructor(fetch: Fetch, view: View, points: number, onFault: (message: string | null) => void = () => {}) {
    this.#fetch = fetch;
    this.#view = view;
    this.#points = points;
    this.#onFault = onFault;
  }

  /** Keep telling of a series, from now on until the answer is called. */
  subscribe(run: string, name: string, listener: Listener): () => void {
    const key = `${run}\n${name}`;
    let entry = this.#entries.get(key);
    if (!entry) {
      entry = { run, name, series: null, cursor: null, version: "", turn: 0, hasFailed: false, listeners: new Set() };
      this.#entries.set(key, entry);
    }
    entry.listeners.add(listener);
    if (entry.series) listener(entry.series);
    queueMicrotask(() => void this.#pump(run));
    return () => {
      entry.listeners.delete(listener);
      if (entry.listeners.size === 0) this.#entries.delete(key);
    };
  }

  /** Ask again for what could not be had. */
  retry(): void {
    clearTimeout(this.#retry);
    this.#retry = undefined;
    const failed = [...this.#entries.values()].filter((entry) => entry.hasFailed);
    for (const entry of failed) entry.hasFailed = false;
    for (const run of new Set(failed.map((entry) => entry.run))) void this.#pump(run);
  }

  /** What to fetch: as much again to the left of a view as it is wide, so that smoothing has a past there. */
  #wide(): Omit<ViewQuery, "names"> {
    const { x, low, high } = this.#view;
    if (low === null || high === null) return { x, low, high, points: this.#points };
    return { x, low: low - (high - low), high, points: 2 * this.#points };
  }

  /** Say that a run has recorded something. */
  renew(run: string, version: string): void {
    this.#versions.set(run, version);
    void this.#pump(run);
  }

  setView(view: View): void {
    if (JSON.stringify(view) === JSON.stringify(this.#view)) return;
    const isAnotherAxis = view.x !== this.#view.x;
    this.#view = view;
    this.#aborter.abort();
    this.#aborter = new AbortController();
    for (const entry of this.#entries.values()) {
      entry.cursor = null;
      if (isAnotherAxis) entry.series = null;
    }
    for (const run of new Set([...this.#entries.values()].map((entry) => entry.run))) void this.#pump(run);
  }

  close(): void {
    clearTimeout(this.#retry);
    this.#aborter.abort();
    this.#entries.clear();
  }

  async #pump(run: string): Promise<void> {
    if (this.#pumping.has(run)) return;
    this.#pumping.add(run);
    try {
      for (let batch = this.#next(run); batch.length > 0; batch = this.#next(run)) {
        await this.#load(run, batch);
        if (batch[0]?.cursor !== null) await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    } finally {
      this.#pumping.delete(run);
    }
  }

  /** The entries to be fetched next, all from the same cursor. */
  #next(run: string): Entry[] {
    const version = this.#versions.get(run) ?? "";
    const due = [...this.#entries.values()].filter(
      (entry) => entry.run === run && !entry.hasFailed && (entry.cursor === null || entry.version !== version),
    );
    const cursors = new Set(due.map((entry) => entry.cursor));
    // Panels that came into sight at different times are fetched whole once, and from then on together.
    if (cursors.size > 1 && due.length <= mostNames) for (const entry of due) entry.cursor = null;
    due.sort((a, b) => a.turn - b.turn); // whoever waited longest is next, or some would wait for ever
    const first = due.find((entry) => entry.cursor === null) ?? due[0];
    return first ? due.filter((entry) => entry.cursor === first.cursor).slice(0, mostNames) : [];
  }

  async #load(run: string, batch: Entry[]): Promise<void> {
    const { signal } = this.#aborter;
    this.#turn++;
    for (const entry of batch) entry.turn = this.#turn;
    const version = this.#versions.get(run) ?? "";
    const after = batch[0]?.cursor ?? null;
    const query: ViewQuery = { ...this.#wide(), names: batch.map((entry) => entry.name), after };
    let views: Views;
    try {
      views = await this.#fetch(run, query, signal);
      this.#onFault(null);
    } catch (error) {
      if (signal.aborted) return;
      for (const entry of batch) entry.hasFailed = true;
      this.#onFault(error instanceof Error ? error.message : String(error));
      this.#retry ??= setTimeout(() => this.retry(), retryMs);
      return;
    }
    if (signal.aborted) return; // of a view that is gone
    batch.forEach((entry, index) => this.#put(entry, views, index, version));
  }

  #put(entry: Entry, views: Views, index: number, version: string): void {
    const series = views.series[index];
    if (!series) return;
    const hasNews = views.is_whole || series.lines.length > 0 || series.marks.length > 0;
    entry.series = views.is_whole || !entry.series ? series : hasNews ? merge(entry.series, series) : entry.series;
    entry.version = version;
    // Too many points to draw: the next time, ask for a picture of the whole again.
    const isFull = !views.is_whole && numPoints(entry.series) > 3 * this.#points;
    entry.cursor = isFull ? null : views.cursor;
    if (hasNews) for (const listener of entry.listeners) listener(entry.series);
  }
}
