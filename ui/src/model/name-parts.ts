/** Where the names of runs can be cut: not where they differ from each other. */

export interface NamePart {
  text: string;
  /** Whether the name differs from the others without this text, so that it is cut first. */
  isCommon: boolean;
}

const minLength = 10;
/** A shorter text is about as wide as the ellipsis that would replace it. */
const minCutLength = 4;
const tailLength = 9;

interface Name {
  tokens: string[];
  /** For each token, whether it is a number, a word or a separator. */
  shape: string;
  isCommon: boolean[];
}

/** Numbers such as `0.001` and `1e-4`, words of letters, and what is between them. */
const tokensOf = (name: string): string[] =>
  name.match(/\d+(?:\.\d+)*(?:e[-+]?\d+)?|\p{L}+|[^\p{L}\d]+/gu) ?? (name === "" ? [] : [name]);
const kindOf = (token: string): string => (/^\d/.test(token) ? "n" : /^\p{L}/u.test(token) ? "w" : "s");

const partsByNames = new WeakMap<readonly string[], Map<string, NamePart[]>>();

/**
 * The parts of one of several names, in order.
 *
 * A name is compared with those that have numbers, words and separators at the same places, and without any, with those
 * that begin with the same word. The texts that differ tell each name from all others, or the whole name does.
 */
export function nameParts(name: string, names: readonly string[]): NamePart[] {
  let parts = partsByNames.get(names);
  if (!parts) partsByNames.set(names, (parts = partsOfAll(names)));
  return parts.get(name) ?? partsOfAll([...names, name]).get(name) ?? [];
}

function partsOfAll(texts: readonly string[]): Map<string, NamePart[]> {
  const names = new Map<string, Name>();
  for (const text of texts) {
    const tokens = tokensOf(text);
    names.set(text, { tokens, shape: tokens.map(kindOf).join(""), isCommon: tokens.map(() => false) });
  }
  const byShape = groupBy(names.values(), ({ tokens, shape }) => `${shape} ${tokens[0]}`);
  const byFirst = groupBy(names.values(), ({ tokens }) => tokens[0] ?? "");
  for (const alike of byShape.values()) {
    const agrees = (alike[0]?.tokens ?? []).map((token, at) => alike.every(({ tokens }) => tokens[at] === token));
    if (alike.length > 1) for (const name of alike) name.isCommon = agrees;
    else for (const name of alike) markEnds(name, byFirst.get(name.tokens[0] ?? "") ?? []);
  }
  const parts = new Map([...names].map(([text, name]) => [text, text.length < minLength ? whole(text) : joined(name)]));
  revealUntilDifferent(parts);
  return new Map([...parts].map(([text, found]) => [text, found.flatMap((part) => splitPart(part))]));
}

