
// Distributions over jobs: what share of them is at or below a value.

import { axisX, axisY, colour, dash, duration, frame, hover, linear, logarithmic, percent, shape } from "./chart.js";

const VALUE_TICKS = [60, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000];
const RATIO_TICKS = [0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000];

function shareBelow(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low / sorted.length;
}

function distribution(group, { values, ticks, format, label, mark }) {
  const plot = frame(`Share of jobs by ${label}`, 620, 340, { left: 44, right: 14, top: 10, bottom: 42 });
  const { root, inner } = plot;
  const all = group.runs.flatMap((run) => [run[values][0], run[values][run[values].length - 1]]);
  const from = Math.max(Math.min(...all) * 0.9, 1e-3);
  const to = Math.max(Math.max(...all) * 1.1, from * 2);
  const x = logarithmic(from, to, inner.left, inner.right);
  const y = linear(0, 1, inner.bottom, inner.top);
  axisY(plot, [0, 0.25, 0.5, 0.75, 1], y, (share) => `${share * 100}%`);
  const shown = spaced(ticks.filter((tick) => tick >= from && tick <= to), x, 42);
  axisX(plot, shown, x, format, label);
  if (mark && mark.at > from && mark.at < to) {
    root.append(shape("line", { class: "mark", x1: x(mark.at), x2: x(mark.at), y1: inner.top, y2: inner.bottom }));
    root.append(shape("text", { x: x(mark.at) + 5, y: inner.bottom - 6 }, mark.text));
  }
  group.runs.forEach((run, policy) => {
    const sorted = run[values];
    let path = `M${inner.left} ${inner.bottom}`;
    sorted.forEach((value, idx) => {
      path += `H${x(value).toFixed(1)}V${y((idx + 1) / sorted.length).toFixed(1)}`;
    });
    path += `H${inner.right}`;
    const look = `stroke:${colour(policy)};stroke-dasharray:${dash(policy)}`;
    root.append(shape("path", { class: `curve of-${policy}`, d: path, style: look }));
  });
  hover(plot, (at) => {
    const value = Math.exp(linear(inner.left, inner.right, Math.log(from), Math.log(to))(at));
    const rows = group.runs.map((run, policy) => [policy, run.policy, percent(shareBelow(run[values], value))]);
    return { title: `at most ${format(value)}`, rows };
  });
  return root;
}

// Leaves out ticks that would touch the one before.
function spaced(ticks, scale, gap) {
  let last = -Infinity;
  return ticks.filter((tick) => {
    if (scale(tick) - last < gap) return false;
    last = scale(tick);
    return true;
  });
}

export function completionCurves(group) {
  const options = { values: "completion_s", ticks: VALUE_TICKS, format: duration, label: "completion time" };
  return distribution(group, options);
}

export function fairnessCurves(group) {
  const format = (value) => `${Number(value.toPrecision(2))}`;
  const mark = { at: 1, text: "fair" };
  return distribution(group, { values: "rho", ticks: RATIO_TICKS, format, label: "finish-time fairness ρ", mark });
}
