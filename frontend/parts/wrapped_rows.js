/** A wide table without scrolling sideways: where its columns do not fit, each row continues on further lines, as its head does. */

const CELL_PX = 112; // least width of a cell
const FIRST_PX = 190; // least width of the first cell, which is as high as the row

/** Wraps the rows of the first table in `place` whenever its columns do not fit. Returns a function that checks again. */
export function wrapRows(place) {
  let width = null;
  const check = () => {
    const table = place.querySelector("table");
    if (!table) return;
    width = place.clientWidth;
    table.classList.remove("wrapped");
    if (table.scrollWidth <= width) return;
    const cells = table.rows[0].cells.length - 1;
    const lines = Math.ceil(cells / Math.max(1, Math.floor((width - FIRST_PX) / CELL_PX)));
    table.style.setProperty("--lines", lines);
    table.style.setProperty("--cells", Math.ceil(cells / lines));
    table.classList.add("wrapped");
  };
  new ResizeObserver(() => place.clientWidth !== width && check()).observe(place); // as long as the page has the place
  return check;
}
