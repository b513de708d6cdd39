/** Table of a recording's events, 200 per page. The search is in the URL. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { setQuery, store } from "vramscope/store.js";

const PAGE = 200;
const TYPED_MS = 250;
const ACTIONS = [
  "alloc",
  "free_requested",
  "free_completed",
  "segment_alloc",
  "segment_free",
  "segment_map",
  "segment_unmap",
  "snapshot",
  "oom",
];
const UNITS = { "": 1, b: 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };
/** Parameter of the URL -> label, placeholder, width in characters. */
const FIELDS = {
  q: ["Stack", "function, file:line, metadata", 22],
  least: ["Size from", "1 MiB", 8],
  most: ["to", "any", 8],
  since: ["Seconds from", "0", 7],
  until: ["to", "end", 7],
  address: ["Address", "0x7f…", 16],
};

/** Parses a size: "1.5 GiB" -> bytes. Null if empty, undefined if invalid. */
export function sizeOf(text) {
  if (!text?.trim()) return null;
  const parts = text
    .trim()
    .toLowerCase()
    .match(/^([\d.]+)\s*([kmg]?)(?:i?b)?$/);
  const value = parts ? Number(parts[1]) * UNITS[parts[2]] : NaN;
  return Number.isFinite(value) ? Math.round(value) : undefined;
}

const number = (text) => (text?.trim() ? (Number.isFinite(Number(text)) ? Number(text) : undefined) : null);

export class EventsTable {
  /** Parameters of the URL that belong to this view. */
  static VIEW = [...Object.keys(FIELDS), "action", "page"];

  /** `onEvent(event)` shows an event, `onAllocation(allocation, event)` an allocation. */
  constructor({ onEvent, onAllocation }) {
    Object.assign(this, { onEvent, onAllocation });
    const inputs = Object.entries(FIELDS).map(([name, [label, placeholder, size]]) => {
      const input = h("input", {
        type: "search",
        "data-search": true,
        name,
        placeholder,
        size: String(size),
        spellcheck: "false",
        autocomplete: "off",
        oninput: () => this.typed(name, input.value),
      });
      return h("label", {}, h("span", { class: "muted" }, label), input);
    });
    this.action = h(
      "select",
      {
        name: "action",
        "aria-label": "Action",
        onchange: () => setQuery({ action: this.action.value || null, page: null }),
      },
      h("option", { value: "" }, "all actions"),
      ACTIONS.map((word) => h("option", { value: word }, word)),
    );
    this.form = h(
      "form",
      { class: "view-bar events-search", onsubmit: (event) => event.preventDefault() },
      this.action,
      inputs,
    );
    this.window = h("div");
    this.words = h("span", { class: "muted tabular", role: "status", "aria-live": "polite" });
    this.pages = h("span", { class: "events-pages" });
    this.trouble = h("div");
    this.table = h("div", { class: "card scroll" });
    this.element = h(
      "div",
      { class: "events" },
      this.form,
      this.window,
      this.trouble,
      h("div", { class: "view-bar" }, this.words, h("span", { class: "spring" }), this.pages),
      this.table,
    );
  }

  /** Shows the events of a recording. Takes the answer of `/moments`. */
  open({ recording }) {
    this.recording = recording;
    this.shown = null;
    this.update();
  }

  close() {
    clearTimeout(this.typing);
    this.request?.abort();
  }

  /** Writes an edited field into the URL after a delay, together with other edits since then. */
  typed(name, text) {
    clearTimeout(this.typing);
    this.edits = { ...this.edits, [name]: text.trim() || null, page: null };
    this.typing = setTimeout(() => {
      const { edits } = this;
      this.edits = null;
      setQuery(edits);
    }, TYPED_MS);
  }

  /** Search parameters of the URL. */
  wanted() {
    const { query } = store.get();
    const integer = (name) => (/^\d{1,12}$/.test(query[name] ?? "") ? Number(query[name]) : null);
    return {
      text: query.q ?? null,
      action: ACTIONS.includes(query.action) ? query.action : null,
      least_bytes: sizeOf(query.least),
      most_bytes: sizeOf(query.most),
      from_seconds: number(query.since),
      to_seconds: number(query.until),
      address: query.address ?? null,
      from: integer("from"),
      to: integer("to"),
      offset: (integer("page") ?? 0) * PAGE,
    };
  }

  /** Called when the URL changes. */
  update() {
    const { query } = store.get();
    for (const input of this.form.querySelectorAll("input"))
      if (document.activeElement !== input) input.value = query[input.name] ?? "";
    this.action.value = ACTIONS.includes(query.action) ? query.action : "";
    const wanted = this.wanted();
    const key = JSON.stringify(wanted);
    if (key === this.shown) return;
    this.shown = key;
    this.load(wanted);
  }

