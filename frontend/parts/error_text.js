/** Explains the text of an out-of-memory error of a training that no agent watched: a field, and the answer below it. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { countOf } from "vramscope/format.js";
import { CAUSES } from "vramscope/parts/oom_verdict.js";
import { problemBanner, sized, snippet, withCode } from "vramscope/parts/ui.js";

/** Command that explains an error without a run and without a server. */
const EXPLAIN_LOG = "vramscope oom --message log.txt";
/** The error is near the end of a log. */
const MOST_CHARACTERS = 200_000;
const SETTING = /^[A-Z_]+=\S+$/;

/** `heading`: its heading, or null where the page has one. `text`: an error that is explained at once. */
export function errorText({ heading = h("h2", {}, "Explain the text of an error"), text: known = "" } = {}) {
  const result = h("div", { class: "error-text-result", role: "status" });
  const field = h("textarea", {
    class: "note-field",
    rows: 4,
    value: known,
    spellcheck: false,
    placeholder: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate …",
    "aria-label": "Text of an out-of-memory error",
    onpaste: () => setTimeout(explain),
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) explain();
    },
  });
  const button = h("button", { class: "button", type: "button", title: "Ctrl+Enter", onclick: () => explain() }, "Explain");
  let asked = null;

  async function explain() {
    const text = field.value.trim().slice(-MOST_CHARACTERS);
    asked?.abort();
    if (!text) {
      fill(result);
      field.focus();
      return;
    }
    asked = new AbortController();
    try {
      fill(result, explanation(await api.explainText(text, asked.signal)));
    } catch (problem) {
      if (problem.name !== "AbortError") fill(result, problemBanner(problem));
    }
  }

  if (known) explain();
  return h(
    "div",
    { class: "error-text", "data-error-text": true },
    heading,
    field,
    h(
      "p",
      { class: "actions" },
      button,
      h("span", { class: "muted" }, "The error, or the end of a log. It is not stored. In a terminal: "),
      h("code", {}, EXPLAIN_LOG),
    ),
    result,
  );
}

function explanation({ cause, sentence, first_aid: firstAid, certain, errors, numbers, kind, wording }) {
  if (sentence === null)
    return h(
      "div",
      { class: "banner warn", "data-cause": "none" },
      h("strong", {}, "No known out-of-memory error."),
      h("span", {}, "Paste the whole message, from the name of the error to its last line."),
    );
  return [
    h(
      "div",
      { class: "banner verdict bad", "data-cause": cause ?? "unknown" },
      h("strong", {}, `${CAUSES[cause] ?? "Out of memory"}.`),
      " ",
      h("span", {}, sentence),
    ),
    firstAid && h("h3", {}, "Try first"),
    firstAid && (SETTING.test(firstAid) ? snippet(firstAid) : h("p", {}, withCode(firstAid))),
    h(
      "dl",
      { class: "facts" },
      numbers.map(({ name, bytes }) => [h("dt", {}, name), h("dd", {}, sized(bytes))]),
    ),
    h(
      "p",
      { class: "muted" },
      [
        kind && `${kind[0].toUpperCase()}${kind.slice(1)}.`,
        wording && `Format of PyTorch ${wording}.`,
        errors > 1 && `The text has ${countOf(errors, "error")}; this is the last of those that say most.`,
        !certain && "Other errors use the same text: it may not be memory.",
      ]
        .filter(Boolean)
        .join(" "),
    ),
  ];
}
