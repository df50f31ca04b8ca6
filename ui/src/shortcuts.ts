/** Whether a key press is a shortcut of the page: not typed into a field, and not meant for a dialog or the browser. */
export function isPageShortcut(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  const isTyping = target.matches("input:not([type=checkbox]):not([type=range]), select, textarea");
  const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
  return !isTyping && !hasModifier && document.querySelector("dialog[open]") === null;
}
