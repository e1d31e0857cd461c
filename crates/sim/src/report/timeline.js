
// What happened when: the cluster, every job, and single jobs.

import { axisX, axisY, colour, dash, duration, element, frame, hourTicks, hover, linear, logarithmic, percent, roundTicks, shape } from "./chart.js";

const GPU_LEVELS = [[1, "1"], [2, "2"], [4, "3–4"], [8, "5–8"], [16, "9–16"], [32, "17–32"], [Infinity, "33+"]];
const levelOf = (gpus) => GPU_LEVELS.findIndex(([most]) => gpus <= most);

// Samples of a job, each until the next or until it is finished.
export function pieces(job) {
  const list = [];
  let time = 0;
  for (let idx = 0; idx < job.series.length; idx += 4) {
    time += job.series[idx];
    const [, gpus, batch, efficiency] = job.series.slice(idx, idx + 4);
    if (list.length) list[list.length - 1].to = time;
    list.push({ from: time, to: job.finished_s, gpus, batch, efficiency: efficiency / 1000 });
  }
  return list.filter((piece) => piece.to > piece.from);
}

function strip(group, policy, values, most, options) {
  const last = policy === group.runs.length - 1;
  const title = `${options.title} under ${group.runs[policy].policy}`;
  const plot = frame(title, options.width, last ? 92 : 74, { left: 34, right: 6, top: 6, bottom: last ? 22 : 4 });
  const { root, inner } = plot;
  const x = linear(0, group.end_s, inner.left, inner.right);
  const y = linear(0, most, inner.bottom, inner.top);
  axisY(plot, [0, most], y, (value) => `${value}`);
  const ticks = hourTicks(group.end_s, options.width / 70);
  if (last) axisX(plot, ticks, x, duration);
  const slice_s = group.end_s / values.length;
  let path = `M${inner.left} ${inner.bottom}`;
  values.forEach((value, idx) => {
    path += `V${y(value).toFixed(1)}H${x((idx + 1) * slice_s).toFixed(1)}`;
  });
  const style = `fill:${colour(policy)};fill-opacity:${options.opacity}`;
  root.append(shape("path", { d: `${path}V${inner.bottom}Z`, style }));
  hover(plot, (at) => {
    const time = linear(inner.left, inner.right, 0, group.end_s)(at);
    const idx = Math.min(Math.floor(time / slice_s), values.length - 1);
    const row = (run, which) => [which, run.policy, options.say(run, idx)];
    return { title: `after ${duration(time)}`, rows: group.runs.map(row) };
  });
  return root;
}

export function clusterStrips(group) {
  const box = element("div", { class: "strips" });
  box.append(
    element("div", {}),
    element("div", { class: "head" }, `GPUs held, of ${group.gpus}`),
    element("div", { class: "head" }, "jobs waiting"),
  );
  const waiting = Math.max(1, ...group.runs.flatMap((run) => run.jobs_waiting.map(Math.ceil)));
  group.runs.forEach((run, policy) => {
    const of = `of-${policy}`;
    const used = { title: "GPUs held", width: 720, opacity: 0.85, say: (run, idx) => `${run.gpus_used[idx].toFixed(1)} GPUs` };
    const queue = { title: "Jobs waiting", width: 480, opacity: 0.5, say: (run, idx) => `${run.jobs_waiting[idx].toFixed(1)} waiting` };
    box.append(
      element("div", { class: `name ${of}`, style: `color:${colour(policy)}` }, run.policy),
      element("div", { class: of }, strip(group, policy, run.gpus_used, group.gpus, used)),
      element("div", { class: of }, strip(group, policy, run.jobs_waiting, waiting, queue)),
    );
  });
  return box;
}

export function gpuScale() {
  const key = (name, text) => element("span", { style: `--colour:var(${name})` }, text);
  const levels = GPU_LEVELS.map(([, text], idx) => key(`--g${idx}`, text));
  return element("div", { class: "scale" }, "GPUs held:", ...levels, key("--wait", "waiting"));
}

