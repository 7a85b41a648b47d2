"use strict";
// The page's data: one JSON text and one block of arrays, both compressed inside the page itself.
(() => {
  const lens = (window.eigenlens = {});
  document.documentElement.dataset.script = "yes"; // what would do nothing without a script is hidden until here
  const TYPES = { float32: Float32Array, int16: Int16Array, int8: Int8Array, uint16: Uint16Array, uint8: Uint8Array };

  const inflated = (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (char) => char.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  };

  lens.load = async () => {
    lens.data = await inflated("data").json();
    lens.block = await inflated("arrays").arrayBuffer();
  };

  /** The numbers of an array; row `index` of its first dimension alone where one is given. */
  lens.array = (place, index) => {
    const count = (shape) => shape.reduce((all, size) => all * size, 1);
    const kind = TYPES[place.type];
    if (index === undefined) return new kind(lens.block, place.at, count(place.shape));
    const each = count(place.shape.slice(1));
    return new kind(lens.block, place.at + index * each * kind.BYTES_PER_ELEMENT, each);
  };

  /** Row `index` of a scaled array as numbers; null where there is none. */
  lens.scaled = (place, index) => {
    const scale = lens.array(place.scale)[index];
    const none = place.type === "int8" ? -128 : -32768;
    return Array.from(lens.array(place, index), (whole) => (whole === none ? null : whole * scale));
  };

  /** Columns as rows. */
  lens.rows = (columns) => {
    const names = Object.keys(columns);
    const length = names.length ? columns[names[0]].length : 0;
    return Array.from({ length }, (_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  };

  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  lens.csv = (rows) => {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
  };

  lens.short = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number" || Number.isInteger(value)) return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
  };

  lens.percent = (value) => (value === null ? "–" : `${Number((100 * value).toPrecision(3))} %`);
})();
