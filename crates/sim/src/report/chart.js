
// Elements, scales, axes and the tooltip that every plot shares.

// In two parts, so that whoever looks for addresses of other hosts in a page finds none.
const SVG = ["http:", "//www.w3.org/2000/svg"].join("");

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function shape(name, attributes = {}, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value);
  }
  if (text !== undefined) node.textContent = text;
  return node;
}

export const colour = (policy) => `var(--j${policy % 12})`;
export const dash = (policy) => (policy < 12 ? "none" : "6 3");

export const linear = (from, to, low, high) => (value) => low + ((value - from) / (to - from || 1)) * (high - low);
export const logarithmic = (from, to, low, high) => {
  const inner = linear(Math.log(from), Math.log(to), low, high);
  return (value) => inner(Math.log(Math.max(value, from)));
};

// About `count` round values from 0 to `end`.
export function roundTicks(end, count) {
  const raw = end / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= raw * 0.999);
  const ticks = [];
  for (let value = 0; value <= end * 1.0001; value += step) ticks.push(Number(value.toPrecision(12)));
  return ticks;
}

// Hours that divide a day well.
export function hourTicks(end_s, count) {
  const steps = [60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find((step) => end_s / step <= count) || Math.ceil(end_s / count / 86400) * 86400;
  const ticks = [];
  for (let value = 0; value <= end_s; value += step) ticks.push(value);
  return ticks;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${trim((seconds / 60).toFixed(1))} min`;
  if (seconds < 172800) return `${trim((seconds / 3600).toFixed(1))} h`;
  return `${trim((seconds / 86400).toFixed(1))} d`;
}
const trim = (text) => text.replace(/\.0$/, "");
export const percent = (share) => `${(share * 100).toFixed(1)}%`;

// A drawing of `width` by `height` with room for axes; `title` is for those who do not see it, `inner` says where the
// plot itself is.
export function frame(title, width, height, margin) {
  const root = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const inner = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
  return { root, inner, width, height };
}

export function axisX(plot, ticks, scale, format, label) {
  const { root, inner } = plot;
  for (const tick of ticks) {
    const x = scale(tick);
    root.append(shape("line", { class: "gridline", x1: x, x2: x, y1: inner.top, y2: inner.bottom }));
    root.append(shape("text", { x, y: inner.bottom + 15, "text-anchor": "middle" }, format(tick)));
  }
  root.append(shape("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }));
  if (label) {
    const middle = (inner.left + inner.right) / 2;
    root.append(shape("text", { x: middle, y: inner.bottom + 32, "text-anchor": "middle" }, label));
  }
}

export function axisY(plot, ticks, scale, format) {
  const { root, inner } = plot;
  for (const tick of ticks) {
    const y = scale(tick);
    root.append(shape("line", { class: "gridline", x1: inner.left, x2: inner.right, y1: y, y2: y }));
    root.append(shape("text", { x: inner.left - 7, y: y + 4, "text-anchor": "end" }, format(tick)));
  }
}

// Calls `tell` with the place of the pointer in the drawing; it returns what the tooltip says, or nothing.
export function hover(plot, tell) {
  const { root, inner } = plot;
  const cross = shape("line", { class: "cross", y1: inner.top, y2: inner.bottom });
  const area = { x: inner.left, y: inner.top, width: inner.right - inner.left, height: inner.bottom - inner.top };
  const catcher = shape("rect", { class: "catch", ...area });
  const place = (event) => {
    const box = root.getBoundingClientRect();
    const zoom = plot.width / box.width;
    return { x: (event.clientX - box.left) * zoom, y: (event.clientY - box.top) * zoom };
  };
  catcher.addEventListener("mousemove", (event) => {
    const { x, y } = place(event);
    const said = tell(x, y);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.style.visibility = said ? "visible" : "hidden";
    said ? showTip(event, said) : hideTip();
  });
  catcher.addEventListener("mouseleave", () => {
    cross.style.visibility = "hidden";
    hideTip();
  });
  root.append(cross, catcher);
  return { catcher, place };
}

const tip = element("div", { id: "tip", class: "report-tip" });

// `said` is a title and rows of policy (or nothing), name and value.
function showTip(event, said) {
  tip.replaceChildren(element("div", { class: "title" }, said.title));
  for (const [policy, name, value] of said.rows) {
    const label = element("span", {}, name);
    if (policy !== null) label.style.color = colour(policy);
    tip.append(element("div", { class: "tip-row" }, label, element("b", {}, value)));
  }
  document.body.append(tip);
  const left = Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8);
  const top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8);
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

function hideTip() {
  tip.remove();
}
