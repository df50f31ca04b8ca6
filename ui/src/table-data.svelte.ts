/**
 * The rows of the table of runs, fetched for what is in view.
 *
 * Rows are fetched in blocks, and of each block only the columns that are visible; the table asks for its view with
 * `show` whenever it scrolls. One request runs at a time, so fast scrolling skips what is no longer in view. Values are
 * kept by the name of the run: a refresh replaces them one by one, and nothing flickers while it is under way.
 */

import {
  api,
  type Json,
  type QueryProblem,
  type RunState,
  type TableColumn,
  type TablePage,
  type TableQuery,
} from "./api";
import { selectRuns } from "./model/query-text";

const blockSize = 100;
const maxMembers = 1_000;
const refreshMs = 1_000;
const indexingMs = 400;
const retryMs = 2_000;
/** A server that needs long for a request is asked less often. */
const restFactor = 4;

export interface TableRun {
  name: string;
  state: RunState;
  /** How many runs were started before it. */
  place: number;
  values: Map<string, Json>;
}

interface Shown {
  first: number;
  last: number;
  columns: string[];
  /** Runs that are shown by name, as members of a group. */
  names: string[];
}

type Selection = Required<Pick<TableQuery, "filter" | "sort" | "archived">>;

export class TableData {
  numMatching = $state(0);
  numRuns = $state(0);
  problems = $state.raw<QueryProblem[]>([]);
  /** The share of runs whose fields are known. */
  indexed = $state(1);
  error = $state<string | null>(null);
  isLoaded = $state(false);
  /** Whether the rows belong to an earlier selection. */
  isOutdated = $state(false);
  columns = $state.raw<Record<string, TableColumn>>({});