function groupBy<Item>(items: Iterable<Item>, keyOf: (item: Item) => string): Map<string, Item[]> {
  const groups = new Map<string, Item[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return groups;
}

/** Mark the first and the last tokens that all names have; the beginning of a name that is like no other one. */
function markEnds(name: Name, alike: Name[]): void {
  const { tokens, isCommon } = name;
  if (alike.length < 2) {
    let numChars = tokens.join("").length;
    for (const [at, token] of tokens.entries()) {
      numChars -= token.length;
      isCommon[at] = numChars >= tailLength;
    }
    return;
  }
  const mark = (at: (index: number) => number): void => {
    for (let index = 0; index < tokens.length; index++) {
      if (!alike.every((other) => other.tokens.at(at(index)) === tokens.at(at(index)))) return;
      isCommon[at(index) < 0 ? tokens.length + at(index) : at(index)] = true;
    }
  };
  mark((index) => index);
  mark((index) => -1 - index);
}

const whole = (text: string): NamePart[] => [{ text, isCommon: false }];

function joined({ tokens, isCommon }: Name): NamePart[] {
  const parts = merged(tokens.map((text, index) => ({ text, isCommon: isCommon[index] === true })));
  return merged(parts.map(({ text, isCommon }) => ({ text, isCommon: isCommon && text.length >= minCutLength })));
}

function merged(parts: NamePart[]): NamePart[] {
  const found: NamePart[] = [];
  for (const { text, isCommon } of parts) {
    const last = found.at(-1);
    if (last?.isCommon === isCommon) last.text += text;
    else found.push({ text, isCommon });
  }
  return found;
}

const shortest = (parts: NamePart[]): string => parts.map(({ text, isCommon }) => (isCommon ? "…" : text)).join("");

/** Names that would be equal without their common parts keep these, one after the other. */
function revealUntilDifferent(names: Map<string, NamePart[]>): void {
  for (;;) {
    const equal = [...groupBy(names, ([, parts]) => shortest(parts)).values()].filter(({ length }) => length > 1);
    let isChanged = false;
    for (const [text, parts] of equal.flat()) {
      const first = parts.findIndex(({ isCommon }) => isCommon);
      if (first < 0) continue;
      names.set(text, merged(parts.map((part, index) => (index === first ? { ...part, isCommon: false } : part))));
      isChanged = true;
    }
    if (!isChanged) return;
  }
}

/** The last word of a common part is cut last, because it often is the name of a number behind it. */
function splitPart({ text, isCommon }: NamePart): NamePart[] {
  const at = isCommon ? text.search(/\p{L}+[^\p{L}]*$/u) : 0;
  if (at < minCutLength) return [{ text, isCommon }];
  return [text.slice(0, at), text.slice(at)].map((each) => ({ text: each, isCommon }));
}

const ellipsis = "…";

/**
 * A name as it fits into a width.
 *
 * First, common parts lose their ends, the longest one first. If that is not enough, the longest text that differs loses
 * characters in its middle.
 */
export function fitName(parts: NamePart[], width: number, widthOf: (text: string) => number): string {
  const texts = parts.map(({ text }) => text);
  if (widthOf(texts.join("")) <= width) return texts.join("");
  // Two ellipses in a row are one.
  const join = (at = -1, text = ""): string =>
    texts
      .map((each, index) => (index === at ? text : each))
      .join("")
      .replace(/…{2,}/g, ellipsis);
  const cut = (at: number, shorten: (text: string, numChars: number) => string): string | null => {
    const text = texts[at] ?? "";
    let [fits, tooLong] = [-1, text.length];
    while (tooLong - fits > 1) {
      const numChars = (fits + tooLong) >> 1;
      if (widthOf(join(at, shorten(text, numChars))) <= width) fits = numChars;
      else tooLong = numChars;
    }
    if (fits >= 0) return join(at, shorten(text, fits));
    texts[at] = ellipsis;
    return null;
  };
  const byLength = (isCommon: boolean): number[] =>
    parts
      .map((_, at) => at)
      .filter((at) => parts[at]?.isCommon === isCommon)
      .sort((a, b) => (texts[b]?.length ?? 0) - (texts[a]?.length ?? 0));
  for (const at of byLength(true)) {
    // The last word behind a text that is cut is left out, which may leave room for that text.
    const isBehindCut = texts[at - 1] === ellipsis;
    if (isBehindCut) [texts[at], texts[at - 1]] = ["", parts[at - 1]?.text ?? ""];
    const found = cut(isBehindCut ? at - 1 : at, (text, numChars) => text.slice(0, numChars) + ellipsis);
    if (found !== null) return found;
  }
  for (const at of byLength(false)) {
    const found = cut(at, cutMiddle);
    if (found !== null) return found;
  }
  return join();
}

function cutMiddle(text: string, numChars: number): string {
  const numLast = Math.min(tailLength, Math.ceil(numChars / 2));
  return text.slice(0, numChars - numLast) + ellipsis + (numLast ? text.slice(-numLast) : "");
}
