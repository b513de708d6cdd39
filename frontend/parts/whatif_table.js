/** Table of allocator settings: what each would have needed. */

import { h } from "vramscope/dom.js";
import { bytes, count, exactBytes, isKnown } from "vramscope/format.js";
import { known, sized } from "vramscope/parts/ui.js";

/**
 * Table of the settings. `yours`: rows of the reader's own settings. `moments`: answer of `/moments`.
 * `onRemove(conf)` removes one of the reader's settings. `onEvent(event)` shows the event of an out-of-memory error.
 */
export function whatIfTable({ rows, recommendation }, { yours, moments, device, onEvent, onRemove }) {
  const recorded = rows.find((row) => row.recorded);
  const ranked = [recorded, ...[...rows, ...yours].filter((row) => row !== recorded).sort(bySmallestCard)];
  const shared = sharedNotes(rows);
  const noteList = footnotes(ranked, shared);
  const least = Math.min(
    ...[...rows, ...yours]
      .filter((row) => row.is_bounded)
      .map((row) => row.smallest_card_bytes)
      .filter(isKnown),
  );
  const card = device ?? moments.device_total_bytes; // unknown of a snapshot file
  const line = (row) => {
    const mine = yours.includes(row);
    const mark =
      row === recorded
        ? "as recorded"
        : recommendation?.conf && row.conf === recommendation.conf
          ? "recommended"
          : mine
            ? "yours"
            : null;
    return h(
      "tr",
      {
        class: [mark === "recommended" && "selected", row === recorded && "recorded"].filter(Boolean).join(" ") || null,
        "data-conf": row.conf,
      },
      h(
        "th",
        { scope: "row", class: "conf" },
        h("code", {}, row.conf || "default settings"),
        mark && [" ", h("span", { class: mark === "recommended" ? "chip good" : "chip" }, mark)],
        mine && [
          " ",
          h(
            "button",
            {
              class: "button quiet small",
              type: "button",
              "aria-label": `remove ${row.conf || "default settings"}`,
              title: "remove",
              onclick: () => onRemove(row.conf),
            },
            "✕",
          ),
        ],
        certainty(row),
      ),
      h(
        "td",
        { class: "number smallest" },
        h(
          "span",
          { class: row.is_bounded && row.smallest_card_bytes === least ? "best" : null },
          sized(row.smallest_card_bytes, { short: true }),
        ),
        uncertainty(row),
      ),
      h("td", { class: "number peak" }, sized(row.peak_reserved_bytes, { short: true }), uncappedPeak(row)),
      h("td", { class: "number saved" }, row === recorded ? h("span", { class: "muted" }, "—") : saved(row.saved_bytes)),
      h("td", { class: "number retries" }, known(count(row.retries), { short: true })),
      h("td", { class: "number calls" }, known(count(row.device_allocs), { short: true })),
      isKnown(card) && h("td", { class: "fits" }, fits(row, onEvent)),
      h("td", { class: "risk" }, riskCell(row, noteList, shared)),
    );
  };
  const head = [
    ["Setting", "conf"],
    [
      "Smallest device",
      "number smallest",
      "smallest device on which this recording runs with the setting; ranks the settings",
    ],
    ["Peak reserved", "number peak", "on the selected device; below, on a device that is never full"],
    ["Saved", "number saved", "smallest device compared with the recorded settings"],
    ["Retries", "number retries", "allocations that succeeded after the cache was emptied"],
    ["cudaMalloc", "number calls", "cudaMalloc calls; each pauses the training"],
    ...(isKnown(card) ? [[`On ${bytes(card)}`, "fits"]] : []),
    ["Risk", "risk"],
  ];
  return [
    h(
      "div",
      { class: "scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain whatif-table" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            head.map(([label, kind, title]) => h("th", { scope: "col", class: kind, title: title ?? null }, label)),
          ),
        ),
        h("tbody", {}, ranked.map(line)),
      ),
    ),
    certaintiesOf(ranked),
    noteList.length > 0 &&
      h(
        "ol",
        { class: "risks" },
        noteList.map((footnote) =>
          h(
            "li",
            {},
            footnote.words,
            footnote.source && [
              " ",
              h("a", { href: footnote.source, target: "_blank", rel: "noreferrer", class: "nowrap" }, "Source"),
            ],
          ),
        ),
      ),
  ];
}

/** Notes of every setting except the recorded ones. They appear once below the table instead of in each row. */
export function sharedNotes(rows) {
  const others = rows.filter((row) => !row.recorded);
  return others.length < 2 ? [] : others[0].notes.filter((note) => others.every((row) => row.notes.includes(note)));
}

/** Smallest card first, then lowest risk. Unknown cards come last. */
const bySmallestCard = (one, other) =>
  (one.smallest_card_bytes ?? Infinity) - (other.smallest_card_bytes ?? Infinity) || one.risk.level - other.risk.level;

