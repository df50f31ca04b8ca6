/** Texts of the language that selects runs (docs/runs.md): quoting, the quick filter by state, and completion. */

import type { FieldView } from "../api";
import { quantity } from "./format";
import { fieldParts, isMetric } from "./table-view";

const special = /[\s()",`=!<>~:]/;
const keywords = new Set(["and", "or", "not", "in", "has", "between", "is"]);

/** A field as it is written in an expression. */
export function quoteField(field: string): string {
  const isPlain = field !== "" && !special.test(field) && !field.startsWith("-") && !keywords.has(field.toLowerCase());
  return isPlain ? field : `\`${field.replaceAll("`", "``")}\``;
}

/** A value as it is written in an expression. */
export function quoteValue(value: string): string {
  return value !== "" && !special.test(value) ? value : quoteText(value);
}

/** A text in quotes, which is never taken for a number or a date. */
export const quoteText = (value: string): string => `"${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;

/**
 * Expressions that select these runs, each short enough for a request; they may select a few others, too.
 *
 * The id of a run is its name, with the label of its log folder in front if several folders have a run of this name.
 */
export function selectRuns(ids: string[], maxChars = 3_000): { filter: string; names: string[] }[] {
  const found: { filter: string; names: string[] }[] = [];
  for (const id of ids) {
    const parts = id.split("/");
    const texts = parts.map((_, index) => quoteText(parts.slice(index).join("/"))).join(", ");
    const last = found.at(-1);
    if (last && last.filter.length + texts.length <= maxChars) {
      last.filter = `${last.filter.slice(0, -1)}, ${texts})`;
      last.names.push(id);
    } else found.push({ filter: `name in (${texts})`, names: [id] });
  }
  return found;
}

// The quick filter by state

const stateTerm = /(^|\s)(?:state:([a-z]+)|state in \(([a-z, ]*)\))(?=\s|$)/;

/** The states that an expression is restricted to by a term of its own. */
export function readStates(filter: string): string[] {
  const found = stateTerm.exec(filter);
  return found ? (found[2] ?? found[3] ?? "").split(/[\s,]+/).filter(Boolean) : [];
}

/** Restrict an expression to states; none removes the restriction. */
export function writeStates(filter: string, states: string[]): string {
  const [first] = states;
  const term = states.length > 1 ? `state in (${states.join(", ")})` : first ? `state:${first}` : "";
  return writeTerm(filter, stateTerm, term);
}

// The filter by project, which is the folder that a team's server stores runs in: `name~"^nlp/"`

const projectTerm = /(^|\s)name~"\^((?:[^"\\]|\\\\.)+)\/"(?=\s|$)/;

/** The projects of runs, sorted. */
export function projectsOf(runs: readonly string[]): string[] {
  const folders = runs.flatMap((run) => (run.includes("/") ? run.slice(0, run.indexOf("/")) : []));
  return [...new Set(folders)].sort();
}

/** The project that an expression is restricted to by a term of its own; empty if there is none. */
export const readProject = (filter: string): string => (projectTerm.exec(filter)?.[2] ?? "").replace(/\\\\(.)/g, "$1");

/** Restrict an expression to a project; an empty one removes the restriction. */
export function writeProject(filter: string, project: string): string {
  const pattern = project.replace(/[.+*?^$()[\]{}|\\]/g, "\\$&");
  return writeTerm(filter, projectTerm, project && `name~${quoteText(`^${pattern}/`)}`);
}

/** Replace a term of an expression, or add it; an empty one is removed. */
function writeTerm(filter: string, known: RegExp, term: string): string {
  if (known.test(filter)) {
    return filter.replace(known, (_, space: string) => (term ? space + term : "")).trim();
  }
  if (!term) return filter;
  const rest = /\sor\s/i.test(filter) ? `(${filter.trim()})` : filter.trim();
  return rest ? `${rest} ${term}` : term;
}

// Completion

export interface Suggestion {
  text: string;
  detail: string;
}

export interface Completion {
  /** The part of the text that a suggestion replaces. */
  from: number;
  to: number;
  suggestions: Suggestion[];
  /** The field whose values would help, if they are not known yet. */
  wantsValuesOf: string | null;
}

export interface Vocabulary {
  fields: FieldView[];
  aggregates: string[];
  /** Known values of fields. */
  values: Record<string, string[]>;
}

export const aliases: Record<string, string> = { tag: "tags", run: "name", step: "steps" };
const maxSuggestions = 12;
const states = ["running", "finished", "failed", "interrupted", "crashed", "stale"];
const times = ["-1h", "-1d", "-7d", "-30d"];
const operators: Record<string, string> = {
  ":": "contains, or is",
  "=": "equals",
  "!=": "differs from",
  "<": "below",
  "<=": "at most",
  ">": "above",
  ">=": "at least",
  "~": "matches a regular expression",
};

/** Suggest how to continue an expression at the cursor. */
export function complete(text: string, cursor: number, vocabulary: Vocabulary): Completion {
  const before = text.slice(0, cursor);
  const nothing: Completion = { from: cursor, to: cursor, suggestions: [], wantsValuesOf: null };
  const listed = /((?:`[^`]*`|[^\s()",`=!<>~:])+)\s+in\s*\((?:[^()"]|"[^"]*")*$/i.exec(before);
  if (listed?.[1]) {
    const start = before.length - (/[^\s,(]*$/.exec(before)?.[0].length ?? 0);
    return completeValue(unquote(listed[1]), before.slice(start), start, cursor, vocabulary);
  }
  const start = tokenStart(before);
  if (start === null) return nothing;
  const token = before.slice(start);
  const compared = /^-?((?:`(?:[^`]|``)*`|[^\s()",`=!<>~:])+)\s*(!=|<=|>=|[=<>~:])(.*)$/s.exec(token);
  if (compared?.[1] && compared[2]) {
    const partial = compared[3] ?? "";
    if (compared[2] === "~") return nothing;
    return completeValue(unquote(compared[1]), partial, cursor - partial.length, cursor, vocabulary);
  }
  return completeField(token, start, cursor, vocabulary);
}

