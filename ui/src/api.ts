/**
 * The API client: the only file that knows URLs.
 *
 * All types come from `api/schema.ts`, which is generated from the server's OpenAPI document. Paths, parameters and
 * responses are checked against its table of routes, so a client that does not match the server does not compile.
 */

import { parseHeat, type RankHeat } from "./model/rank-heat";
import type {
  AnnotationChange,
  BulkRequest,
  ControlRequest,
  ErrorBody,
  Routes,
  RunChanged,
  RunGone,
  ViewDetail,
  ViewRequest,
} from "./api/schema";

export type * from "./api/schema";

type GetPath = keyof { [Route in keyof Routes as Route extends `GET ${infer Path}` ? Path : never]: never };
type PostPath = keyof { [Route in keyof Routes as Route extends `POST ${infer Path}` ? Path : never]: never };
type PutPath = keyof { [Route in keyof Routes as Route extends `PUT ${infer Path}` ? Path : never]: never };
type DeletePath = keyof { [Route in keyof Routes as Route extends `DELETE ${infer Path}` ? Path : never]: never };
type GetRoute<Path extends GetPath> = Routes[`GET ${Path}`];
type PostRoute<Path extends PostPath> = Routes[`POST ${Path}`];

export type SeriesQuery = GetRoute<"/api/v1/runs/{run}/series">["query"];
export type XAxis = NonNullable<SeriesQuery["x"]>;
export type Severity = GetRoute<"/api/v1/runs/{run}/alerts">["response"]["alerts"][number]["severity"];
/** A sampled row; it omits the columns it has no value for. */
export type CompletionRow = GetRoute<"/api/v1/runs/{run}/completions">["response"]["rows"][number];
export type OverlayQuery = GetRoute<"/api/v1/series">["query"];
export type GroupedSeriesQuery = GetRoute<"/api/v1/series/groups">["query"];
export type TableQuery = GetRoute<"/api/v1/table">["query"];
export type DiffQuery = GetRoute<"/api/v1/diff">["query"];
export type ImportanceQuery = GetRoute<"/api/v1/importance">["query"];
export type GroupQuery = GetRoute<"/api/v1/table/groups">["query"];
type ExportQuery = GetRoute<"/api/v1/runs/{run}/export">["query"];

/** A failed request. The message is meant for people. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Fill in a path and append the query, without parameters that are null. */
function buildUrl(path: GetPath | PostPath | PutPath | DeletePath, parameters: object, query: object = {}): string {
  const filled = Object.entries(parameters).reduce(
    (url, [name, value]) => url.replace(`{${name}}`, () => encodeURIComponent(value)),
    path as string,
  );
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined) search.append(name, String(item));
    }
  }
  const text = search.toString();
  // Relative, because a proxy may serve the dashboard from a subfolder.
  return `${filled.replace(/^\//, "")}${text ? `?${text}` : ""}`;
}

async function request(url: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "Cannot reach the server. Is it still running?");
  }
  if (!response.ok) {
    const body: ErrorBody | null = await response.json().catch(() => null);
    const { code, message } = body?.error ?? { code: "bad_answer", message: `The server returned ${response.status}.` };
    if (response.status === 401 && !url.endsWith("/login")) api.onUnauthorized();
    throw new ApiError(response.status, code, message);
  }
  return response;
}

async function send<Result>(url: string, options: RequestInit = {}): Promise<Result> {
  const response = await request(url, options);
  return response.status === 204 ? (null as Result) : await response.json();
}

function get<Path extends GetPath>(
  path: Path,
  parameters: GetRoute<Path>["path"],
  query: GetRoute<Path>["query"],
  signal?: AbortSignal,
): Promise<GetRoute<Path>["response"]> {
  return send(buildUrl(path, parameters, query), signal ? { signal } : {});
}

function post<Path extends PostPath>(
  path: Path,
  parameters: PostRoute<Path>["path"],
  body: PostRoute<Path>["body"],
): Promise<PostRoute<Path>["response"]> {
  return send(buildUrl(path, parameters), { method: "POST", headers: jsonHeaders, body: JSON.stringify(body) });
}

async function errorMessage(response: Response): Promise<string> {
  const body: ErrorBody | null = await response.json().catch(() => null);
  return body?.error.message ?? `The server returned ${response.status}.`;
}

const jsonHeaders = { "Content-Type": "application/json" };