const NOTICED = 1 / 256; // share of a card: smaller uncertainties are not shown

const LEVELS = ["none known", "small", "may be slower", "do not use it"];

/** Uncertainty of the smallest card. Null or false below the resolution of the search. */
function uncertainty({ smallest_card_bytes: card, uncertainty_bytes: margin, is_bounded: isBounded }) {
  if (isKnown(card) && !isBounded)
    return h(
      "span",
      { class: "below give-or-take", title: "this recording gives no bounds, so the setting is not recommended" },
      "no bound",
    );
  return (
    isKnown(card) &&
    margin > card * NOTICED &&
    h(
      "span",
      { class: "below give-or-take", title: "other plausible replays give devices smaller or larger by this much" },
      `± ${bytes(margin)}`,
    )
  );
}

const CERTAINTIES = {
  exact: "nothing was assumed",
  band: "something is open; the true value lies between the two numbers",
  estimate: "something was assumed that has no bounds; the notes below say what",
};

/** Meanings of the certainties that the rows have, in one line. */
function certaintiesOf(rows) {
  const used = Object.keys(CERTAINTIES).filter((word) => rows.some((row) => row.certainty === word));
  return h(
    "p",
    { class: "certainties muted" },
    used.map((word) => [h("strong", {}, word), `: ${CERTAINTIES[word]}. `]),
  );
}

/** Certainty of a row's values: one word, with the reasons on hover. The notes list the reasons too. */
export function certainty({ certainty: word, reasons }) {
  return h(
    "span",
    {
      class: `below certainty ${word}`,
      "data-certainty": word,
      title: reasons.length > 0 ? reasons.join(" ") : `${word}: ${CERTAINTIES[word]}`,
    },
    word,
  );
}

/** Meaning of a row's band. An estimate has no bounds, so its band covers the tried replays only. */
export const bandMeans = ({ certainty: word }) =>
  word === "estimate" ? "range of other replays; the value can lie outside" : "the exact value lies in this range";

/** Peak reserved on a card that is never full, or its band. It ranks settings wrongly and is therefore secondary. */
function uncappedPeak(row) {
  const { band, uncapped_peak_reserved_bytes: peak } = row;
  if (band && band[0] !== band[1])
    return h(
      "span",
      { class: "below", title: `on a device that is never full; ${bandMeans(row)}` },
      `${bytes(band[0])} – ${bytes(band[1])} if never full`,
    );
  return peak !== row.peak_reserved_bytes && h("span", { class: "below" }, `${bytes(peak)} if never full`);
}

/** Numbered footnotes of the table: risks, and notes of several but not all settings. */
function footnotes(ranked, shared) {
  const risks = ranked.map((row) => row.risk).filter(({ words }) => words);
  const notes = ranked
    .flatMap((row) => row.notes)
    .filter((note, at, every) => !shared.includes(note) && every.indexOf(note) !== every.lastIndexOf(note));
  const all = [...risks, ...notes.map((words) => ({ words }))];
  return [...new Map(all.map((footnote) => [footnote.words, footnote])).values()];
}

/** Saved bytes, coloured by whether less or more is needed. */
function saved(value) {
  if (!isKnown(value)) return known("unknown", { short: true });
  if (value === 0) return h("span", { class: "muted" }, "0");
  return h(
    "span",
    { class: value > 0 ? "less" : "more", title: exactBytes(Math.abs(value)) },
    value > 0 ? bytes(value) : `${bytes(-value)} more`,
  );
}

function fits(row, onEvent) {
  if (!row.out_of_memory) return h("span", {}, "fits");
  const event = row.out_of_memory_at_event;
  const words = h("span", { class: "more" }, "out of memory");
  return isKnown(event) && event >= 0
    ? [
        words,
        " ",
        h(
          "button",
          {
            class: "button quiet small",
            type: "button",
            onclick: () => onEvent(event),
            title: "show this event of the recording",
          },
          `at event ${count(event)}`,
        ),
      ]
    : words;
}

/** Risk in one word, with the numbers of its footnotes. */
function riskCell({ risk, notes }, noteList, shared) {
  const number = (words) => noteList.findIndex((other) => other.words === words) + 1;
  const own = notes.filter((note) => !shared.includes(note));
  const mark = (words) => h("sup", { title: words }, ` ${number(words)}`);
  return [
    h(
      "span",
      { class: risk.level >= 3 ? "more" : number(risk.words) ? null : "muted", title: risk.words || null },
      LEVELS[number(risk.words) ? risk.level : 0],
    ),
    [...(number(risk.words) ? [risk.words] : []), ...own.filter(number)].map(mark),
    own.filter((note) => !number(note)).map((note) => h("span", { class: "below" }, note)),
  ];
}
