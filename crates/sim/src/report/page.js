
// The page itself: head, choice of workload, sections.

import { colour, duration, element, percent } from "./chart.js";
import { completionCurves, fairnessCurves } from "./curves.js";
import { clusterStrips, gpuScale, jobLines, pieces, ribbon } from "./timeline.js";

const COLUMNS = [
  ["average", "min", (run) => run.avg_jct_s / 60, 1, "low"],
  ["median", "min", (run) => run.p50_jct_s / 60, 1, "low"],
  ["p99", "min", (run) => run.p99_jct_s / 60, 1, "low"],
  ["makespan", "h", (run) => run.makespan_s / 3600, 2, "low"],
  ["GPU time", "h", (run) => run.gpu_hours, 1, "low"],
  ["utilisation", "%", (run) => run.utilisation * 100, 1, "none"],
  ["restarts", "per job", (run) => run.restarts_per_job, 2, "low"],
  ["queued", "min", (run) => run.avg_queued_s / 60, 1, "low"],
  ["ρ max", "", (run) => run.rho_max, 2, "low"],
  ["ρ p90", "", (run) => run.rho_p90, 2, "low"],
  ["ρ > 1", "% of jobs", (run) => run.rho_above_1 * 100, 1, "low"],
  ["efficiency", "%", (run) => run.avg_efficiency * 100, 1, "high"],
];

export function drawPage(data, page) {
  const policies = data.groups[0].runs.map((run) => run.policy);
  const title = policies.length > 1 ? policies.join(", ") : `Workloads under ${policies[0]}`;
  hidden.replaceSync("");
  page.append(element("h1", {}, title), facts(data));
  const body = element("div", {});
  page.append(choices(data, policies, (group) => drawGroup(body, group)), overview(data, policies), body);
  page.append(element("footer", {}, `${data.build}. The same build, settings, workload and seed give the same page.`));
  drawGroup(body, data.groups[0]);
}

function facts(data) {
  const fact = ([name, value]) => element("span", {}, `${name} `, element("b", {}, value));
  const workloads = data.groups.map((group) => group.workload);
  const names = [["build", data.build], ...data.settings];
  names.push([workloads.length > 1 ? "workloads" : "workload", [...new Set(workloads)].join(", ")]);
  const seeds = [...new Set(data.groups.map((group) => group.seed).filter((seed) => seed !== null))];
  if (seeds.length) names.push([seeds.length > 1 ? "seeds" : "seed", seeds.join(", ")]);
  return element("div", { class: "facts" }, ...names.map(fact));
}

const hidden = new CSSStyleSheet();
document.adoptedStyleSheets.push(hidden);

// Tabs of workloads, and the policies: a click hides or shows one everywhere.
function choices(data, policies, choose) {
  const bar = element("div", { class: "bar" });
  const tabs = data.groups.map((group, idx) => {
    const repeated = data.groups.filter((other) => other.workload === group.workload).length > 1;
    const name = repeated ? `${group.workload}, seed ${group.seed}` : group.workload;
    const press = (event) => {
      tabs.forEach((tab) => tab.setAttribute("aria-pressed", tab === event.currentTarget));
      choose(group);
    };
    return element("button", { class: "tab", "aria-pressed": idx === 0, onclick: press }, name);
  });
  if (tabs.length > 1) bar.append(...tabs, element("span", { class: "gap" }));
  const keys = policies.map((policy, idx) => {
    const press = (event) => {
      const key = event.currentTarget;
      key.setAttribute("aria-pressed", key.getAttribute("aria-pressed") !== "true");
      const off = keys.flatMap((key, idx) => (key.getAttribute("aria-pressed") === "true" ? [] : [`.report .of-${idx}`]));
      hidden.replaceSync(off.length ? `${off.join(",")} { display: none; }` : "");
    };
    const look = { class: "key", style: `--colour:${colour(idx)}`, "aria-pressed": "true", title: "show or hide" };
    return element("button", { ...look, onclick: press }, policy);
  });
  bar.append(...keys);
  return bar;
}

// Average completion times of all workloads, where there are several.
function overview(data, policies) {
  if (data.groups.length < 2) return "";
  const head = element("tr", {}, element("th", {}, "average completion, min"));
  const label = (group) => (group.seed ? `${group.workload} · ${group.seed}` : group.workload);
  head.append(...data.groups.map((group) => element("th", {}, label(group))));
  head.append(element("th", {}, "mean"), element("th", {}, `against ${policies[0]}`));
  const values = policies.map((_, policy) => data.groups.map((group) => group.runs[policy].summary.avg_jct_s / 60));
  const means = values.map((row) => row.reduce((sum, value) => sum + value, 0) / row.length);
  const body = element("tbody", {});
  policies.forEach((policy, idx) => {
    const row = element("tr", { class: `of-${idx}` }, policyCell(policy, idx));
    values[idx].forEach((value, group) => row.append(numberCell(value.toFixed(1), value <= Math.min(...values.map((row) => row[group])))));
    row.append(numberCell(means[idx].toFixed(1), means[idx] <= Math.min(...means)), numberCell((means[idx] / means[0]).toFixed(3)));
    body.append(row);
  });
  return section("All workloads", "", element("div", { class: "card scroll", tabindex: 0 }, element("table", {}, element("thead", {}, head), body)));
}

const policyCell = (policy, idx) =>
  element("td", {}, element("span", { class: "swatch", style: `background:${colour(idx)}` }), policy);
const numberCell = (text, best) => element("td", best ? { class: "best" } : {}, text);

