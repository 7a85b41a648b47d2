"use strict";
// True and reconstructed patterns of real inputs, under a slider over the budget.
(() => {
  const { eigenlens: lens } = window;

  /** One pattern as probabilities: slot 0 is the true one, slot c + 1 that of candidate c. */
  const pattern = (record, input, place, slot) => {
    const [, places, slots, n] = record.patterns.shape;
    const all = lens.array(record.patterns);
    const at = ((input * places + place) * slots + slot) * n * n;
    return Array.from(all.subarray(at, at + n * n), (root) => (root / 255) ** 2);
  };

  const rowsOf = (record, choice, [first, stop]) => {
    const n = record.patterns.shape[3];
    const [real, made] = [pattern(record, choice.input, choice.place, 0), pattern(record, choice.input, choice.place, choice.candidate + 1)];
    const words = record.tokens[choice.input][choice.place];
    const rows = [];
    for (let query = first; query < stop; query += 1) {
      for (let key = first; key < stop; key += 1) {
        const at = query * n + key;
        const round = (value) => Number(value.toFixed(5));
        rows.push({
          query, key, "query token": `${query} ${words[query]}`, "key token": `${key} ${words[key]}`,
          true: round(real[at]), reconstructed: round(made[at]), difference: round(made[at] - real[at]),
        });
      }
    }
    return rows;
  };

  const said = (record, choice, mode) => {
    const head = record.places[choice.place];
    if (choice.candidate === null) return `${mode}: nothing is this cheap for ${head}.`;
    if (choice.candidate < 0) return `${head} with exact scores: all of the work, nothing lost.`;
    const [estimator, nominal] = record.candidates[choice.candidate];
    const at = nominal === null ? "" : ` at ${lens.percent(nominal)}`;
    const [work, variation] = [record.work[choice.place][choice.candidate], record.variation[choice.place][choice.candidate]];
    return `${head} by ${estimator}${at}: ${lens.percent(work)} of the work of exact scores, total variation ${lens.short(variation)} over held-out inputs.`;
  };

  lens.startPatterns = () => {
    for (const root of document.querySelectorAll("[data-patterns]")) {
      const record = lens.data.patterns[root.dataset.patterns];
      const control = (name) => root.querySelector(`[data-${name}]`);
      const show = () => {
        const [place, position, mode] = [Number(control("place").value), Number(control("slider").value), control("mode").value];
        const budget = record.budgets[position];
        const choice = { input: Number(control("input").value), place, candidate: record.chosen[mode][place][position] };
        control("budget").textContent = lens.percent(budget);
        control("slider").setAttribute("aria-valuetext", lens.percent(budget));
        control("said").textContent = said(record, choice, mode);
        const shown = choice.candidate === null ? [] : rowsOf(record, choice, control("window").value.split(",").map(Number));
        lens.show(record.figure, shown);
      };
      root.addEventListener("input", show);
      show();
    }
  };
})();
