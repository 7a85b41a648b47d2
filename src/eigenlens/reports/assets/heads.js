"use strict";
// The map of heads, and the panel of the one that is open.
(() => {
  const { eigenlens: lens } = window;
  const ANALYSES = ["rows", "matrices"];
  const CENTRINGS = ["centred", "raw", "row_centred"];

  const [PALE, DEEP] = [[188, 228, 216], [32, 70, 110]]; // as in the chart that is saved

  /** The colour of a share, and the ink that can be read on it. */
  const painted = (share) => {
    const mixed = PALE.map((from, i) => from + share * (DEEP[i] - from));
    const [r, g, b] = mixed.map((part) => (part / 255) ** 2.2);
    return { background: `rgb(${mixed.map(Math.round).join(" ")})`, dark: 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.18 };
  };

  const cells = (record, metric) => {
    const values = record.numbers[metric] ?? [];
    const known = values.filter((value) => value !== null);
    const beyond = metric.includes("dimension") ? record.most[metric.split("_")[0]] : null;
    const [least, most] = [Math.min(...known), Math.max(...known, beyond !== null && known.length < values.length ? beyond : -Infinity)];
    return values.map((value, i) => {
      const shown = value ?? beyond;
      const share = shown === null || shown === undefined ? null : (shown - least) / (most - least || 1);
      return {
        layer: record.layers[i], order: i, head: record.numbers.head[i], value: shown, share, dark: share !== null && painted(share).dark,
        label: value === null ? (beyond === null ? "–" : `>${beyond}`) : lens.short(value),
      };
    });
  };

  const colourMap = (root, record, metric) => {
    const found = cells(record, metric);
    for (const button of root.querySelectorAll("[data-head]")) {
      const cell = found[button.dataset.head];
      if (!cell) continue;
      button.textContent = cell.label;
      button.style.background = cell.share === null ? "" : painted(cell.share).background;
      button.style.color = cell.share === null ? "" : cell.dark ? "#fff" : "#000";
      button.setAttribute("aria-label", `${record.names[button.dataset.head]}: ${record.metrics[metric]} ${cell.label}`);
    }
    const { stack, layer, head, [metric]: values } = record.numbers;
    const saved = values.map((value, i) => ({ stack: stack[i], layer: layer[i], head: head[i], [metric]: value }));
    lens.show(`${record.key}-map`, found, record.metrics[metric], saved);
  };

  /** The site of a head, counted over the sites in their order. */
  const siteOf = (record, index) => {
    const { stack, layer } = record.numbers;
    let site = 0;
    for (let i = 1; i <= index; i += 1) if (stack[i] !== stack[i - 1] || layer[i] !== layer[i - 1]) site += 1;
    return record.sites[site];
  };

  const spectrumRows = (site, head) => ANALYSES.flatMap((analysis) => {
    const known = site.spectra[analysis];
    if (!known) return [];
    const curve = Object.fromEntries(["held_out", "low", "high", "explained", "eigenvalues"].map((name) => [name, lens.array(known[name], head)]));
    const number = (value) => (Number.isNaN(value) ? null : Number(value.toPrecision(7)));
    return ["held out", "in the sample"].flatMap((variance) => known.components.map((components, k) => {
      const held = variance === "held out";
      return {
        analysis, components, variance, share: number(held ? curve.held_out[k] : curve.explained[k]),
        low: held ? number(curve.low[k]) : null, high: held ? number(curve.high[k]) : null, eigenvalue: number(curve.eigenvalues[k]),
      };
    }));
  });

  const vectorRows = (site, head) => Array.from({ length: site.vectors.each }, (_, i) =>
    lens.scaled(site.vectors, head * site.vectors.each + i).map((value, position) => ({ component: String(i + 1), position, value: Number(value.toPrecision(5)) }))).flat();

  const mapRows = (record, site, head) => Array.from({ length: site.maps.each }, (_, i) => {
    const values = lens.scaled(site.maps, head * site.maps.each + i);
    const across = site.maps.shape[2];
    const largest = Math.max(...values.map((value) => Math.abs(value ?? 0))) || 1;
    const title = `${record.maps[i]}, largest ${lens.short(largest)}`;
    return values.map((value, at) => ({
      map: title, order: i, query: Math.floor(at / across) * record.step, key: (at % across) * record.step,
      value: value === null ? null : Number(value.toPrecision(3)), relative: value === null ? null : Number((value / largest).toFixed(3)),
    })).filter((row) => row.value !== null);
  }).flat();

  const element = (name, text, attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const table = (names, lines) => {
    const made = document.createElement("table");
    const head = made.createTHead().insertRow();
    for (const name of names) head.append(element("th", name, { scope: "col" }));
    const body = made.createTBody();
    for (const [first, ...values] of lines) {
      const row = body.insertRow();
      row.append(element("th", first, { scope: "row" }), ...values.map((value) => element("td", lens.short(value, 4))));
    }
    return made;
  };

  /** Every number of a head: those of spectra as a table of analyses and centrings, the others one below the other. */
  const numberTables = (record, index) => {
    const columns = ANALYSES.flatMap((analysis) => CENTRINGS.map((centring) => `${analysis}_${centring}_`))
      .filter((prefix) => `${prefix}dimensions` in record.numbers);
    const spectral = new Map();
    const others = [];
    for (const [name, values] of Object.entries(record.numbers)) {
      const prefix = columns.find((start) => name.startsWith(start));
      if (!prefix) {
        others.push([name.replaceAll("_", " "), values[index]]);
        continue;
      }
      const measure = name.slice(prefix.length);
      if (!spectral.has(measure)) spectral.set(measure, new Map());
      spectral.get(measure).set(prefix, values[index]);
    }
    const lines = [...spectral].map(([measure, found]) => [measure.replaceAll("_", " "), ...columns.map((prefix) => found.get(prefix) ?? null)]);
    const tables = [table(["number", "value"], others)];
    if (lines.length) tables.push(table(["number of the spectrum", ...columns.map((prefix) => prefix.replaceAll("_", " ").trim())], lines));
    return tables;
  };

  const open = (root, record, index) => {
    for (const button of root.querySelectorAll("[data-head]")) button.setAttribute("aria-pressed", String(Number(button.dataset.head) === index));
    const [site, head] = [siteOf(record, index), record.numbers.head[index]];
    root.querySelector("[data-name]").textContent = record.names[index];
    root.querySelector("[data-sentence]").textContent = record.sentences[index];
    root.querySelector("[data-numbers] .scroll").replaceChildren(...numberTables(record, index));
    const parts = {
      spectrum: () => spectrumRows(site, head),
      vectors: () => (site.vectors ? vectorRows(site, head) : []),
      mean: () => (site.mean ? lens.scaled(site.mean, head).map((value, position) => ({ component: "all rows", position, value: Number(value.toPrecision(5)) })) : []),
      maps: () => (site.maps ? mapRows(record, site, head) : []),
    };
    for (const [part, rows] of Object.entries(parts)) {
      const key = `${record.key}-${part}`;
      if (key in lens.data.figures) lens.show(key, rows(), record.names[index]);
    }
  };

  /** Arrow keys, Home and End move along the map; Tab leaves it. */
  const move = (event) => {
    const cell = event.target.closest("[data-head]")?.closest("td");
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
    if (!cell || !(event.key in steps)) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    const rows = [...cell.closest("tbody").rows];
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    const row = rows[clamp(rows.indexOf(cell.parentElement) + down, rows.length - 1)];
    const buttons = [...row.querySelectorAll("[data-head]")];
    const next = buttons[clamp(cell.cellIndex - 1 + right, buttons.length - 1)];
    for (const button of cell.closest("table").querySelectorAll("[data-head]")) button.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };

  lens.startHeads = () => {
    for (const root of document.querySelectorAll("[data-heads]")) {
      const key = root.dataset.heads;
      const record = { ...lens.data.heads[key], numbers: lens.data.tables[`${key}-all`] };
      const chooser = root.querySelector("[data-metric]");
      if (chooser) {
        chooser.addEventListener("change", () => colourMap(root, record, chooser.value));
        colourMap(root, record, chooser.value);
      }
      root.addEventListener("keydown", move);
      root.addEventListener("click", (event) => {
        const button = event.target.closest("[data-head]");
        if (!button) return;
        for (const other of root.querySelectorAll("[data-head]")) other.tabIndex = -1;
        button.tabIndex = 0;
        open(root, record, Number(button.dataset.head));
        root.querySelector("[data-sentence]").scrollIntoView({ block: "nearest" });
      });
      open(root, record, 0);
    }
  };
})();
