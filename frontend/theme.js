/** Light and dark theme, palette of figures, and chart colours from the style sheets. */

const KEY = "vramscope-theme";
const PALETTE = "vramscope-palette";
export const PALETTES = ["brightness"]; // in addition to the default of tokens.css; each is a block of palettes.css
const listeners = new Set();
let cache = null;

/** Current theme, "light" or "dark": the reader's choice, else the system's. */
export function theme() {
  return (
    document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")
  );
}

/** Sets the theme: "light", "dark", or null for the system's. */
export function setTheme(name) {
  if (name) {
    document.documentElement.dataset.theme = name;
    localStorage.setItem(KEY, name);
  } else {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem(KEY);
  }
  changed();
}

/** Sets the palette of figures: one of PALETTES, or null for the default. */
export function setPalette(name) {
  if (name) localStorage.setItem(PALETTE, name);
  else localStorage.removeItem(PALETTE);
  applyPalette(name);
  changed();
}

export const chosenPalette = () => document.documentElement.dataset.palette ?? null;

function applyPalette(name) {
  if (PALETTES.includes(name)) document.documentElement.dataset.palette = name;
  else delete document.documentElement.dataset.palette;
}

export const chosenTheme = () => document.documentElement.dataset.theme ?? null;

export function toggleTheme() {
  setTheme(theme() === "dark" ? "light" : "dark");
}

export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function start() {
  const stored = localStorage.getItem(KEY);
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
  applyPalette(localStorage.getItem(PALETTE));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  addEventListener("storage", (event) => {
    if (event.key === PALETTE) applyPalette(event.newValue);
    else if (event.key !== KEY) return;
    else if (event.newValue) document.documentElement.dataset.theme = event.newValue;
    else delete document.documentElement.dataset.theme;
    changed();
  });
}

function changed() {
  cache = null;
  for (const listener of listeners) listener(theme());
}

/** Colours of the style sheet for charts. `role(name)` returns the colour of a series. */
export function themeColors() {
  if (cache) return cache;
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const roles = new Map();
  cache = {
    text: read("--text"),
    muted: read("--muted"),
    line: read("--line"),
    grid: read("--grid"),
    surface: read("--surface"),
    font: read("--font"),
    role(name) {
      if (!roles.has(name)) roles.set(name, read(`--role-${name}`) || read("--role-other"));
      return roles.get(name);
    },
  };
  return cache;
}

/** Colour "#rrggbb" with an opacity. */
export function rgba(hex, alpha) {
  const number = parseInt(hex.slice(1), 16);
  return `rgba(${(number >> 16) & 255},${(number >> 8) & 255},${number & 255},${alpha})`;
}
