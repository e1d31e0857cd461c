import type { HeldBackNode, Node, NodeJob } from "../api";
import { jobLook } from "../colour";
import { duration, gpus, number, plural, sanitize } from "../format";
import { now } from "../live";
import { JobLink } from "./job";

/** Beyond this, cells are small and have no numbers. */
const LARGE_MAX = 256;
const HOLDERS_MAX = 24;

/** Every node and GPU, coloured by job. Nobody numbers GPUs above a backend, so cells stand in order of jobs. */
export function GpuGrid({ nodes }: { nodes: readonly Node[] }) {
  const gpus = nodes.reduce((sum, node) => sum + node.gpus, 0);
  const stop = nodes.findIndex((node) => node.jobs.some((job) => !job.is_guest));
  return (
    <ul class={`nodes ${gpus > LARGE_MAX ? "nodes-dense" : ""}`} onKeyDown={walk}>
      {nodes.map((node, idx) => (
        <NodeCells key={node.name} node={node} isDense={gpus > LARGE_MAX} isStop={idx === stop} />
      ))}
    </ul>
  );
}

/** Who holds how many, the largest first. */
export function Holders({ nodes }: { nodes: readonly Node[] }) {
  const held = new Map<number, { name: string; gpus: number }>();
  for (const job of nodes.flatMap((node) => node.jobs)) {
    held.set(job.id, { name: job.name, gpus: (held.get(job.id)?.gpus ?? 0) + gpus(job) });
  }
  const holders = [...held].sort(([a, one], [b, other]) => other.gpus - one.gpus || a - b);
  return (
    <ul class="holders">
      {holders.slice(0, HOLDERS_MAX).map(([id, { name, gpus }]) => (
        <li key={id}>
          <JobLink id={id} name={name} />
          <span class="soft">{gpus}</span>
        </li>
      ))}
      {holders.length > HOLDERS_MAX && <li class="soft">and {plural(holders.length - HOLDERS_MAX, "other")}</li>}
    </ul>
  );
}

/** Nodes that wait to be used, and for what. */
export function HeldBack({ nodes }: { nodes: readonly HeldBackNode[] }) {
  if (nodes.length === 0) return null;
  return (
    <ul class="nodes">
      {nodes.map((node) => (
        <li key={node.name} class="node">
          <div class="node-head">
            <b>{sanitize(node.name)}</b>
            <span class="soft">
              {plural(node.gpus, "GPU")} · {node.gpu_type}
            </span>
            <span class="tag tag-warn">held back</span>
          </div>
          <p class="soft">{sanitize(node.reason)}</p>
        </li>
      ))}
    </ul>
  );
}

/** What is counted of a node besides its GPUs. */
function resources({ cpus, cpus_held = 0, memory, memory_held = 0 }: Node): string[] {
  const told: string[] = [];
  if (cpus != null) told.push(`${cpus_held} of ${plural(cpus, "CPU")}`);
  if (memory != null) told.push(`${number(memory_held / 2 ** 30)} of ${number(memory / 2 ** 30)} GiB`);
  return told;
}

function NodeCells({ node, isDense, isStop }: { node: Node; isDense: boolean; isStop: boolean }) {
  const owners = cells(node.jobs.filter((job) => !job.is_guest));
  const guests = cells(node.jobs.filter((job) => job.is_guest));
  const leaving = Math.max(0, node.gpus_held - owners.length);
  const cooling = node.cooling_until_ms;
  const free = Math.max(0, node.gpus - node.gpus_held);
  const cell = (job: NodeJob, idx: number, isFirst: boolean) => {
    const look = jobLook(job.id);
    const told = `${sanitize(job.name)}, job ${job.id}, ${job.is_guest ? "a guest" : "a GPU"} on ${node.name}`;
    return (
      <a
        key={idx}
        class={`cell ${look.class}`}
        href={`#/jobs/${job.id}`}
        style={look.style}
        title={told}
        aria-label={told}
        tabIndex={isFirst ? 0 : -1}
      >
        {isDense ? "" : job.id}
      </a>
    );
  };
  return (
    <li class="node">
      <div class="node-head">
        <b>{sanitize(node.name)}</b>
        <span class="soft">
          {[`${plural(node.gpus, "GPU")} · ${node.gpu_type} · ${free} free`, ...resources(node)].join(" · ")}
        </span>
        {node.is_retired && <span class="tag tag-warn">retired</span>}
        {node.is_unreachable && <span class="tag tag-warn">unreachable</span>}
        {node.is_draining && <span class="tag tag-warn">draining</span>}
        {cooling != null && <span class="tag tag-warn">cools down, {duration((cooling - now.value) / 1_000)}</span>}
      </div>
      <div class="cells">
        {owners.map((job, idx) => cell(job, idx, isStop && idx === 0))}
        {Array.from({ length: leaving }, (_, idx) => (
          <span key={`l${idx}`} class="cell cell-leaving" title="a replica is on its way out" />
        ))}
        {Array.from({ length: Math.max(0, node.gpus - owners.length - leaving) }, (_, idx) => (
          <span key={`f${idx}`} class="cell cell-free" title="free" />
        ))}
      </div>
      {guests.length > 0 && <div class="cells guests">{guests.map((job, idx) => cell(job, idx, false))}</div>}
    </li>
  );
}

const cells = (jobs: readonly NodeJob[]) => jobs.flatMap((job) => Array.from({ length: gpus(job) }, () => job));

/** One stop of the keyboard for all cells; arrows go from one to the next. */
function walk(event: KeyboardEvent): void {
  const links = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("a.cell")];
  const at = links.indexOf(document.activeElement as HTMLElement);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  links.at(to % links.length)?.focus();
}
