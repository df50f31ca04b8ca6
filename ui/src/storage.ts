/** What the browser remembers about the user's choices; everything works without it, too. */

export function loadText(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // storage is disabled
  }
}

export function saveText(key: string, text: string): void {
  try {
    localStorage.setItem(key, text);
  } catch {
    // Storage is disabled or full: the choice lasts until the page is closed.
  }
}

export function loadNumbers(key: string): Record<string, number> {
  try {
    const found: unknown = JSON.parse(loadText(key) ?? "{}");
    const entries = Object.entries(found ?? {}).filter(([, value]) => Number.isFinite(value));
    return Object.fromEntries(entries) as Record<string, number>;
  } catch {
    return {};
  }
}
