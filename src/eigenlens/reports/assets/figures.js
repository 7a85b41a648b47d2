"use strict";
// Charts: drawn in the page's colours and width when they come near the window, saved in light colours at their own size.
(() => {
  const { eigenlens: lens, vegaEmbed } = window;
  const drawn = new Map(); // key → { view, rows by name }

  /** A colour of the page as a plain value: canvases know nothing of light-dark(). */
  const resolved = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const config = (ink, line, narrow, behind = "transparent") => ({
    background: "transparent",
    font: "system-ui, sans-serif",
    axis: { labelColor: ink, titleColor: ink, domainColor: line, tickColor: line, gridColor: line, gridOpacity: 0.5, titleFontWeight: 500 },
    legend: {
      labelColor: ink, titleColor: ink, labelLimit: narrow ? 120 : 220,
      ...(narrow ? { orient: "bottom", columns: 2, layout: { bottom: { direction: "vertical", anchor: "start" } } } : {}),
    },
    header: { labelColor: ink, titleColor: ink },
    title: { color: ink, fontSize: 12 },
    view: { stroke: "transparent", fill: behind },
  });

  const legendWidth = (spec) => (/"(color|strokeDash)":\{"/.test(JSON.stringify(spec)) ? 140 : 0);

  /** A view made narrower or wider; maps never wider than they are, and heat maps keep their proportions. */
  const sized = (spec, room, most, square) => {
    if (typeof spec.width !== "number") return spec;
    const cells = JSON.stringify(spec).includes('"type":"rect"');
    const width = Math.max(120, Math.min(room, square || cells ? spec.width : most));
    const height = square ? Math.round((spec.height * width) / spec.width) : spec.height;
    return { ...spec, width, height };
  };

  /** The specification for a place of this width: fewer columns, or smaller views, rather than what nobody can see. */
  const fitted = (record, width) => {
    const { hconcat: parts, ...spec } = record.spec;
    const square = record.renderer === "canvas";
    const beside = width < 560 ? 0 : legendWidth(record.spec);
    if (parts) {
      const widest = Math.max(...parts.map((part) => (typeof part.width === "number" ? part.width : 380)), 0);
      const columns = Math.max(1, Math.min(parts.length, Math.floor((width - beside) / ((square ? Math.min(widest, 230) : widest) + 90))));
      const room = (width - beside) / columns - 90;
      return { ...spec, columns, concat: parts.map((part) => sized(part, room, 560, square)) };
    }
    if (spec.facet && spec.spec) {
      const inner = spec.spec.width;
      const [least, apart] = square ? [Math.min(inner, 125), 25] : [inner, 55];
      const columns = Math.max(1, Math.min(spec.columns ?? 3, Math.floor((width - beside) / (least + apart))));
      return { ...spec, columns, spec: sized(spec.spec, (width - beside) / columns - apart, square ? inner : 300, square) };
    }
    return sized(spec, width - beside - 90, 640, square);
  };

  const rowsOf = (key) => {
    const known = drawn.get(key);
    if (known.rows) return known.rows;
    known.rows = Object.fromEntries(Object.entries(lens.data.figures[key].data).map(([name, columns]) => [name, lens.rows(columns)]));
    return known.rows;
  };

  const embed = (element, spec, rows, renderer, colours) =>
    vegaEmbed(element, { ...spec, datasets: rows }, {
      mode: "vega-lite", actions: false, ast: true, renderer, config: colours, defaultStyle: false,
      tooltip: { disableDefaultStyle: true },
    });

  const place = (key) => document.querySelector(`.figure[data-figure="${key}"] .chart`);

  const drawNow = async (key) => {
    const [element, known, record] = [place(key), drawn.get(key), lens.data.figures[key]];
    const width = element?.clientWidth;
    if (!width) return; // not shown now
    const canvas = record.renderer === "canvas";
    const ink = canvas ? resolved("--canvas-ink") : "currentColor";
    const behind = canvas ? "#ffffff" : "transparent"; // what shines through between the cells of a heat map
    const colours = config(ink, canvas ? resolved("--line") : "var(--line)", width < 560, behind);
    let room = width;
    for (let tries = 0; tries < 3; tries += 1) {
      known.result?.finalize();
      known.result = await embed(inner(element), fitted(record, room), rowsOf(key), record.renderer, colours);
      const over = element.scrollWidth - element.clientWidth;
      if (over <= 1) break;
      room -= over; // labels and legends took more than was thought
    }
    known.look = lookOf(key);
  };

  /** The element a chart is drawn into; what is around it describes it to who cannot see it. */
  const inner = (element) => {
    if (!element.firstElementChild) {
      const made = document.createElement("div");
      made.setAttribute("aria-hidden", "true");
      element.append(made);
    }
    return element.firstElementChild;
  };

  /** What a drawing depends on besides its data: its width, and of a canvas the theme, which an SVG follows by itself. */
  const lookOf = (key) => `${place(key).clientWidth} ${lens.data.figures[key].renderer === "canvas" ? resolved("--canvas-ink") : ""}`;

  const renew = async (key) => {
    const known = drawn.get(key);
    const same = known.result && known.look === lookOf(key);
    await (same ? known.result.view.data(key, known.rows[key]).runAsync() : drawNow(key));
  };

  /** One thing at a time for each chart, always with its newest rows; what waits already need not wait twice. */
  const queue = (key, work) => {
    const known = drawn.get(key);
    if (known.waits === work) return known.turn;
    known.waits = work;
    place(key)?.setAttribute("aria-busy", "true");
    const turn = (known.turn ?? Promise.resolve()).then(() => {
      if (known.waits === work) known.waits = null;
      return work(key);
    }).finally(() => {
      if (known.turn === turn) place(key)?.removeAttribute("aria-busy");
    });
    known.turn = turn;
    return turn;
  };

  const draw = (key) => queue(key, drawNow);

  /** Give a chart of its own data other rows, and say what they are of; `saved` are the rows that are saved, if not these. */
  lens.show = (key, rows, about, saved = rows) => {
    Object.assign(drawn.get(key), { rows: { [key]: rows }, about, saved });
    return queue(key, renew);
  };

  const picture = async (key, kind) => {
    const record = lens.data.figures[key];
    const element = document.createElement("div");
    const colours = { ...config("#1c2329", "#d5dce0", false), background: "white" };
    const drawing = record.spec.hconcat ? record.spec : fitted(record, 760);
    const titles = [lens.data.models[key] ?? document.querySelector("h1").textContent, record.title, drawn.get(key).about].filter(Boolean);
    const spec = { ...drawing, title: { text: titles.join(" · "), anchor: "start" } };
    const result = await embed(element, spec, rowsOf(key), "canvas", colours); // no element for each of ten thousand cells
    const content = kind === "svg" ? await result.view.toSVG() : await result.view.toCanvas(2);
    const blob = kind === "svg"
      ? new Blob([content], { type: "image/svg+xml" })
      : await new Promise((resolve) => { content.toBlob(resolve, "image/png"); });
    result.finalize();
    return blob;
  };

  /** The rows of all views that draw the same columns; a line or a label beside them has columns of its own. */
  const mainRows = (key) => {
    const columns = (rows) => Object.keys(rows[0] ?? {}).join();
    const views = Object.values(rowsOf(key)).toSorted((a, b) => b.length - a.length);
    return views.filter((rows) => columns(rows) === columns(views[0])).flat();
  };

  const saveFigure = (key, kind) => {
    const { about, saved } = drawn.get(key);
    const name = lens.fileOf(key, kind, about);
    if (kind !== "csv") return lens.saveLater(name, picture(key, kind));
    return lens.save(name, lens.csv(saved ?? mainRows(key)), "text/csv");
  };

  lens.startFigures = () => {
    for (const key of Object.keys(lens.data.figures)) drawn.set(key, {});
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-save]");
      if (button) saveFigure(button.closest("[data-figure]").dataset.figure, button.dataset.save);
    });
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const { figure } = entry.target.dataset;
        if (entry.isIntersecting && !drawn.get(figure).result) draw(figure);
      }
    }, { rootMargin: "600px" });
    for (const element of document.querySelectorAll(".figure")) seen.observe(element);
    lens.redraw = () => {
      for (const [key, known] of drawn) if (known.result && known.look !== lookOf(key)) draw(key);
    };
    let waiting = 0;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(lens.redraw, 200);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", lens.redraw);
  };

  /** Draw everything that is not drawn yet, one after the other, while the reader reads: so that it is there to be printed. */
  lens.drawRest = async () => {
    for (const [key, known] of drawn) {
      if (!known.result && place(key)) await draw(key);
      await new Promise((resolve) => { setTimeout(resolve); });
    }
    document.documentElement.dataset.ready = "yes";
  };
})();
