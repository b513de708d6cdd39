/** Runs of a comparison: a chip for each, and a search that adds more. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { peakText } from "vramscope/parts/peak_bound.js";
import { setQuery } from "vramscope/store.js";

const MOST_OFFERED = 20;
const TYPING_MS = 150;
const PHONE_PX = 720;
const [FEW, FEW_ON_A_PHONE] = [8, 3]; // more chips would push the comparison off the screen

const label = (row) => `${row.name} (${row.run_id.slice(0, 8)})`;

/**
 * Options:
 * colourOf   (position) => colour of the run at that position; 0 is the baseline
 * onRuns     (run ids) => void: called when the reader adds or removes a run
 */
export class RunPicker {
  runs = []; // ids, the baseline first
  all = false; // whether all chips are shown
  found = []; // rows of the runs list that match what was typed

  constructor({ colourOf, onRuns }) {
    this.colourOf = colourOf;
    this.onRuns = onRuns;
    this.chips = h("span", { class: "picker" });
    this.chips.style.margin = "0";
    this.options = h("datalist", { id: "runs-to-add" });
    this.search = h("input", {
      type: "search",
      "data-search": true,
      list: "runs-to-add",
      placeholder: "Add a run  ( / )",
      "aria-label": "Add a run",
      oninput: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.find(), TYPING_MS);
      },
      onkeydown: (event) => event.key === "Enter" && this.add(),
      onfocus: () => this.find(),
    });
    this.element = h("div", { class: "picker" }, this.chips, this.search, this.options);
  }

  close() {
    clearTimeout(this.typing);
  }

  /** Draws the chips. `rows` are those of the comparison. Until they arrive, a chip shows the id. */
  draw(rows, runs) {
    Object.assign(this, { rows, runs });
    const few = innerWidth <= PHONE_PX ? FEW_ON_A_PHONE : FEW;
    const shown = this.all ? runs : runs.slice(0, few);
    const rowOf = (run) => rows.find((row) => row.run === run || row.name === run);
    fill(
      this.chips,
      shown.map((run, position) => this.chip(run, rowOf(run)?.name ?? run, position)),
      runs.length > few &&
        h(
          "button",
          { class: "button small", type: "button", "aria-expanded": String(this.all), onclick: () => this.toggle() },
          this.all ? "Show fewer" : `Show all ${runs.length} runs`,
        ),
    );
  }

  toggle() {
    this.all = !this.all;
    this.draw(this.rows, this.runs);
    this.chips.lastElementChild.focus();
  }

  chip(run, name, position) {
    return h(
      "span",
      { class: "picked" },
      h("span", { class: "swatch marker", style: { "--swatch": this.colourOf(position) } }),
      h("a", { class: "legend-name", href: `/runs/${encodeURIComponent(run)}`, title: name }, name),
      position === 0
        ? h("span", { class: "chip baseline" }, "baseline")
        : h(
            "button",
            {
              type: "button",
              title: "make it the baseline of this comparison",
              onclick: () => setQuery({ base: run }),
            },
            "set baseline",
          ),
      h(
        "button",
        {
          type: "button",
          "aria-label": `remove ${name}`,
          onclick: () => this.onRuns(this.runs.filter((other) => other !== run)),
        },
        "✕",
      ),
    );
  }

  /** Offers the runs that match the text. Adds the run if the reader picked an offer. */
  async find() {
    const text = this.search.value.trim();
    const picked = this.found.find((row) => label(row) === text);
    if (picked) {
      this.addRow(picked);
      return;
    }
    try {
      const { runs } = await api.runs({ query: text, limit: MOST_OFFERED });
      this.found = runs.filter((row) => !this.runs.includes(row.run_id));
      fill(
        this.options,
        this.found.map((row) => h("option", { value: label(row) }, `${row.state}, ${peakText(row)}`)),
      );
    } catch {
      // nothing to offer
    }
  }

  add() {
    const text = this.search.value.trim();
    if (!text) return;
    const row = this.found.find((candidate) => label(candidate) === text) ?? this.found[0];
    this.search.value = "";
    if (row) this.addRow(row);
  }

  addRow(row) {
    this.search.value = "";
    this.onRuns([...this.runs, row.run_id]);
  }
}
