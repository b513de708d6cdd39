/** Base of cards that request data about the compared runs and hide themselves if there is none. */

export class ComparedCard {
  /**
   * `fetchAnswer(parameters, signal)`: promise of the answer for the runs. Subclasses define `setAnswer(answer)`, which
   * draws it and returns whether to show the card.
   */
  constructor(kind, fetchAnswer) {
    this.element = document.createElement("section");
    this.element.className = `card ${kind}`;
    this.element.hidden = true;
    this.fetchAnswer = fetchAnswer;
  }

  close() {
    this.request?.abort();
  }

  /** `rows`: rows of the comparison, the baseline first. A later request cancels this one. */
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
      return; // the table above reports problems with the runs
    }
    if (this.request === request) this.element.hidden = !this.setAnswer(answer);
  }
}
