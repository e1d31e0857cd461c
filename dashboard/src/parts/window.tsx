import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** Rows beyond the edges, so that scrolling shows no gaps. */
const BEYOND = 8;

interface Props {
  className: string;
  label: string;
  role: "table" | "log";
  rowCount?: number;
  count: number;
  rowHeight: number;
  /** Of all of it, in pixels; the style sheet says how much may be seen at once. */
  height: number;
  row: (idx: number) => ComponentChildren;
  head?: ComponentChildren;
  /** Stays at the end while rows come, unless the reader has left it. */
  sticks?: boolean;
  /** The last rows are in view. */
  onEnd?: (() => void) | undefined;
}

/** A long list of which only what is in view is there. */
export function Window(props: Props) {
  const { count, rowHeight, row, sticks, onEnd } = props;
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const [view, setView] = useState({ top: 0, height: 600 });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => {
      const { scrollTop: top, clientHeight: height } = element;
      setView((old) => (old.top === top && old.height === height ? old : { top, height }));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    const scrolled = () => {
      isAtEnd.current = element.scrollTop + element.clientHeight > element.scrollHeight - rowHeight;
      measure();
    };
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", scrolled);
    };
  }, [rowHeight]);
  useLayoutEffect(() => {
    isAtEnd.current ||= sticks === true;
  }, [sticks]);
  useLayoutEffect(() => {
    if (sticks && isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [sticks, count]);
  const first = Math.max(0, Math.floor(view.top / rowHeight) - BEYOND);
  const last = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + BEYOND);
  useLayoutEffect(() => {
    if (last >= count) onEnd?.();
  }, [last, count, onEnd]);
  const rows = [];
  for (let idx = first; idx < last; idx++) rows.push(row(idx));
  return (
    // biome-ignore lint/a11y/useAriaPropsSupportedByRole: only a table says how many rows it has
    <div
      class={props.className}
      role={props.role}
      aria-label={props.label}
      aria-rowcount={props.rowCount}
      ref={box}
      style={{ height: `${props.height}px` }}
      tabIndex={0}
    >
      {props.head}
      <div class="window-space" role="presentation" style={{ height: `${count * rowHeight}px` }}>
        <div class="window-rows" role="presentation" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {rows}
        </div>
      </div>
    </div>
  );
}
