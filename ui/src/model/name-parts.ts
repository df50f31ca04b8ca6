/** Where the name of a run can be cut: not where it differs from those of its neighbours. */

export interface NamePart {
  text: string;
  /** Whether the neighbours have the same text here, so that it is cut first. */
  isCommon: boolean;
}

const minLength = 20;
const tailLength = 9;

/** A word or a number, with the separators after it. */
const words = (name: string): string[] => name.match(/(?:\d\.(?=\d)|[^-_/.,=: ])+[-_/.,=: ]*|[-_/.,=: ]+/g) ?? [];

/**
 * The parts of a name, in order.
 *
 * Its neighbours are the names that begin with the same word. Words at the beginning and at the end that all of them
 * have are common, and between these every word at the same place, if all have as many words. Without neighbours, a long
 * name is cut before its end, where names usually differ.
 */
export function nameParts(name: string, names: string[]): NamePart[] {
  const own = words(name);
  const others = names.filter((other) => other !== name && other.length > 0).map(words);
  const alike = others.filter((other) => other[0] === own[0]);
  if (name.length < minLength) return [{ text: name, isCommon: false }];
  if (alike.length === 0)
    return [
      { text: name.slice(0, -tailLength), isCommon: true },
      { text: name.slice(-tailLength), isCommon: false },
    ];
  const count = (isSame: (index: number) => boolean): number => {
    let found = 0;
    while (found < own.length && isSame(found)) found++;
    return found;
  };
  const numFirst = count((index) => alike.every((other) => other[index] === own[index]));
  const numLast = count((index) => alike.every((other) => other.at(-1 - index) === own.at(-1 - index)));
  const isAligned = alike.every((other) => other.length === own.length);
  const parts: NamePart[] = [];
  for (const [index, text] of own.entries()) {
    const isCommon =
      index < numFirst || index >= own.length - numLast || (isAligned && alike.every((other) => other[index] === text));
    const last = parts.at(-1);
    if (last?.isCommon === isCommon) last.text += text;
    else parts.push({ text, isCommon });
  }
  return parts.flatMap((part) => (part.isCommon ? part : cutInMiddle(part.text)));
}

/** A long text that differs loses characters in its middle. */
const cutInMiddle = (text: string): NamePart[] =>
  [text.slice(0, -tailLength), text.slice(-tailLength)]
    .filter((part) => part !== "")
    .map((part) => ({ text: part, isCommon: false }));