export const api = {
  listRuns: () => get("/api/v1/runs", {}, {}),
  getRun: (run: string) => get("/api/v1/runs/{run}", { run }, {}),
  getLineage: (run: string) => get("/api/v1/runs/{run}/lineage", { run }, {}),
  listMetrics: (run: string) => get("/api/v1/runs/{run}/metrics", { run }, {}),
  listMetricsOfRuns: (run: string[]) => get("/api/v1/metrics", {}, { run }),
  getSeries: (run: string, query: SeriesQuery, signal?: AbortSignal) =>
    get("/api/v1/runs/{run}/series", { run }, query, signal),
  getOverlay: (query: OverlayQuery, signal?: AbortSignal) => get("/api/v1/series", {}, query, signal),
  getGroupedSeries: (query: GroupedSeriesQuery) => get("/api/v1/series/groups", {}, query),
  getSpans: (run: string, query: GetRoute<"/api/v1/runs/{run}/spans">["query"]) =>
    get("/api/v1/runs/{run}/spans", { run }, query),
  getSpan: (run: string, span: string) => get("/api/v1/runs/{run}/spans/{span}", { run, span }, {}),
  getRecords: (run: string, query: GetRoute<"/api/v1/runs/{run}/records">["query"]) =>
    get("/api/v1/runs/{run}/records", { run }, { limit: 1000, ...query }),
  listAlerts: (run: string) => get("/api/v1/runs/{run}/alerts", { run }, {}),
  listDumps: (run: string) => get("/api/v1/runs/{run}/dumps", { run }, {}),
  readDump: (run: string, dump: string, rank: number) =>
    get("/api/v1/runs/{run}/dumps/{dump}", { run, dump }, { rank }),
  getCompletions: (run: string, query: GetRoute<"/api/v1/runs/{run}/completions">["query"]) =>
    get("/api/v1/runs/{run}/completions", { run }, query),
  getOutput: (run: string, query: GetRoute<"/api/v1/runs/{run}/output">["query"]) =>
    get("/api/v1/runs/{run}/output", { run }, query),
  outputUrl: (run: string) => buildUrl("/api/v1/runs/{run}/output/text", { run }),
  listControls: (run: string) => get("/api/v1/runs/{run}/controls", { run }, {}),
  requestControls: (run: string, values: ControlRequest["values"]) =>
    post("/api/v1/runs/{run}/controls", { run }, { values }),
  listRanks: (run: string) => get("/api/v1/runs/{run}/ranks", { run }, {}),
  /** The matrix of ranks over time; it has no rows if no rank has recorded its own time. */
  async getRankHeat(run: string): Promise<RankHeat | null> {
    const response = await fetch(buildUrl("/api/v1/runs/{run}/ranks/heat", { run }));
    return response.ok ? parseHeat(await response.arrayBuffer()) : null;
  },
  listMedia: (run: string) => get("/api/v1/runs/{run}/media", { run }, {}),
  getMediaItems: (run: string, query: GetRoute<"/api/v1/runs/{run}/media/items">["query"]) =>
    get("/api/v1/runs/{run}/media/items", { run }, query),
  getMediaMetric: (run: string, query: GetRoute<"/api/v1/runs/{run}/media/metric">["query"]) =>
    get("/api/v1/runs/{run}/media/metric", { run }, query),
  getHistograms: (run: string, query: GetRoute<"/api/v1/runs/{run}/media/histograms">["query"]) =>
    get("/api/v1/runs/{run}/media/histograms", { run }, query),
  getTableRows: (run: string, sha256: string, query: GetRoute<"/api/v1/runs/{run}/media/tables/{sha256}">["query"]) =>
    get("/api/v1/runs/{run}/media/tables/{sha256}", { run, sha256 }, query),
  blobUrl: (run: string, sha256: string, query: GetRoute<"/api/v1/runs/{run}/media/blobs/{sha256}">["query"] = {}) =>
    buildUrl("/api/v1/runs/{run}/media/blobs/{sha256}", { run, sha256 }, query),
  mediaExportUrl: (run: string, query: GetRoute<"/api/v1/runs/{run}/media/export">["query"]) =>
    buildUrl("/api/v1/runs/{run}/media/export", { run }, query),
  frameUrl: (run: string, sha256: string) => buildUrl("/api/v1/runs/{run}/media/frames/{sha256}", { run, sha256 }),
  async getBlob(run: string, sha256: string, table: string | null = null): Promise<Blob> {
    const response = await fetch(api.blobUrl(run, sha256, { table }));
    if (!response.ok) throw new ApiError(response.status, "no_blob", await errorMessage(response));
    return await response.blob();
  },
  /** Why a file cannot be shown. */
  async explainBlob(url: string): Promise<string> {
    const response = await fetch(url).catch(() => null);
    if (response === null) return "Cannot reach the server.";
    return response.ok ? "not a valid picture" : await errorMessage(response);
  },
  listTraces: (run: string) => get("/api/v1/runs/{run}/traces", { run }, {}),
  compare: (run: string[], against: string[], anyway: boolean) => get("/api/v1/compare", {}, { run, against, anyway }),
  getTable: (query: TableQuery, signal?: AbortSignal) => get("/api/v1/table", {}, query, signal),
  getGroups: (query: GroupQuery) => get("/api/v1/table/groups", {}, query),
  getDiff: (query: DiffQuery) => get("/api/v1/diff", {}, query),
  getDiffOfTwo: (run: string, other: string) => get("/api/v1/runs/{run}/diff/{other}", { run, other }, {}),
  getImportance: (query: ImportanceQuery) => get("/api/v1/importance", {}, query),
  listFields: (filter = "") => get("/api/v1/table/fields", {}, { filter }),
  getAnnotations: (run: string) => get("/api/v1/runs/{run}/annotations", { run }, {}),
  annotate: (run: string, changes: AnnotationChange[]) => post("/api/v1/runs/{run}/annotations", { run }, { changes }),
  actOnRuns: (request: BulkRequest) => post("/api/v1/bulk", {}, request),
  listTrash: () => get("/api/v1/trash", {}, {}),
  listViews: () => get("/api/v1/views", {}, {}),
  saveView: (slug: string, view: ViewRequest): Promise<ViewDetail> =>
    send(buildUrl("/api/v1/views/{slug}", { slug }), {
      method: "PUT",
      headers: jsonHeaders,
      body: JSON.stringify(view),
    }),
  deleteView: (slug: string): Promise<ViewDetail> =>
    send(buildUrl("/api/v1/views/{slug}", { slug }), { method: "DELETE" }),
  tableCsvUrl: (query: GetRoute<"/api/v1/table.csv">["query"]) => buildUrl("/api/v1/table.csv", {}, query),
  getLoginForm: () => get("/api/v1/login", {}, {}),
  login: (token: string) => post("/api/v1/login", {}, { token }),
  logout: () => post("/api/v1/logout", {}, {}),
  whoami: () => get("/api/v1/whoami", {}, {}),
  /** Called when a request was rejected because no one is logged in, or no longer. */
  onUnauthorized: (): void => {},
  patchUrl: (run: string) => buildUrl("/api/v1/runs/{run}/patch", { run }),
  traceUrl: (run: string, trace: string) => buildUrl("/api/v1/runs/{run}/traces/{trace}", { run, trace }),
  exportUrl: (run: string, query: ExportQuery) => buildUrl("/api/v1/runs/{run}/export", { run }, query),

  /**
   * Stream changes of the named runs, or of all runs, which are checked less often. Returns a function that stops.
   *
   * `after` is the version of the list of runs that the page has: without it, every run is reported at first.
   */
  watchRuns(
    runs: string[],
    after: string | null,
    on: {
      changed: (change: RunChanged) => void;
      gone: (name: string) => void;
      /** Called for each event, also for those that only show that the stream works. */
      heard: () => void;
      /** `isFinal`: the browser will not reconnect by itself. */
      connection: (isConnected: boolean, isFinal: boolean) => void;
    },
  ): () => void {
    const source = new EventSource(buildUrl("/api/v1/live", {}, { run: runs, after }));
    source.addEventListener("changed", (event) => on.changed(JSON.parse(event.data) as RunChanged));
    source.addEventListener("gone", (event) => on.gone((JSON.parse(event.data) as RunGone).name));
    for (const name of ["changed", "gone", "alive"]) source.addEventListener(name, () => on.heard());
    source.onopen = () => on.connection(true, false);
    source.onerror = () => on.connection(false, source.readyState === EventSource.CLOSED);
    return () => source.close();
  },

  /** Why the server does not stream changes, which `EventSource` does not say; null if it does. */
  async explainStream(runs: string[]): Promise<ApiError | null> {
    const abort = new AbortController();
    try {
      const response = await request(buildUrl("/api/v1/live", {}, { run: runs }), { signal: abort.signal });
      const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
      return isStream ? null : new ApiError(response.status, "bad_answer", "The answer is not a stream of changes.");
    } catch (error) {
      return error as ApiError;
    } finally {
      abort.abort();
    }
  },
};
