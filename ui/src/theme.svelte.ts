/** The colour theme: the system's, until the user chooses one. */

const storageKey = "tacho-theme";
const systemTheme = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  name = $state<"dark" | "light">("light");

  constructor() {
    this.#apply(this.#stored() ?? (systemTheme.matches ? "dark" : "light"));
    systemTheme.addEventListener("change", () => {
      if (!this.#stored()) this.#apply(systemTheme.matches ? "dark" : "light");
    });
  }

  toggle(): void {
    const name = this.name === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(storageKey, name);
    } catch {
      // Storage is disabled: the choice lasts until the page is closed.
    }
    this.#apply(name);
  }

  #stored(): "dark" | "light" | null {
    try {
      const name = localStorage.getItem(storageKey);
      return name === "dark" || name === "light" ? name : null;
    } catch {
      return null;
    }
  }

  #apply(name: "dark" | "light"): void {
    document.documentElement.dataset["theme"] = name;
    this.name = name;
  }
}

export const theme = new Theme();

/** The value of a colour variable in the current theme. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The colours around the lines of a chart. */
export const chartColours = () => ({
  panel: colour("panel"),
  text: colour("text"),
  muted: colour("muted"),
  grid: colour("line"),
  good: colour("good"),
  warn: colour("warn"),
  bad: colour("bad"),
});