  async load(wanted) {
    this.request?.abort();
    this.request = new AbortController();
    const { signal } = this.request;
    const invalid = Object.entries({
      least: wanted.least_bytes,
      most: wanted.most_bytes,
      since: wanted.from_seconds,
      until: wanted.to_seconds,
    }).filter(([, value]) => value === undefined);
    for (const input of this.form.querySelectorAll("input"))
      input.setAttribute("aria-invalid", String(invalid.some(([name]) => name === input.name)));
    if (invalid.length > 0) {
      fill(
        this.trouble,
        h(
          "div",
          { class: "banner bad", role: "alert" },
          h("span", {}, "Sizes: a number with a unit, such as 512, 20 MiB or 1.5 GiB. Seconds: a number."),
        ),
      );
      return;
    }
    try {
      const answer = await api.recording(this.recording, "events", { ...wanted, limit: PAGE }, signal);
      fill(this.trouble);
      this.draw(answer, wanted);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.trouble, problemBanner(error));
    }
  }

  draw(answer, wanted) {
    const { matching, offset, rows, events } = answer;
    const last = Math.max(0, Math.ceil(matching / PAGE) - 1);
    const page = offset / PAGE;
    const narrowed = wanted.from !== null || wanted.to !== null;
    fill(
      this.window,
      narrowed &&
        h(
          "p",
          { class: "muted" },
          `Within the timeline's window, events ${count(wanted.from ?? 0)} to ${count(wanted.to ?? events)}. `,
          h(
            "button",
            {
              class: "button small quiet",
              type: "button",
              onclick: () => setQuery({ from: null, to: null, page: null }),
            },
            "All events",
          ),
        ),
    );
    this.words.textContent =
      matching === 0
        ? "no matching event"
        : `${count(offset + 1)} – ${count(offset + rows.length)} of ${count(matching)}${matching < events ? ` that match, of ${count(events)}` : " events"}`;
    const to = (label, at, off) =>
      h(
        "button",
        { class: "button small", type: "button", disabled: off, onclick: () => setQuery({ page: at || null }) },
        label,
      );
    fill(
      this.pages,
      matching > PAGE && [
        to("First", 0, page <= 0),
        to("Previous", page - 1, page <= 0),
        to("Next", page + 1, page >= last),
        to("Last", last, page >= last),
      ],
    );
    const pools = new Map(answer.pools.map((one) => [one.pool, one.id]));
    fill(
      this.table,
      rows.length > 0 &&
        h(
          "table",
          { class: "plain events-table" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Event", "Time", "Action", "Size", "Address", "Stream", "Pool", "From"].map((head, at) =>
                h("th", { class: [0, 1, 3].includes(at) ? "number" : null, scope: "col" }, head),
              ),
            ),
          ),
          h(
            "tbody",
            {},
            rows.map((row) => this.row(row, pools, answer.frees_told)),
          ),
        ),
    );
  }

  /** `hasFreeStacks`: whether stacks of frees were recorded. Otherwise PyTorch repeats the stack of the allocation. */
  row(row, pools, hasFreeStacks) {
    const pool = row.pool === null ? "—" : row.pool === 0 ? "default" : `private ${pools.get(row.pool)?.join(",")}`;
    const pick = () =>
      row.allocation !== null ? this.onAllocation(row.allocation, row.event) : this.onEvent(row.event);
    const title = row.allocation !== null ? "show this allocation in the timeline" : "show this event in the timeline";
    return h(
      "tr",
      { "data-action": row.action },
      h(
        "td",
        { class: "number tabular" },
        h("button", { class: "link", type: "button", title, onclick: pick }, count(row.event)),
      ),
      h("td", { class: "number tabular" }, isKnown(row.seconds) ? `${row.seconds.toFixed(6)} s` : "—"),
      h("td", {}, h("span", { class: `chip action-${row.action}` }, row.action)),
      h("td", { class: "number tabular", title: `${count(row.size_bytes)} B` }, bytes(row.size_bytes)),
      h(
        "td",
        { class: "tabular" },
        row.action === "oom"
          ? isKnown(row.address)
            ? `${bytes(row.address)} free`
            : "free bytes unknown"
          : h("code", {}, `0x${BigInt(row.address).toString(16)}`),
      ),
      h("td", { class: "tabular" }, row.stream === 0 ? "default" : h("code", {}, String(row.stream))),
      h("td", { class: "tabular" }, pool),
      h(
        "td",
        { class: "from" },
        [row.user_metadata, row.compile_context].map(
          (words) => words && h("span", { class: "chip", title: words }, words),
        ),
        stack(row.stack, !hasFreeStacks && row.action.startsWith("free_") ? "allocated by " : ""),
      ),
    );
  }
}

/** Shows the innermost frame outside of libraries. The others unfold. `what`: words before the frame. */
function stack(frames, what) {
  if (frames.length === 0) return h("span", { class: "muted" }, "no stack");
  const words = ({ file, line, function: name }) => `${file.split("/").at(-1)}:${line} ${name}`;
  const own = frames.find(({ library }) => !library) ?? frames[0];
  const summary = [what && h("span", { class: "muted" }, what), words(own)];
  if (frames.length === 1) return h("span", { title: own.file }, summary);
  return h(
    "details",
    {},
    h("summary", {}, summary),
    h(
      "ol",
      { class: "stack" },
      frames.map((frame) => h("li", { title: frame.file, class: frame === own ? "own" : null }, words(frame))),
    ),
  );
}
