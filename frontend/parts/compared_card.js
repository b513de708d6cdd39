/** A card of the comparison that asks the server about the compared runs, and shows itself where there is something to say. */

export class ComparedCard {
  /** `ask(parameters, signal)`: the promise of what is told of these runs; `hear(told)`: draw it, and true to be shown. */
  constructor(kind, fetchAnswer) {
    this.element = document.createElement("section");
    this.element.className = `card ${kind}`;
    this.element.hidden = true;
    this.fetchAnswer = fetchAnswer;
  }

  close() {
    this.request?.abort();
  }

  /** `rows`: of the comparison, the baseline first. Only the newest question is answered. */
  async show(rows) {
    const key = rows.map((row) => row.run).join();
    if (key === this.key) return;
    this.key = key;
    this.close();
    this.element.hidden = true;
    if (rows.length < 2) return;
    const request = (this.request = new AbortController());
    let answer;
    try {
      answer = await this.fetchAnswer({ runs: key, base: rows[0].run }, request.signal);
    } catch {
      return; // the table above tells what is wrong with the runs; without predictions it is whole
    }
    if (this.request === request) this.element.hidden = !this.setAnswer(answer);
  }
}
