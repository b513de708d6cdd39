/** Upload of snapshot files, one after the other, with progress. */

import { fill, h } from "vramscope/dom.js";
import { bytes, percent } from "vramscope/format.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { uploadInParts } from "vramscope/parts/upload_in_parts.js";
import { store } from "vramscope/store.js";

export class SnapshotUpload {
  waiting = [];
  problems = [];

  /** `onTaken(snapshot, isAlone)`: called when the server has the file; whether it was the only one. */
  constructor({ onTaken }) {
    this.onTaken = onTaken;
    this.input = h("input", {
      type: "file",
      class: "offscreen",
      multiple: true,
      "aria-label": "Snapshot files",
      onchange: () => this.add(this.input.files),
    });
    this.going = h("div", { class: "uploads" });
    this.zone = h(
      "label",
      { class: "drop-zone" },
      this.input,
      h("strong", {}, "Drop a snapshot here, or select a file"),
      h("span", { class: "muted" }, "from torch.cuda.memory._dump_snapshot(), plain or .gz, up to 16 GiB"),
    );
    this.project = null;
    this.projects = h("div");
    this.element = h("section", { class: "card pad", "aria-label": "Upload" }, this.projects, this.zone, this.going);
    this.drawProjects();
    this.stopSession = store.watch(() => this.drawProjects());
    // Handled for the whole document: a file dropped beside the zone would replace the page.
    this.dragging = (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      this.zone.classList.toggle("over", event.type !== "drop" && event.type !== "dragleave");
      if (event.type === "drop") this.add(event.dataTransfer.files);
    };
    for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, this.dragging);
  }

  close() {
    for (const name of ["dragover", "dragleave", "drop"]) document.removeEventListener(name, this.dragging);
    this.stopSession();
    this.request?.abort();
    this.waiting = [];
  }

  /** A token that is bound to several projects names the one that a file belongs to. */
  drawProjects() {
    const names = store.get().session?.projects ?? [];
    if (this.project || names.length < 2) return;
    this.project = h(
      "select",
      {},
      names.map((name) => h("option", { value: name }, name)),
    );
    fill(this.projects, h("label", { class: "choice" }, "Project of the file", this.project));
  }

  add(files) {
    this.isAlone = !this.request && files.length === 1;
    this.waiting.push(...files);
    this.input.value = "";
    if (!this.request) this.next();
    else this.draw();
  }

  async next() {
    while (this.waiting.length > 0) {
      this.file = this.waiting.shift();
      this.sent = 0;
      this.request = new AbortController();
      this.draw();
      try {
        const taken = await uploadInParts(this.file, {
          project: this.project?.value,
          signal: this.request.signal,
          onProgress: (sent) => {
            this.sent = sent;
            this.drawProgress();
          },
        });
        this.onTaken(taken, this.isAlone);
      } catch (error) {
        if (error.name !== "AbortError") this.problems.push({ name: this.file.name, error });
      }
    }
    this.request = null;
    this.file = null;
    this.draw();
  }

  draw() {
    const { file } = this;
    this.bar = file && h("progress", { max: String(Math.max(file.size, 1)), "aria-label": `Upload of ${file.name}` });
    this.words = file && h("span", { class: "muted tabular" });
    fill(
      this.going,
      file &&
        h(
          "div",
          { class: "job" },
          h("span", { class: "file-name" }, file.name),
          this.bar,
          this.words,
          h("button", { class: "button small quiet", type: "button", onclick: () => this.request?.abort() }, "Cancel"),
        ),
      this.waiting.length > 0 && h("p", { class: "muted" }, `then: ${this.waiting.map((one) => one.name).join(", ")}`),
      this.problems.map(({ name, error }) =>
        h("div", { class: "upload-problem" }, h("p", { class: "file-name" }, name), problemBanner(error)),
      ),
    );
    this.drawProgress();
  }

  drawProgress() {
    if (!this.file || !this.bar) return;
    this.bar.value = this.sent;
    this.words.textContent =
      this.sent >= this.file.size
        ? "checking…"
        : `${bytes(this.sent)} of ${bytes(this.file.size)} (${percent(this.sent / Math.max(this.file.size, 1), 0)})`;
  }
}