// One line per job from its submission to its end, coloured by the GPUs it held.
export function ribbon(group, run, select) {
  const plot = frame(`GPUs of every job under ${run.policy}`, 620, 380, { left: 10, right: 8, top: 4, bottom: 24 });
  const { root, inner } = plot;
  root.setAttribute("class", "ribbon");
  const x = linear(0, group.end_s, inner.left, inner.right);
  const pitch = (inner.bottom - inner.top) / group.jobs.length;
  const thick = pitch > 1.6 ? pitch * 0.86 : pitch;
  axisX(plot, hourTicks(group.end_s, 8), x, duration);
  const paths = GPU_LEVELS.map(() => "");
  let waits = "";
  const bar = (from, to, top, height) => `M${x(from).toFixed(1)} ${top.toFixed(2)}H${x(to).toFixed(1)}v${height.toFixed(2)}H${x(from).toFixed(1)}Z`;
  run.jobs.forEach((job, row) => {
    const top = inner.top + row * pitch;
    waits += bar(group.jobs[row].submitted_s, job.finished_s, top + thick * 0.3, thick * 0.4);
    for (const piece of pieces(job)) {
      if (piece.gpus) paths[levelOf(piece.gpus)] += bar(piece.from, piece.to, top, thick);
    }
  });
  root.append(shape("path", { d: waits, style: "fill:var(--wait)" }));
  paths.forEach((d, level) => root.append(shape("path", { d, style: `fill:var(--g${level})` })));
  const timeAt = linear(inner.left, inner.right, 0, group.end_s);
  // Lines are thin: the nearest job that is there at that time, if one is near.
  const rowAt = (atX, atY) => {
    const time = timeAt(atX);
    const middle = Math.min(Math.max(Math.floor((atY - inner.top) / pitch), 0), group.jobs.length - 1);
    const there = (row) => run.jobs[row] && group.jobs[row].submitted_s <= time && time < run.jobs[row].finished_s;
    const reach = Math.ceil(8 / pitch);
    for (let away = 0; away <= reach; away++) {
      const found = [middle - away, middle + away].find(there);
      if (found !== undefined) return found;
    }
    return middle;
  };
  const { catcher, place } = hover(plot, (atX, atY) => {
    const row = rowAt(atX, atY);
    const time = timeAt(atX);
    const job = run.jobs[row];
    const { name, submitted_s } = group.jobs[row];
    const piece = pieces(job).find((piece) => piece.from <= time && time < piece.to);
    const alive = time >= submitted_s && time < job.finished_s;
    const now = !alive ? "not in the cluster" : piece && piece.gpus ? `${piece.gpus} GPUs` : "waiting";
    const rows = [
      [null, `after ${duration(time)}`, now],
      [null, "completion time", duration(job.finished_s - submitted_s)],
      [null, "restarts", `${job.restarts}`],
      [null, "ρ", job.rho.toFixed(2)],
    ];
    if (piece && piece.batch) rows.splice(1, 0, [null, "batch", `${piece.batch} at ${percent(piece.efficiency)}`]);
    return { title: name, rows };
  });
  catcher.addEventListener("click", (event) => {
    const { x, y } = place(event);
    select(rowAt(x, y));
  });
  return root;
}

// One quantity of one job under each policy, from its submission on; with `gaps`, nothing where it is zero.
export function jobLines(group, row, { title, value, format, least, logScale, gaps }) {
  const plot = frame(`${title} of ${group.jobs[row].name}`, 420, 230, { left: 48, right: 10, top: 8, bottom: 38 });
  const { root, inner } = plot;
  const { submitted_s } = group.jobs[row];
  const lists = group.runs.map((run) => pieces(run.jobs[row]));
  const end_s = Math.max(...group.runs.map((run) => run.jobs[row].finished_s)) - submitted_s;
  const shown = lists.flat().map(value).filter((value) => value > 0);
  const most = Math.max(least, ...shown);
  const low = logScale ? Math.min(most / 2, ...shown) : 0;
  const x = linear(0, end_s, inner.left, inner.right);
  const y = (logScale ? logarithmic : linear)(low, most, inner.bottom, inner.top);
  const powers = [];
  for (let tick = low; tick > 0 && tick <= most * 1.001; tick *= 2) powers.push(tick);
  const every = Math.ceil(powers.length / 6);
  axisY(plot, logScale ? powers.filter((_, idx) => idx % every === 0) : roundTicks(most, 4), y, format);
  axisX(plot, hourTicks(end_s, 6), x, duration, "since submission");
  lists.forEach((list, policy) => {
    let path = "";
    let joined = false;
    for (const piece of list) {
      const level = value(piece);
      if (gaps && !(level > 0)) {
        joined = false;
        continue;
      }
      const [from, to, height] = [piece.from - submitted_s, piece.to - submitted_s, y(level).toFixed(1)];
      path += joined ? `V${height}H${x(to).toFixed(1)}` : `M${x(from).toFixed(1)} ${height}H${x(to).toFixed(1)}`;
      joined = true;
    }
    const look = `stroke:${colour(policy)};stroke-dasharray:${dash(policy)};stroke-width:1.7`;
    root.append(shape("path", { class: `curve of-${policy}`, d: path, style: look }));
  });
  hover(plot, (at) => {
    const time = submitted_s + linear(inner.left, inner.right, 0, end_s)(at);
    const rows = lists.map((list, policy) => {
      const piece = list.find((piece) => piece.from <= time && time < piece.to);
      const done = time >= group.runs[policy].jobs[row].finished_s;
      return [policy, group.runs[policy].policy, done ? "finished" : piece && value(piece) ? format(value(piece)) : "waiting"];
    });
    return { title: `${duration(time - submitted_s)} after submission`, rows };
  });
  return root;
}
