/** Resizing a panel of a grid by its corner: its width in columns, of which never more than fit, and its height. */

import { columnsIn, defaultSize, isDefaultSize, type PanelSize, resizeByKey, validSize } from "../model/panel-size";

const [columnRem, gapRem] = [25, 0.8];

export class PanelResize {
  readonly #element: () => HTMLElement | undefined;
  readonly #size: () => PanelSize | undefined;
  readonly #onresize: (size: PanelSize | null) => void;
  #numColumns = $state(1);
  #dragged = $state.raw<PanelSize | null>(null);

  /** Create it during a component's initialisation. `onresize` gets null for the usual size. */
  constructor(
    element: () => HTMLElement | undefined,
    size: () => PanelSize | undefined,
    onresize: (size: PanelSize | null) => void,
  ) {
    this.#element = element;
    this.#size = size;
    this.#onresize = onresize;
    $effect(() => {
      const grid = element()?.parentElement;
      if (!grid) return;
      const observer = new ResizeObserver(() => {
        const remPx = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
        this.#numColumns = columnsIn(grid.clientWidth, columnRem * remPx, gapRem * remPx);
      });
      observer.observe(grid);
      return () => observer.disconnect();
    });
  }

  get #current(): PanelSize {
    return this.#dragged ?? this.#size() ?? defaultSize;
  }

  /** The height as a style; undefined for the usual one. */
  get height(): string | undefined {
    return this.#current.heightPx === defaultSize.heightPx ? undefined : `${this.#current.heightPx}px`;
  }

  get gridColumn(): string | undefined {
    const { columns } = this.#current;
    return columns > 1 ? `span ${Math.min(columns, this.#numColumns)}` : undefined;
  }

  onpointerdown = (event: PointerEvent): void => {
    const element = this.#element();
    if (event.button !== 0 || !element) return;
    event.preventDefault();
    const handle = event.currentTarget as HTMLElement;
    const bounds = element.getBoundingClientRect();
    const columnPx = bounds.width / Math.min(this.#current.columns, this.#numColumns);
    const from = { x: event.clientX, y: event.clientY };
    handle.setPointerCapture(event.pointerId);
    const move = (moved: PointerEvent): void => {
      this.#dragged = validSize({
        columns: Math.min(this.#numColumns, (bounds.width + moved.clientX - from.x) / columnPx),
        heightPx: bounds.height + moved.clientY - from.y,
      });
    };
    const end = (): void => {
      handle.removeEventListener("pointermove", move);
      if (this.#dragged) this.#set(this.#dragged);
      this.#dragged = null;
    };
    handle.addEventListener("pointermove", move);
    handle.addEventListener("lostpointercapture", end, { once: true });
  };

  onkeydown = (event: KeyboardEvent): void => {
    const next = resizeByKey(this.#current, event.key);
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    this.#set(next);
  };

  #set(size: PanelSize): void {
    this.#onresize(isDefaultSize(size) ? null : size);
  }
}