function section(title, text, ...content) {
  const box = element("section", {}, element("h2", {}, title));
  if (text) box.append(element("p", {}, text));
  box.append(...content);
  return box;
}

function drawGroup(body, group) {
  const card = (title, content, of) => element("div", { class: `card ${of || ""}` }, element("h3", {}, title), content);
  const jobs = group.jobs.length < group.job_count ? `${group.jobs.length} of ${group.job_count} jobs` : `${group.job_count} jobs`;
  body.replaceChildren(
    section(`${group.workload}: ${group.job_count} jobs on ${group.gpus} GPUs`, "", tiles(group), summaryTable(group)),
    section("Completion and fairness", "How many jobs are done within a time, and how their time compares with that alone on a fair share of the cluster (ρ): above 1 a job would have been better off by itself.", element("div", { class: "grid" },
      card("Share of jobs completed within", completionCurves(group)),
      card("Share of jobs with at most this ρ", fairnessCurves(group)))),
  );
  if (!group.runs[0].gpus_used.length) return;
  body.append(section("The cluster over time", "", element("div", { class: "card" }, clusterStrips(group))));
  const detail = element("div", {});
  const select = (row) => drawJob(detail, group, row, select);
  const scrollTo = (row) => {
    select(row);
    detail.scrollIntoView({ behavior: "smooth", block: "nearest" });
  };
  const ribbons = group.runs.map((run, idx) => card(run.policy, ribbon(group, run, scrollTo), `of-${idx}`));
  body.append(
    section("GPUs of every job", `A line per job (${jobs}), in order of submission, from its submission to its end. Click on one to see it below.`, gpuScale(), element("div", { class: "grid" }, ...ribbons)),
    section("One job", "Its GPUs, the batch it trained with, and what each sample of that batch was worth.", detail),
  );
  select(interesting(group));
}

// The job whose batch changed most under the first policy, among those that no policy let wait for ages.
function interesting(group) {
  const score = (row) => {
    const times = group.runs.map((run) => run.jobs[row].finished_s - group.jobs[row].submitted_s);
    const batches = new Set(pieces(group.runs[0].jobs[row]).map((piece) => piece.batch)).size;
    return (batches * Math.min(...times)) / Math.max(...times);
  };
  const scores = group.jobs.map((_, row) => score(row));
  return scores.indexOf(Math.max(...scores));
}

function tiles(group) {
  const first = group.runs[0].summary.avg_jct_s;
  const tile = (run, idx) => {
    const { avg_jct_s, rho_max, utilisation } = run.summary;
    const ratio = idx === 0 ? "" : `${(avg_jct_s / first).toFixed(2)} × ${group.runs[0].policy} · `;
    return element("div", { class: `card tile of-${idx}`, style: `--colour:${colour(idx)}` },
      element("div", { class: "name" }, run.policy),
      element("div", { class: "small" }, "average completion"),
      element("div", { class: "big" }, duration(avg_jct_s)),
      element("div", { class: "small" }, `${ratio}ρ max ${rho_max.toFixed(1)} · ${percent(utilisation)} held`));
  };
  return element("div", { class: "tiles" }, ...group.runs.map(tile));
}

function summaryTable(group) {
  const head = element("tr", {}, element("th", {}, "policy"));
  head.append(...COLUMNS.map(([name, unit]) => element("th", {}, name, element("small", {}, unit || "\u00a0"))));
  const texts = COLUMNS.map(([, , value, digits]) => group.runs.map((run) => value(run.summary).toFixed(digits)));
  const best = COLUMNS.map(([, , , , good], column) => {
    const numbers = texts[column].map(Number);
    return good === "none" || numbers.length < 2 ? NaN : good === "low" ? Math.min(...numbers) : Math.max(...numbers);
  });
  const body = element("tbody", {});
  group.runs.forEach((run, idx) => {
    const cells = COLUMNS.map((_, column) => numberCell(texts[column][idx], Number(texts[column][idx]) === best[column]));
    body.append(element("tr", { class: `of-${idx}` }, policyCell(run.policy, idx), ...cells));
  });
  return element("div", { class: "card scroll", tabindex: 0 }, element("table", {}, element("thead", {}, head), body));
}

function drawJob(detail, group, row, select) {
  const job = group.jobs[row];
  const options = group.jobs.map(({ name }, idx) => {
    const option = element("option", { value: idx }, name);
    option.selected = idx === row;
    return option;
  });
  const picker = element("select", { "aria-label": "job", onchange: (event) => select(Number(event.target.value)) }, ...options);
  const times = group.runs.map((run, idx) => {
    const { finished_s, restarts, rho } = run.jobs[row];
    const told = `${run.policy} ${duration(finished_s - job.submitted_s)}, ${restarts} restarts, ρ ${rho.toFixed(2)}`;
    return element("span", { class: `of-${idx}`, style: `--colour:${colour(idx)}` }, told);
  });
  const card = (title, options) =>
    element("div", { class: "card" }, element("h3", {}, title), jobLines(group, row, { title, ...options }));
  detail.replaceChildren(
    element("div", { class: "scale" }, picker, ...times),
    element("div", { class: "thirds" },
      card("GPUs", { value: (piece) => piece.gpus, format: (gpus) => `${gpus}`, least: 4 }),
      card("Batch, samples", { value: (piece) => piece.batch, format: (batch) => `${Math.round(batch)}`, least: 1, logScale: true, gaps: true }),
      card("Statistical efficiency", { value: (piece) => piece.efficiency, format: percentShort, least: 1, gaps: true })),
  );
}

const percentShort = (share) => `${Math.round(share * 100)}%`;
