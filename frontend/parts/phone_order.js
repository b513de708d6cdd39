/**
 * Order of a page with charts. On a phone the first chart follows the verdict, so that it is on the first screen. What it
 * overtakes moves, because the order for the Tab key and for screen readers is that of the elements. Charts stay where
 * they are: a chart that moves is drawn again.
 */

const PHONE = matchMedia("(max-width: 700px)");

/** Calls `move`. An element that moves loses the focus; it gets it back. */
function keepingFocus(move) {
  const focused = document.activeElement;
  move();
  if (focused !== document.activeElement) focused.focus({ preventScroll: true });
}

/** Keeps the elements `above` where they are on a wide screen. On a phone they follow `charts`, the last one first. */
export class ChartsFirst {
  /** `above`: elements that are already in their place, in or above the parent of `charts`. */
  constructor(charts, above) {
    Object.assign(this, { charts, above });
    this.places = above.map((element) => {
      const place = document.createComment("");
      element.before(place);
      return place;
    });
    PHONE.addEventListener("change", this.arrange);
    this.arrange();
  }

  close() {
    PHONE.removeEventListener("change", this.arrange);
  }

  arrange = () =>
    keepingFocus(() => {
      if (PHONE.matches) this.charts.after(...this.above.toReversed());
      else this.above.forEach((element, at) => this.places[at].after(element));
    });
}

/** Order of a run's page, whose first chart may be another one from one moment to the next. */
export class PhoneOrder {
  /** `charts`: RunCharts. `map`: the mini-map. `above`: elements that are above the charts on a wide screen, in order. */
  constructor(charts, map, above) {
    Object.assign(this, { charts, map, above });
    PHONE.addEventListener("change", this.arrange);
    this.arrange();
  }

  close() {
    PHONE.removeEventListener("change", this.arrange);
  }

  arrange = () => {
    const { first, shown, element } = this.charts;
    const lead = PHONE.matches && !element.hidden ? shown : null;
    if (lead === this.lead) return;
    this.lead = lead;
    keepingFocus(() => {
      if (lead) lead.after(this.map, ...this.above.toReversed());
      else {
        first.after(this.map);
        element.before(...this.above);
      }
    });
  };
}
