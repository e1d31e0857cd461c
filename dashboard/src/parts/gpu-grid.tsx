import type { Node } from "../api";
import { jobColour } from "../colour";
import { duration, plural } from "../format";
import { now } from "../live";
import { JobLink } from "./job";

/** Beyond this, cells are small and have no numbers. */
const LARGE_MAX = 256;
const HOLDERS_MAX = 24;

/** Every node and GPU, coloured by job. */
export function GpuGrid({ nodes }: { nodes: readonly Node[] }) {
  const gpus = nodes.reduce((sum, node) => sum + node.gpus, 0);
  return (
    <ul class={`nodes ${gpus > LARGE_MAX ? "nodes-dense" : ""}`}>
      {nodes.map((node) => (
        <NodeCells key={node.name} node={node} isDense={gpus > LARGE_MAX} />
      ))}
    </ul>
  );
}

/** Who holds how many, the largest first. */
export function Holders({ nodes }: { nodes: readonly Node[] }) {
  const held = new Map<number, { name: string; gpus: number }>();
  for (const { id, name, replicas } of nodes.flatMap((node) => node.jobs)) {
    held.set(id, { name, gpus: (held.get(id)?.gpus ?? 0) + replicas });
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

function NodeCells({ node, isDense }: { node: Node; isDense: boolean }) {
  const cells = node.jobs.flatMap((job) => Array.from({ length: job.replicas }, () => job));
  const leaving = Math.max(0, node.gpus_held - cells.length);
  const cooling = node.cooling_until_ms;
  const free = Math.max(0, node.gpus - node.gpus_held);
  return (
    <li class="node">
      <div class="node-head">
        <b>{node.name}</b>
        <span class="soft">
          {plural(node.gpus, "GPU")} · {node.gpu_type} · {free} free
        </span>
        {node.is_draining && <span class="tag tag-warn">draining</span>}
        {cooling != null && <span class="tag tag-warn">cools down, {duration((cooling - now.value) / 1_000)}</span>}
      </div>
      <div class="cells">
        {cells.slice(0, node.gpus).map((job, idx) => (
          <a
            key={idx}
            class="cell"
            href={`#/jobs/${job.id}`}
            style={{ background: jobColour(job.id) }}
            title={`${job.name} (job ${job.id})`}
            aria-label={`GPU ${idx} of ${node.name}: ${job.name}, job ${job.id}`}
          >
            {isDense ? "" : job.id}
          </a>
        ))}
        {Array.from({ length: leaving }, (_, idx) => (
          <span key={`l${idx}`} class="cell cell-leaving" title="a replica is on its way out" />
        ))}
        {Array.from({ length: Math.max(0, node.gpus - cells.length - leaving) }, (_, idx) => (
          <span key={`f${idx}`} class="cell cell-free" title="free" />
        ))}
      </div>
    </li>
  );
}
