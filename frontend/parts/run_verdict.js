/** Verdict on a run's memory above its key figures: whether it fits, what made the peak, and where to look next. */

import { h } from "vramscope/dom.js";
import { bytes, count, isKnown, percent, phasePlace } from "vramscope/format.js";
import { scansThatRan } from "vramscope/parts/leak_verdict.js";

const TIGHT = 0.05; // share of the device: a longer batch can use less headroom than that
const MUCH = 0.1; // share of reserved memory that was never needed
const MANY = 64 * 2 ** 20; // bytes: less is one or two segments

/**
 * Headroom at the highest use: `{headroom, most, used, isDeviceUse}`, bytes, null if unknown. `isDeviceUse`: `used` comes
 * from the driver and includes context, libraries and other processes. Otherwise it is reserved memory only. `most`: where
 * the peak is a lower bound, by samples alone or because counters were reset, the headroom is at most this.
 */
export function headroomOf(run) {
  const { capacity_bytes: capacity, peak_reserved_bytes: reserved, sampled_reserved_bytes: sampled, ranks } = run;
  const reported = ranks.map((rank) => rank.peak_device_used_bytes).filter(isKnown);
  const used = isKnown(reserved) ? Math.max(reserved, ...reported) : null;
  const least = Math.max(used ?? 0, sampled ?? 0);
  const isBound = isKnown(sampled) || (isKnown(used) && run.lower_bound_steps > 0);
  return {
    headroom: isKnown(capacity) && isKnown(used) ? Math.max(0, capacity - used) : null,
    most: isBound && isKnown(capacity) ? Math.max(0, capacity - least) : null,
    used,
    isDeviceUse: reported.length > 0,
  };
}

/** Answers of a dry run, which are tags of its run, and how each is shown. */
const DRY_RUN = { fits: "good", "does not fit": "bad", "too close to say": "warn", "not trustworthy": "warn" };

/**
 * Banner of a dry run. Headroom is not shown: the card may be larger than the one in question, so that the need is seen.
 */
function dryRunVerdict(run) {
  const answer = run.tags.find((tag) => tag in DRY_RUN);
  return h(
    "div",
    { class: `banner verdict ${DRY_RUN[answer] ?? "warn"}`, "data-verdict": true },
    h("strong", {}, answer ? `Dry run: ${answer}.` : "Dry run."),
    h("span", {}, peakSentence(run, linkOf(run)), " Computed values are 0 on an emulated GPU."),
  );
}

/**
 * Banner of the verdict. Null if the peak or the capacity is unknown after a step, and for failed or lost runs, which have another
 * banner. `leaks`: answer of `/leaks`. Null if not fetched yet: the banner then says nothing about growth. `onCpu`: the
 * training runs on the CPU.
 */
export function runVerdict(run, leaks = null, onCpu = false) {
  const { headroom: exact, most } = headroomOf(run);
  const headroom = exact === null ? null : (most ?? exact);
  const atMost = isKnown(most) ? "at most " : "";
  if (run.state === "failed" || run.state === "lost") return null;
  const isEarly = run.state === "running" && !run.tags.includes("dry run");
  if (!(run.steps > 0) && (headroom === null || isEarly)) return noStepVerdict(run, onCpu ? null : headroom, atMost);
  if (onCpu) return cpuVerdict(run, leaks);
  if (headroom === null) return null;
  if (run.tags.includes("dry run")) return dryRunVerdict(run);
  const tight = headroom < run.capacity_bytes * TIGHT;
  const found = run.leak_count > 0;
  const grows = !found && leaks?.verdict.level === "growth";
  const findings = run.findings?.length ?? 0;
  const head = found
    ? "Leak found."
    : grows
      ? "Memory grows."
      : tight
        ? `${atMost ? "At most" : "Only"} ${bytes(headroom)} of headroom.`
        : `It fits, with ${atMost}${bytes(headroom)} of headroom.`;
  return h(
    "div",
    { class: `banner verdict ${found ? "bad" : grows || tight || findings > 0 ? "warn" : "good"}`, "data-verdict": true },
    h("strong", {}, run.state === "running" && !found ? `So far: ${head[0].toLowerCase()}${head.slice(1)}` : head),
    h(
      "span",
      {},
      sentences(run, leaks).flatMap((part) => [part, " "]),
      findings > 0 && (findings === 1 ? "A finding is listed below." : `${count(findings)} findings are listed below.`),
    ),
  );
}

/** Banner of a run before its first step, or of one that ended without a step. Samples alone do not say that it fits. */
function noStepVerdict({ state, peak_allocated_bytes: peak }, headroom, atMost) {
  const isRunning = state === "running";
  return h(
    "div",
    { class: `banner verdict ${isRunning ? "quiet" : "warn"}`, "data-verdict": true },
    h("strong", {}, isRunning ? "Waiting for the first step." : "No step ended."),
    h(
      "span",
      {},
      isRunning && isKnown(headroom) && isKnown(peak) && `So far at least ${bytes(peak)} allocated, with ${atMost}${bytes(headroom)} of headroom. `,
      isRunning ? "Peaks are shown from its end on. " : "Peaks are measured in steps. ",
      "The agent finds a step by its optimizer. A loop without one calls ",
      h("code", {}, "step()"),
      " of the object that ",
      h("code", {}, "agent.attach()"),
      " returned.",
    ),
  );
}

const ON_CPU = { true: "Trains on the CPU.", false: "Trained on the CPU." };

