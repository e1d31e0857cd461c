import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { duration, moment } from "../format";
import { colourOf, theme } from "../theme";

export interface Line {
  label: string;
  /** Name of a colour of the design. */
  colour: string;
  values: ArrayLike<number | null>;
  /** Holds until the next point. */
  isStepped?: boolean;
  isFilled?: boolean;
  /** A line to compare with: dashed, and left out of what is said. */
  isRuler?: boolean;
}

interface Props {
  title: string;
  /** Seconds. */
  at: readonly number[];
  lines: readonly Line[];
  say: (value: number) => string;
  min?: number;
  max?: number;
  /** Charts with the same key show the same moment. */
  sync?: string;
  /** Moments worth a mark, in seconds. */
  marks?: readonly number[];
  /** Where the time axis begins and ends, in seconds. */
  range?: readonly [number, number];
  height?: number;
}

const FONT = "11px system-ui, sans-serif";

/** Curves over time, with what they say where the pointer is. */
export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const shape = props.lines.map((line) => line.label).join("|");
  const colours = theme.value;
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const drawn = new uPlot(options(latest, element.clientWidth), data(latest.current), element);
    plot.current = drawn;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0) drawn.setSize({ width: element.clientWidth, height: latest.current.height ?? 132 });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      drawn.destroy();
      plot.current = null;
    };
    // Another theme has other colours, and these are read when the plot is made.
  }, [shape, colours]);
  const { at, lines, marks } = props;
  useEffect(() => plot.current?.setData(data(latest.current)), [at, lines, marks]);
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{props.title}</span>
        <Legend {...props} />
      </figcaption>
      <div class="chart-box" ref={box} role="img" aria-label={summary(props)} />
    </figure>
  );
}

/** Names of several lines, and the newest value of each. */
function Legend({ lines: all, say }: Props) {
  const lines = all.filter((line) => !line.isRuler);
  return (
    <span class="chart-legend">
      {lines.map((line) => {
        const value = line.values[line.values.length - 1];
        return (
          <span key={line.label} class="chart-key">
            {lines.length > 1 && <i class="dot" style={{ background: `var(${line.colour})` }} />}
            {lines.length > 1 && `${line.label} `}
            <b>{value == null ? "–" : say(value)}</b>
          </span>
        );
      })}
    </span>
  );
}

function summary({ title, at, lines, say }: Props): string {
  if (at.length === 0) return `${title}: nothing yet`;
  const values = lines.flatMap((line) => {
    if (line.isRuler) return [];
    const known = Array.from(line.values).filter((value) => value != null);
    if (known.length === 0) return `${line.label} unknown`;
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const last = line.values[line.values.length - 1];
    return `${line.label} now ${last == null ? "unknown" : say(last)}, from ${say(low)} to ${say(high)}`;
  });
  return `${title} over ${duration((at.at(-1) ?? 0) - (at[0] ?? 0))}: ${values.join("; ")}`;
}

function data({ at, lines }: Props): uPlot.AlignedData {
  return [at as number[], ...lines.map((line) => line.values as (number | null)[])];
}

function options(latest: { current: Props }, width: number): uPlot.Options {
  const { lines, say, sync, height = 132 } = latest.current;
  const [soft, grid] = [colourOf("--soft"), colourOf("--grid")];
  const axis = { stroke: soft, font: FONT, ticks: { show: false } };
  const cursor: uPlot.Cursor = { y: false, points: { size: 6 }, drag: { x: false, y: false } };
  if (sync) cursor.sync = { key: sync };
  return {
    width: Math.max(width, 50),
    height,
    cursor,
    legend: { show: false },
    // The last moment on the axis stands half beyond it.
    padding: [6, 24, 0, 0],
    scales: {
      x: { range: (_, low, high) => [...(latest.current.range ?? [low, Math.max(high, low + 10)])] },
      y: { range: (_, low, high) => limits(latest.current, low, high) },
    },
    axes: [
      { ...axis, size: 25, gap: 6, grid: { show: false }, space: 64, values: (_, ticks) => ticks.map(clock(ticks)) },
      {
        ...axis,
        size: 46,
        gap: 4,
        space: 26,
        grid: { stroke: grid, width: 1 },
        values: (_, ticks) => ticks.map((tick) => say(tick)),
      },
    ],
    series: [{}, ...lines.map(series)],
    plugins: [tip(latest), markers(latest)],
  };
}

function series(line: Line): uPlot.Series {
  const stroke = colourOf(line.colour);
  const drawn: uPlot.Series = { label: line.label, stroke, width: 1.75, points: { show: false }, spanGaps: false };
  if (line.isFilled) drawn.fill = `${stroke}22`;
  if (line.isRuler) drawn.dash = [5, 4];
  if (line.isStepped && uPlot.paths.stepped) drawn.paths = uPlot.paths.stepped({ align: 1 });
  return drawn;
}

/** From 0 unless told otherwise, with room above, and never without height. */
function limits({ min, max }: Props, low: number | null, high: number | null): [number, number] {
  const bottom = Math.min(min ?? 0, low ?? Infinity);
  const top = max ?? (high ?? 1) * 1.08;
  return [bottom, top > bottom ? top : bottom + 1];
}

const clock = (ticks: number[]) => (tick: number) => {
  const text = moment(tick * 1_000);
  const gap = (ticks[1] ?? 0) - (ticks[0] ?? 0);
  return gap >= 60 || gap === 0 ? text.slice(0, -3) : text;
};

/** What all lines say where the pointer is. */
function tip(latest: { current: Props }): uPlot.Plugin {
  let note: HTMLDivElement;
  return {
    hooks: {
      init: (plot) => {
        note = document.createElement("div");
        note.className = "chart-tip";
        plot.over.append(note);
      },
      setCursor: (plot) => {
        const { idx, left = -1 } = plot.cursor;
        const { at, lines, say } = latest.current;
        note.hidden = idx == null || left < 0;
        if (idx == null || left < 0) return;
        const rows = lines.flatMap((line) => {
          if (line.isRuler) return [];
          const value = line.values[idx];
          return `${lines.length > 1 ? `${line.label} ` : ""}${value == null ? "–" : say(value)}`;
        });
        note.textContent = `${moment((at[idx] ?? 0) * 1_000)}  ${rows.join("  ")}`;
        const isLeft = left > plot.over.clientWidth / 2;
        note.style.left = isLeft ? "" : `${left + 8}px`;
        note.style.right = isLeft ? `${plot.over.clientWidth - left + 8}px` : "";
      },
    },
  };
}

/** A line at each moment that is worth one. */
function markers(latest: { current: Props }): uPlot.Plugin {
  const draw = (plot: uPlot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colourOf("--mark");
    ctx.setLineDash([3, 3]);
    for (const mark of latest.current.marks ?? []) {
      const x = Math.round(plot.valToPos(mark, "x", true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };
  return { hooks: { drawClear: draw } };
}
