/** Creates elements. Text becomes text nodes only, so markup in a run's name stays text. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an HTML element: `h("a", {class: "chip", href, onclick}, "text", child)`.
 * Attributes that are null, undefined or false are left out. True becomes an empty attribute. `style` is an object of
 * CSS properties, set through the CSSOM because the content-security policy forbids style attributes.
 */
export function h(tag, attributes = {}, ...children) {
  return configure(document.createElement(tag), attributes, children);
}

/** Creates an SVG element, like `h`. */
export function svg(tag, attributes = {}, ...children) {
  return configure(document.createElementNS(SVG, tag), attributes, children);
}

function configure(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "value" || name === "checked" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Appends strings, numbers, nodes and nested lists of them. Skips null, undefined and false. */
export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replaces the content of `element`. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Makes `elements` the children of `parent`, in this order. Moves only those that are out of place. */
export function arrangeChildren(parent, elements) {
  let at = parent.firstElementChild;
  for (const element of elements) {
    if (at !== element && at?.nextElementSibling === element) {
      at.remove(); // it is gone, or its place comes later
      at = element;
    }
    if (at === element) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

/** Sets the text if it differs. An unchanged text node costs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Copies text to the clipboard. Works without the Clipboard API too (plain HTTP from another machine). */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // refused: use execCommand below
    }
  }
  const area = h("textarea", { class: "offscreen", value: text, "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** A button that copies `text()` and shows whether that succeeded. */
export function copyButton(label, text, extra = {}) {
  const button = h("button", { class: "button small", type: "button", ...extra }, label);
  button.addEventListener("click", async () => {
    let done = false;
    try {
      done = await copyText(await text());
    } catch {
      // reported below
    }
    button.textContent = done ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = label), 1600);
  });
  return button;
}

/** Lets the browser save a file. */
export function download(name, content, type) {
  const url =
    content instanceof Blob || !String(content).startsWith("data:")
      ? URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }))
      : content;
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
