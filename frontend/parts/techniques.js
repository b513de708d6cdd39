/** Techniques of a run: chips below its name, declared and observed techniques, and findings. */

import { copyButton, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

const NAMES = {
  gradient_checkpointing: "gradient checkpointing",
  gradient_accumulation: "gradient accumulation",
  mixed_precision: "mixed precision",
  optimizer: "optimizer",
  optimizer_8bit: "8-bit optimizer",
  batch: "batch",
  offload: "offload",
  distributed: "distributed",
  compile: "torch.compile",
  peft: "trained parameters",
  attention: "attention",
  allocator: "allocator",
  rollout_engine: "inference engine",
  gradient_projection: "low-rank gradients",
  fused_kernels: "fused kernels",
  quantized_weights: "quantized weights",
};
const PAGES = {
  "evaluation-with-graphs": ["leaks", "Leaks"],
  "split-and-expandable": ["fragmentation", "Fragmentation"],
};

const isMissing = (technique) => technique.observed === "";
const isPending = (technique) => technique.observed === null;

/** Title of a chip: what was declared and what was observed. */
function chipTitle({ declared, observed }) {
  const seen = observed === "" ? "not observed" : (observed ?? "not observed yet, or not observable");
  return `declared: ${declared ?? "nowhere"}\nobserved: ${seen}`;
}

/** Short names of the techniques, as in the runs list. */
export const shortWords = (techniques) =>
  techniques?.map((technique) => technique.chip + (isMissing(technique) ? " not seen" : "")) ?? null;

/**
 * One chip for each technique. Null if the agent reports none. Declared techniques that were not observed are marked.
 */
export function techniqueChips(techniques) {
  if (!techniques?.length) return null;
  return h(
    "div",
    { class: "techniques-line", "aria-label": "Techniques", role: "list" },
    techniques.map((technique) =>
      h(
        "span",
        {
          class: `chip technique${isMissing(technique) ? " missing" : isPending(technique) ? " waiting" : ""}`,
          role: "listitem",
          title: chipTitle(technique),
        },
        technique.chip,
        isMissing(technique) && [" ", h("span", { class: "mark" }, "not seen")],
      ),
    ),
  );
}

/** Findings, each with its source line and a fix. Null if there is none. */
export function findingsPanel({ findings, run_id: run }) {
  if (!findings?.length) return null;
  return h(
    "section",
    { class: "card findings", "aria-label": "Findings" },
    h(
      "header",
      {},
      h("h2", {}, findings.length === 1 ? "A finding" : `${findings.length} findings`),
      h("span", { class: "muted" }, "known pitfalls, and techniques that are declared but not observed"),
    ),
    h(
      "ul",
      {},
      findings.map((finding) =>
        h(
          "li",
          { "data-finding": finding.kind },
          h("p", {}, finding.text),
          h(
            "p",
            { class: "advice" },
            h("strong", {}, "Fix: "),
            finding.advice,
            PAGES[finding.kind] && [
              " ",
              h("a", { href: `/runs/${encodeURIComponent(run)}/${PAGES[finding.kind][0]}` }, PAGES[finding.kind][1]),
            ],
          ),
          h(
            "p",
            { class: "muted" },
            place(finding),
            finding.first_step > 0 && `since step ${count(finding.first_step)}`,
          ),
        ),
      ),
    ),
  );
}

function place({ file, line }) {
  if (!file) return null;
  const full = line ? `${file}:${line}` : file;
  const short = full.split("/").at(-1);
  return [h("code", { title: full }, short), " ", copyButton("Copy", () => full, { title: full }), " "];
}

/** Table of declared and observed techniques. */
export function techniquesPanel({ techniques, state, steps }) {
  return h(
    "section",
    { class: "card techniques", "aria-label": "Techniques" },
    h("header", {}, h("h2", {}, "Techniques")),
    techniques?.length
      ? h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { class: "plain" },
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ["Technique", "Declared", "Observed"].map((name) => h("th", { scope: "col" }, name)),
              ),
            ),
            h(
              "tbody",
              {},
              techniques.map((technique) =>
                h(
                  "tr",
                  { "data-technique": technique.kind },
                  h("th", { scope: "row" }, NAMES[technique.kind] ?? technique.kind.replaceAll("_", " ")),
                  h(
                    "td",
                    { "data-label": "declared" },
                    technique.declared === null
                      ? h("span", { class: "muted" }, "—", h("span", { class: "offscreen" }, "nowhere"))
                      : h("code", {}, technique.declared),
                  ),
                  h(
                    "td",
                    { class: isMissing(technique) ? "missing" : "", "data-label": "observed" },
                    isMissing(technique) ? "not seen" : (technique.observed ?? known("unknown")),
                  ),
                ),
              ),
            ),
          ),
        )
      : h("div", { class: "pad" }, h("p", { class: "muted" }, noTechniquesText(techniques, state, steps))),
  );
}

function noTechniquesText(techniques, state, steps) {
  if (techniques)
    return state === "running"
      ? "None declared, none observed yet. The agent observes from step 2 on."
      : "None declared. The run had no second step to observe.";
  if (!(steps > 1))
    return state === "running"
      ? "Not reported yet. The agent observes from step 2 on."
      : "Not reported. The run had no second step to observe.";
  return "Not reported. VRAMSCOPE_TECHNIQUES=0 turns their detection off.";
}
