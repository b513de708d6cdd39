/** Jobs of a cluster that a rank belongs to. */

import { h } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";

const MANAGERS = { slurm: "Slurm", kubernetes: "Kubernetes", ray: "Ray", torchrun: "torchrun", mpi: "MPI" };

/** Pairs of a name and what is shown, one for each job. */
export function jobFacts(rank) {
  return rank.jobs.map((job) => [MANAGERS[job.manager] ?? job.manager, [identity(job), details(job)]]);
}

/** Identifiers of a job; each lists the runs of its job. */
function identity(job) {
  const keys = [job.array, job.id, job.pod].filter(Boolean);
  return keys.map((key, at) => [
    at > 0 ? ", " : "",
    h("a", { href: `/runs?job=${encodeURIComponent(key)}`, title: "List the runs of this job" }, key),
  ]);
}

function details(job) {
  const parts = [
    job.name,
    job.namespace && `namespace ${job.namespace}`,
    job.partition && `partition ${job.partition}`,
    job.step && `step ${job.step}`,
    nodeWords(job),
    job.restarts ? `${count(job.restarts)} ${job.restarts === 1 ? "restart" : "restarts"}` : "",
    isKnown(job.memory_limit_bytes) && `host memory up to ${bytes(job.memory_limit_bytes)}`,
  ].filter(Boolean);
  return parts.length > 0 && h("div", { class: "muted" }, parts.join(", "));
}

function nodeWords({ node, nodes, node_count: number }) {
  const all = nodes ?? (isKnown(number) && number > 1 ? `${count(number)} nodes` : "");
  if (node && all && node !== all) return `node ${node} of ${all}`;
  return node ? `node ${node}` : all;
}