/** How to continue a text that ends in the name of a field, or in a part of one, without a comparison; else none. */
export function continuations(text: string, vocabulary: Omit<Vocabulary, "values">): string[] {
  const start = tokenStart(text);
  const token = start === null ? "" : text.slice(start);
  if (token.replace(/^-/, "").length < 2 || /["=!<>~:]/.test(token) || /\bin\s*\([^)]*$/i.test(text)) return [];
  return complete(text, text.length, { ...vocabulary, values: {} }).suggestions.map((each) => each.text);
}

/** The start of the term that the cursor is in; null inside of quotes. */
function tokenStart(before: string): number | null {
  let start = 0;
  let quote = "";
  let isValue = false;
  for (let index = 0; index < before.length; index++) {
    const character = before[index] ?? "";
    if (quote) {
      if (character === "\\" && quote === '"') index++;
      else if (character === quote) quote = "";
    } else if (character === '"' || character === "`") {
      quote = character;
      isValue = character === '"' && /[=<>~:]$/.test(before.slice(start, index));
    } else if (/[\s(),]/.test(character)) start = index + 1;
  }
  return quote === '"' && !isValue ? null : start;
}

const unquote = (name: string): string => {
  const plain = name.replace(/`((?:[^`]|``)*)`/g, (_, inner: string) => inner.replaceAll("``", "`"));
  return aliases[plain] ?? plain;
};

function completeField(token: string, start: number, cursor: number, vocabulary: Vocabulary): Completion {
  const sign = token.startsWith("-") ? 1 : 0;
  const partial = token.slice(sign).replaceAll("`", "");
  const from = start + sign;
  const found = (suggestions: Suggestion[]): Completion => ({
    from,
    to: cursor,
    suggestions: suggestions.slice(0, maxSuggestions),
    wantsValuesOf: null,
  });
  const exact = candidates(partial, vocabulary).find((each) => each.field === (aliases[partial] ?? partial));
  if (partial && exact) {
    const usable = Object.entries(operators).filter(([symbol]) =>
      exact.kind === "text" || exact.kind === "list" || exact.kind === "bool"
        ? !/[<>]/.test(symbol)
        : !/[:~]/.test(symbol),
    );
    return found(
      usable.map(([symbol, detail]) => ({ text: quoteField(partial) + symbol, detail: `${partial} ${detail} …` })),
    );
  }
  if (!partial) return { ...found([]), from: cursor };
  const wanted = partial.toLowerCase();
  const ranked = candidates(partial, vocabulary)
    .map((each) => ({ each, rank: rank(each.field.toLowerCase(), wanted) }))
    .filter((each) => each.rank < 9)
    .sort((a, b) => a.rank - b.rank);
  return found(
    ranked.map(({ each }) => ({
      text: quoteField(each.field),
      detail: `${each.kind}, ${quantity(each.num_runs, "run")}`,
    })),
  );
}

/** Fields that may be meant; a metric comes with its most useful aggregates, or with all after its dot. */
function candidates(partial: string, { fields, aggregates }: Vocabulary): FieldView[] {
  return fields.flatMap((each) => {
    if (!isMetric(each.field)) return [each];
    const { name } = fieldParts(each.field);
    const isChosen = partial.startsWith(`${name}.`);
    const shown = isChosen ? aggregates : ["last", "min", "max"].filter((known) => aggregates.includes(known));
    return shown.map((aggregate) => ({ ...each, field: `${name}.${aggregate}` }));
  });
}

/** How well a name matches: 0 best, 9 not at all. */
export function rank(name: string, wanted: string): number {
  if (name === wanted) return 0;
  if (name.startsWith(wanted)) return 1;
  const index = name.indexOf(wanted);
  if (index > 0) return /[._/-]/.test(name[index - 1] ?? "") ? 2 : 3;
  return 9;
}

function completeValue(
  field: string,
  partial: string,
  from: number,
  to: number,
  { fields, values }: Vocabulary,
): Completion {
  const described = fields.find((each) => each.field === field);
  const kind = described?.kind;
  const fixed = field === "state" ? states : kind === "time" ? times : kind === "bool" ? ["true", "false"] : null;
  const listed = described?.values.length ? described.values : undefined;
  const known = fixed ?? values[field] ?? listed;
  const wanted = partial.replace(/^"/, "").toLowerCase();
  const matching = (known ?? []).filter((value) => value.toLowerCase().includes(wanted) && value !== partial);
  return {
    from,
    to,
    suggestions: matching
      .sort((a, b) => rank(a.toLowerCase(), wanted) - rank(b.toLowerCase(), wanted))
      .slice(0, maxSuggestions)
      .map((value) => ({ text: quoteValue(value), detail: "" })),
    wantsValuesOf: known ? null : field,
  };
}

/** The part of an expression around a problem: before it, the character at fault, and after it. */
export function excerpt(text: string, position: number, around = 40): { before: string; at: string; after: string } {
  const characters = [...text];
  const first = Math.max(0, position - around);
  return {
    before: (first ? "…" : "") + characters.slice(first, position).join(""),
    at: characters[position] ?? " ",
    after:
      characters.slice(position + 1, position + around).join("") + (position + around < characters.length ? "…" : ""),
  };
}