  /** Changes whenever rows or values do. */
  #revision = $state(0);
  #order: string[] = [];
  #runs = new Map<string, TableRun>();
  #selection: Selection = { filter: "", sort: "", archived: "no" };
  #shown: Shown = { first: 0, last: 0, columns: [], names: [] };
  /** By block, the columns that were fetched since the last refresh. */
  #blocks = new Map<number, Set<string>>();
  /** By run, the columns that were fetched by name since the last refresh. */
  #named = new Map<string, Set<string>>();
  /** The number of rows whose names are always fetched, wherever the table is scrolled. */
  #numFirst = 0;
  #isNew = true;
  #isUnfinished = false;
  /** Whether a selection was made: the table says what is in view before. */
  #isSelected = false;
  #isFetching = false;
  #isClosed = false;
  #refreshedAt = 0;
  #tookMs = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Create it during a component's initialisation: it is closed together with the component. */
  constructor(numFirst = 0) {
    this.#numFirst = numFirst;
    $effect(() => () => {
      this.#isClosed = true;
      clearTimeout(this.#timer);
    });
  }

  /** The run in a row, if it is known already. */
  row(index: number): TableRun | null {
    void this.#revision;
    return this.#runs.get(this.#order[index] ?? "") ?? null;
  }

  /** The names in the first rows, as far as they are known. */
  first(): string[] {
    void this.#revision;
    return this.#order.slice(0, this.#numFirst).filter((name) => name !== undefined);
  }

  /** The row of a run; -1 if it is not known. */
  indexOf(name: string): number {
    void this.#revision;
    return this.#order.indexOf(name);
  }

  run(name: string): TableRun | null {
    void this.#revision;
    return this.#runs.get(name) ?? null;
  }

  /**
   * Choose which runs are in the table, and their order.
   *
   * While an expression is unfinished, the rows before it stay until some run matches.
   */
  select(selection: Selection, isUnfinished = false): void {
    this.#isUnfinished = isUnfinished;
    if (JSON.stringify(selection) === JSON.stringify(this.#selection) && !this.#isNew) return;
    this.#selection = selection;
    this.#isSelected = true;
    this.#isNew = true;
    this.isOutdated = this.isLoaded;
    this.#blocks.clear();
    this.#named.clear();
    void this.#fetchShown();
  }

  /** Say which rows and columns are in view. */
  show(first: number, last: number, columns: string[], names: string[] = []): void {
    this.#shown = { first, last, columns, names };
    void this.#fetchShown();
  }

  /** Fetch what is in view again, though not too often. */
  refresh(isUrgent = false): void {
    const pause = isUrgent ? 0 : Math.max(refreshMs, this.#tookMs * restFactor);
    this.#schedule(Math.max(0, this.#refreshedAt + pause - performance.now()));
  }

  /** The names of runs by their rows; of all that match by default. */
  async names(first = 0, last = Infinity): Promise<string[]> {
    const found: string[] = [];
    while (first + found.length < last) {
      const limit = Math.min(10_000, last - first - found.length);
      const page = await api.getTable({ ...this.#selection, limit, offset: first + found.length });
      found.push(...page.rows.map((row) => row.name));
      if (page.rows.length < limit) break;
    }
    return found;
  }

  #schedule(delayMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#refreshedAt = performance.now();
      this.#blocks.clear();
      this.#named.clear();
      void this.#fetchShown();
    }, delayMs);
  }

  async #fetchShown(): Promise<void> {
    if (this.#isFetching || this.#isClosed || !this.#isSelected) return;
    this.#isFetching = true;
    try {
      for (let query = this.#next(); query && !this.#isClosed; query = this.#next()) await this.#fetch(query);
      this.error = null;
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
      if (!this.#isClosed) this.#schedule(retryMs);
    } finally {
      this.#isFetching = false;
    }
  }

  /** The next request for what is in view but not known. */
  #next(): (TableQuery & { names?: string[] }) | null {
    const { first, last, columns, names } = this.#shown;
    // Nothing may be in view because there were no runs: a refresh must find new ones.
    const isFirst = this.#isNew || this.#blocks.size === 0;
    const end = isFirst ? Math.max(last, first + 1) : Math.min(last, this.numMatching);
    const blocks: number[] = [];
    for (let block = Math.floor(first / blockSize); block * blockSize < end; block++) blocks.push(block);
    for (const block of blocks) {
      const known = this.#blocks.get(block);
      const missing = columns.filter((column) => !known?.has(column));
      if (known && missing.length === 0) continue;
      // One request for the first view of a page that needs more names than it has rows.
      const isWhole = block === 0 && !known;
      const limit = isWhole ? Math.max(blockSize, Math.ceil(this.#numFirst / blockSize) * blockSize) : blockSize;
      return { ...this.#selection, column: missing, offset: block * blockSize, limit };
    }
    for (let block = 0; block * blockSize < Math.min(this.#numFirst, this.numMatching); block++)
      if (!this.#blocks.has(block))
        return { ...this.#selection, column: [], offset: block * blockSize, limit: blockSize };
    const wanted = names.filter((name) => columns.some((column) => !this.#named.get(name)?.has(column)));
    const [part] = selectRuns(wanted);
    if (!part) return null;
    return { ...part, sort: "", archived: "all", column: columns, limit: maxMembers, offset: 0 };
  }

  async #fetch({ names, ...query }: TableQuery & { names?: string[] }): Promise<void> {
    const selection = this.#selection;
    const began = performance.now();
    const page = await api.getTable(query);
    this.#tookMs = performance.now() - began;
    if (this.#isClosed || selection !== this.#selection) return;
    if (names) for (const name of names) this.#add(this.#named, name, query.column ?? []);
    else this.#addBlock(page, query);
    for (const line of page.rows) {
      const run = this.#runs.get(line.name);
      const values = new Map(run?.values);
      page.columns.forEach((column, index) => values.set(column.field, line.values[index] ?? null));
      this.#runs.set(line.name, { name: line.name, state: line.state, place: line.place, values });
    }
    if (page.indexed < 1) this.#schedule(indexingMs);
    this.#revision++;
  }

  #addBlock(page: TablePage, query: TableQuery): void {
    const offset = query.offset ?? 0;
    const hasProblem = this.#isUnfinished || page.problems.some((problem) => problem.position !== null);
    const isInvalid = hasProblem && page.num_matching === 0;
    this.numRuns = page.num_runs;
    this.problems = page.problems;
    this.indexed = page.indexed;
    this.isLoaded = true;
    this.isOutdated = isInvalid && this.#order.length > 0;
    for (let first = offset; first < offset + (query.limit ?? blockSize); first += blockSize)
      this.#add(this.#blocks, first / blockSize, query.column ?? []);
    if (this.isOutdated) return; // keep showing what was there before the expression became invalid
    if (this.#isNew) this.#order = [];
    this.#isNew = false;
    this.numMatching = page.num_matching;
    this.#order.length = Math.min(this.#order.length, page.num_matching);
    page.rows.forEach((line, index) => (this.#order[offset + index] = line.name));
    this.columns = { ...this.columns, ...Object.fromEntries(page.columns.map((column) => [column.field, column])) };
  }

  #add<Key>(known: Map<Key, Set<string>>, key: Key, columns: string[]): void {
    known.set(key, new Set([...(known.get(key) ?? []), ...columns]));
  }
}
