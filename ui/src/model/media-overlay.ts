/** The classes of masks and boxes: their colours, and which of them are drawn. */

import type { Box, Mask } from "./media";

export const numColours = 12;

export interface OverlayClass {
  name: string;
  /** An index of the palette. */
  colour: number;
  /** How many boxes have at least the lowest score. */
  numBoxes: number;
  isInMask: boolean;
}

export const hasScore = (box: Box, minScore: number): boolean => (box.score ?? 1) >= minScore;

/**
 * All classes, by name. The colour of a class of a mask is its id, as long as no other class has it; others depend on
 * their name only, so that they keep it at other steps as a rule.
 */
export function overlayClasses(masks: Mask[], boxes: Box[], minScore: number): OverlayClass[] {
  const wishes = new Map<string, number>();
  for (const { labels } of masks) {
    for (const [id, name] of Object.entries(labels)) {
      if (id !== "0" && !wishes.has(name)) wishes.set(name, Number(id) || 0);
    }
  }
  const maskNames = new Set(wishes.keys());
  for (const name of [...new Set(boxes.map((box) => box.label))].sort()) {
    if (!wishes.has(name)) wishes.set(name, hash(name));
  }
  const used = new Set<number>();
  const classes = [...wishes].map(([name, wish]): OverlayClass => {
    let colour = ((wish % numColours) + numColours) % numColours;
    for (let tries = 0; used.has(colour) && tries < numColours; tries++) colour = (colour + 1) % numColours;
    used.add(colour);
    const numBoxes = boxes.filter((box) => box.label === name && hasScore(box, minScore)).length;
    return { name, colour, numBoxes, isInMask: maskNames.has(name) };
  });
  return classes.sort((a, b) => a.name.localeCompare(b.name));
}

function hash(text: string): number {
  let value = 0;
  for (const letter of text) value = (value * 31 + (letter.codePointAt(0) ?? 0)) % 65_521;
  return value;
}

/** The colour of each id of a mask, null if it is not drawn. Ids without a label are drawn in a colour of their own. */
export function maskColours(mask: Mask, classes: OverlayClass[], hidden: ReadonlySet<string>): (number | null)[] {
  const byName = new Map(classes.map((each) => [each.name, each.colour]));
  return Array.from({ length: 256 }, (_, id) => {
    const name = mask.labels[String(id)];
    if (id === 0 || (name !== undefined && hidden.has(name))) return null;
    return (name === undefined ? undefined : byName.get(name)) ?? id % numColours;
  });
}
