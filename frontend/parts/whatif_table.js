/** Settings against each other: what each would have needed. */

import { h } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

/** `yours`: rows of the reader's own settings, `onTakeAway(conf)`: one of them goes; `onEvent(event)`: to the moment of an out-of-memory error. */
export function whatIfTable({ rows, recommendation }, { yours, told, device, onEvent, onTakeAway }) {
  const recorded = rows.find((row) => row.recorded);
  const ranked = [recorded, ...[...rows, ...yours].filter((row) => row !== recorded).sort(bySmallestCard)];
  const shared = sharedNotes(rows);
  const below = footnotes(ranked, shared);
  const least = Math.min(
    ...[...rows, ...yours]
      .filter((row) => row.is_bounded)
      .map((row) => row.smallest_card_bytes)
      .filter(isKnown),
  );
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
              onclick: () => onTakeAway(row.conf),
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
          known(bytes(row.smallest_card_bytes), { short: true }),
        ),
        giveOrTake(row),
      ),
      h("td", { class: "number peak" }, known(bytes(row.peak_reserved_bytes), { short: true }), uncapped(row)),
      h("td", { class: "number" }, row === recorded ? h("span", { class: "muted" }, "—") : saved(row.saved_bytes)),
      h("td", { class: "number retries" }, known(count(row.retries), { short: true })),
      h("td", { class: "number calls" }, known(count(row.device_allocs), { short: true })),
      h("td", { class: "fits" }, fits(row, onEvent)),
      h("td", { class: "risk" }, risk(row, below, shared)),
    );
  };
  const card = device ? bytes(device) : isKnown(told.device_total_bytes) ? bytes(told.device_total_bytes) : "its card";
  const head = [
    ["Setting", "conf"],
    [
      "Smallest device",
      "number smallest",
      "smallest device on which this recording runs with the setting; ranks the settings",
    ],
    ["Peak reserved", "number peak", "on the selected device; below, on a device that is never full"],
    ["Saved", "number", "smallest device compared with the recorded settings"],
    ["Retries", "number retries", "allocations that succeeded after the cache was emptied"],
    ["cudaMalloc", "number calls", "cudaMalloc calls; each pauses the training"],
    [`On ${card}`, "fits"],
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
    below.length > 0 &&
      h(
        "ol",
        { class: "risks" },
        below.map((told) =>
          h(
            "li",
            {},
            told.words,
            told.source && [
              " ",
              h("a", { href: told.source, target: "_blank", rel: "noreferrer", class: "nowrap" }, "Source"),
            ],
          ),
        ),
      ),
  ];
}

/** What is to be said of every setting but the recorded ones: it stands once below the table, and not in each row. */
export function sharedNotes(rows) {
  const others = rows.filter((row) => !row.recorded);
  return others.length < 2 ? [] : others[0].notes.filter((note) => others.every((row) => row.notes.includes(note)));
}

/** What survives on the smallest card first; of equals, what risks least. What is not known comes last. */
const bySmallestCard = (one, other) =>
  (one.smallest_card_bytes ?? Infinity) - (other.smallest_card_bytes ?? Infinity) || one.risk.level - other.risk.level;

const NOTICED = 1 / 256; // of a card

const LEVELS = ["none known", "small", "may be slower", "do not use it"];

/** By how much the smallest card may be another; the width to which it was searched is not worth a line. */
function giveOrTake({ smallest_card_bytes: card, uncertainty_bytes: away, is_bounded: isBounded }) {
  if (isKnown(card) && !isBounded)
    return h(
      "span",
      { class: "below give-or-take", title: "this recording gives no bounds, so the setting is not recommended" },
      "no bound",
    );
  return (
    isKnown(card) &&
    away > card * NOTICED &&
    h(
      "span",
      { class: "below give-or-take", title: "other plausible replays give devices smaller or larger by this much" },
      `± ${bytes(away)}`,
    )
  );
}

/** How sure the figures of a row are: a word, why on hover; the reasons stand in the notes, too. */
export function certainty({ certainty: word, reasons }) {
  const titles = {
    exact: "exact: no assumptions",
    band: "within the band",
    estimate: "depends on an assumption without bounds",
  };
  return h(
    "span",
    {
      class: `below certainty ${word}`,
      "data-certainty": word,
      title: reasons.length > 0 ? reasons.join(" ") : titles[word],
    },
    word,
  );
}

/** An estimate has no bounds: then its band is only what was tried. */
export const bandMeans = ({ certainty: word }) =>
  word === "estimate" ? "range of other replays; the value can lie outside" : "the exact value lies in this range";

/** The peak where the card is never full: it ranks settings wrongly, so it stands below. A band where it cannot be exact. */
function uncapped(row) {
  const { band, uncapped_peak_reserved_bytes: peak } = row;
  if (band && band[0] !== band[1])
    return h(
      "span",
      { class: "below", title: `on a device that is never full; ${bandMeans(row)}` },
      `${bytes(band[0])} – ${bytes(band[1])} with room`,
    );
  return peak !== row.peak_reserved_bytes && h("span", { class: "below" }, `${bytes(peak)} with room`);
}

/** Told in full once below the table, with a number in each row: the risks, and what is to be said of several settings, not of all. */
function footnotes(ranked, shared) {
  const risks = ranked.map((row) => row.risk).filter((told) => told.words);
  const notes = ranked
    .flatMap((row) => row.notes)
    .filter((note, at, all) => !shared.includes(note) && all.indexOf(note) !== all.lastIndexOf(note));
  return [...new Map([...risks, ...notes.map((words) => ({ words }))].map((told) => [told.words, told])).values()];
}

/** Less is good; what nobody would notice is neither. */
function saved(value) {
  if (!isKnown(value)) return known("unknown", { short: true });
  if (value === 0) return h("span", { class: "muted" }, "0");
  return h("span", { class: value > 0 ? "less" : "more" }, value > 0 ? bytes(value) : `${bytes(-value)} more`);
}

function fits(row, onEvent) {
  if (!row.out_of_memory) return h("span", {}, "gets through");
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
          `at event ${count(event + 1)}`,
        ),
      ]
    : words;
}

/** In a word, with the numbers under which it is told in full below. */
function risk({ risk: told, notes }, below, shared) {
  const number = (words) => below.findIndex((other) => other.words === words) + 1;
  const own = notes.filter((note) => !shared.includes(note));
  const mark = (words) => h("sup", { title: words }, ` ${number(words)}`);
  return [
    h(
      "span",
      { class: told.level >= 3 ? "more" : number(told.words) ? null : "muted", title: told.words || null },
      LEVELS[number(told.words) ? told.level : 0],
    ),
    [...(number(told.words) ? [told.words] : []), ...own.filter(number)].map(mark),
    own.filter((note) => !number(note)).map((note) => h("span", { class: "below" }, note)),
  ];
}