/** Banner of a training on the CPU, where only leaks can be judged. */
function cpuVerdict(run, leaks) {
  const link = linkOf(run);
  const found = run.leak_count > 0;
  const grows = !found && leaks?.verdict.level === "growth";
  return h(
    "div",
    { class: `banner verdict ${found ? "bad" : grows ? "warn" : "quiet"}`, "data-verdict": true },
    h("strong", {}, found ? "Leak found." : grows ? "Memory grows." : ON_CPU[run.state === "running"]),
    h(
      "span",
      {},
      found ? [foundText(run, link), " "] : [noLeakText(leaks, link) ?? "", " "],
      "The memory of its tensors is known in part only: PyTorch does not count it on the CPU.",
    ),
  );
}

function foundText(run, link) {
  return [
    link(run.leak_count === 1 ? "1 variable" : `${count(run.leak_count)} holders`, "/leaks"),
    run.leak_count === 1 ? " retains memory from earlier steps." : " retain memory from earlier steps.",
  ];
}

/** Function that makes a link to one of the run's pages. */
function linkOf(run) {
  return (words, page) => h("a", { href: `/runs/${encodeURIComponent(run.run_id)}${page}` }, words);
}

function sentences(run, leaks) {
  const link = linkOf(run);
  const idle = run.fragmentation?.never_needed_bytes;
  return [
    run.leak_count > 0 && foundText(run, link),
    peakSentence(run, link),
    run.leak_count > 0 ? null : noLeakText(leaks, link),
    run.fragmentation_fraction > MUCH &&
      idle > MANY && [link(`${bytes(idle)} of reserved memory`, "/fragmentation"), " was never needed."],
  ].filter(Boolean);
}

/** Statement about leaks for a run without one, as on the page Leaks. Unknown is not "none". */
function noLeakText(leaks, link) {
  const incomplete = leaks?.scans.some((scan) => scan.not_scanned) ? " The last scan was not complete." : "";
  const scanned = scansThatRan(leaks?.scans ?? []).length > 0;
  const cause = scanned ? ". No scan found the cause." : ". The agent has not scanned for the cause.";
  return {
    growth: [link("Memory after each step rises", "/leaks"), cause, incomplete],
    held: [
      link("A value", "/leaks"),
      " is retained one step longer than needed. No effect on the peak was seen.",
      incomplete,
    ],
    host: `No leak found on the device.${incomplete}`,
    none: `No leak found.${incomplete}`,
    unknown: [link("Leaks", "/leaks"), scanned ? ": not known." : ": not scanned.", incomplete],
  }[leaks?.verdict.level];
}

/** Largest category of a run's peak and its share. Null if an unknown part could be larger. */
function largestCategory({ peak_allocated_bytes: peak, peak_categories: categories }) {
  const known = Object.entries(categories ?? {}).filter(([, value]) => isKnown(value));
  if (!known.length || !(peak > 0)) return null;
  const [name, bytes] = known.reduce((a, b) => (b[1] > a[1] ? b : a));
  const rest = peak - known.reduce((sum, [, value]) => sum + value, 0);
  return bytes > 0 && bytes >= rest ? { name, share: bytes / peak } : null;
}

/** Rank with the run's peak. Null if there is one rank, or none has it. */
export function peakRank({ ranks, world_size: size, peak_allocated_bytes: peak }) {
  if (!(size > 1) || !isKnown(peak)) return null;
  return ranks.find((one) => one.peak_allocated_bytes === peak)?.rank ?? null;
}

const CATEGORY_CLAUSES = {
  optimizer: "is optimizer state",
  activations: "is activations and temporaries",
  workspaces: "is cuBLAS workspaces",
};

/** Sentence about the peak: its place and its largest category. For "other", links to a recorded step. */
function peakSentence(run, link) {
  const {
    peak_allocated_bytes: most,
    peak_step: step,
    peak_phase: phase,
    peak_categories: categories,
    lower_bound_steps: bounds,
    sampled_allocated_bytes: sampled,
    recordings,
  } = run;
  if (!isKnown(most)) return null;
  if (sampled > most) return `The peak is at least ${bytes(sampled)}: a sample of a rank whose peaks are unknown.`;
  const rank = peakRank(run);
  const where = [
    rank !== null && `on rank ${rank}`,
    phase && phasePlace(phase),
    isKnown(step) && `of step ${count(step)}`,
  ]
    .filter(Boolean)
    .join(" ");
  const largest = largestCategory({ peak_allocated_bytes: most, peak_categories: categories });
  const so = `The peak is ${bounds > 0 || isKnown(sampled) ? "at least " : ""}${bytes(most)}${where && `, ${where}`}`;
  if (!largest) return `${so}.`;
  const { name, share } = largest;
  const much = `${so}; ${percent(share, 0)} of it`;
  if (name === "other")
    return [
      `${much} is other`,
      recordings > 0 && [": ", link("See the breakdown of a recorded step", "/anatomy")],
      ".",
    ];
  return `${much} ${CATEGORY_CLAUSES[name] ?? `are ${name}`}.`;
}

/** Fields of a run that its verdict uses. */
const VERDICT_OF = [
  "state",
  "peak_allocated_bytes",
  "peak_step",
  "peak_phase",
  "peak_categories",
  "lower_bound_steps",
  "sampled_allocated_bytes",
  "leak_count",
  "fragmentation_fraction",
];

/** Values that the verdict is drawn from. It is drawn again when one of them changes. */
export const verdictKey = (run, leaks, place) => [
  place,
  run.steps > 0,
  headroomOf(run),
  run.findings?.length,
  leaks?.verdict,
  leaks?.scans,
  ...VERDICT_OF.map((name) => run[name]),
];
