/** Reports parameters of the URL that a page does not know, in one line. */

import { fill, h } from "vramscope/dom.js";
import { setQuery, store } from "vramscope/store.js";

const SHOWN = 5;
const LONG = 40;

export const isNumber = (text) => text.trim() !== "" && Number.isFinite(Number(text));
export const oneOf = (...words) => Object.assign((text) => words.includes(text), { words });
export const anything = () => true;

/** Parameters of every page: hidden series, and paused drawing. */
const EVERYWHERE = { hide: anything, paused: oneOf("1") };

/** True if `from` is not before `to`. */
const backwards = ({ from, to }) => isNumber(from ?? "") && isNumber(to ?? "") && Number(to) <= Number(from);

/**
 * Parameters of a query that `rules` (key -> function that validates a text) does not have or refuses: `[[key,
 * words]]`. `words` is null where another entry says it.
 */
export function oddities(query, rules) {
  const known = { ...EVERYWHERE, ...rules };
  const found = Object.entries(query).flatMap(([key, text]) => {
    const rule = Object.hasOwn(known, key) ? known[key] : null;
    if (rule === null) return [[key, `${short(key)} is not a parameter of this page`]];
    if (text === "" || rule(text)) return [];
    return [
      [
        key,
        `${key}=${short(text)} ${rule.words ? `is none of ${rule.words.join(", ")}` : rule === isNumber ? "is not a number" : "is not known"}`,
      ],
    ];
  });
  return "from" in rules && backwards(query)
    ? [...found, ["from", `from=${query.from} is not before to=${query.to}`], ["to", null]]
    : found;
}

const short = (text) => (text.length > LONG ? `${text.slice(0, LONG - 1)}…` : text);

/** Creates the line that reports unknown parameters. It follows the URL until `stop()` is called. */
export function addressNote(rules) {
  const element = h("div", { class: "address-note", role: "status" });
  let before = null;
  const draw = ({ query }) => {
    if (query === before) return;
    before = query;
    const odd = oddities(query, rules);
    const words = odd.map(([, text]) => text).filter(Boolean);
    const away = () => setQuery(Object.fromEntries(odd.map(([key]) => [key, null])));
    fill(
      element,
      words.length > 0 &&
        h(
          "p",
          { class: "muted" },
          "Ignored in this page’s address: ",
          words.slice(0, SHOWN).join("; "),
          words.length > SHOWN && `; and ${words.length - SHOWN} more`,
          ". ",
          h("button", { class: "button small quiet", type: "button", onclick: away }, "Remove"),
        ),
    );
  };
  draw(store.get());
  const path = store.get().path;
  const stop = store.watch((state) => state.path === path && draw(state));
  return { element, stop };
}
