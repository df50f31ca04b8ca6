/**
 * Choices of one tab of the compare page, kept in the address next to the runs.
 *
 * The route does not know them: they are written without adding to the history, and belong to the tab that is open.
 */

type Choices = Record<string, string[]>;

function split(): { path: string; parameters: URLSearchParams } {
  const [path = "", query = ""] = location.hash.split("?", 2);
  return { path, parameters: new URLSearchParams(query) };
}

export function readChoices(...names: string[]): Choices {
  const { parameters } = split();
  return Object.fromEntries(names.map((name) => [name, parameters.getAll(name)]));
}

/** Replace these choices in the address. */
export function writeChoices(choices: Choices): void {
  const { path, parameters } = split();
  for (const [name, values] of Object.entries(choices)) {
    parameters.delete(name);
    for (const value of values) parameters.append(name, value);
  }
  const query = parameters.toString();
  const hash = query ? `${path}?${query}` : path;
  if (hash !== location.hash) history.replaceState(null, "", hash);
}
