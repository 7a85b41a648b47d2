"use strict";
// True and reconstructed patterns of real inputs, under a slider over the budget.
(() => {
  const { eigenlens: lens } = window;

  const rowsOf = (record, choice, [first, stop]) => {
    const [, heads, n] = record.true.shape;
    const at = choice.input * heads + choice.head;
    const real = lens.array(record.true).subarray(at * n * n, (at + 1) * n * n);
    const apart = choice.candidate < 0 ? null : lens.scaled(record.differences, at * record.candidates.length + choice.candidate);
    const round = (value) => Number(value.toFixed(5));
    const words = record.tokens[choice.input][choice.head];
    const rows = [];
    for (let query = first; query < stop; query += 1) {
      for (let key = first; key < stop; key += 1) {
        const weight = real[query * n + key] / 65535;
        const difference = apart ? apart[query * n + key] : 0;
        rows.push({
          query, key, "query token": `${query} ${words[query]}`, "key token": `${key} ${words[key]}`,
          true: round(weight), reconstructed: round(weight + difference), difference: round(difference),
        });
      }
    }
    return rows;
  };

  const caption = (record, choice, mode) => {
    const head = record.heads[choice.head];
    if (choice.candidate === null) return `${head}, ${mode}: no estimate is this cheap.`;
    if (choice.candidate < 0) return `${head} with exact scores: all of the work, nothing lost.`;
    const [estimator, nominal] = record.candidates[choice.candidate];
    const at = nominal === null ? "" : ` at a budget of ${lens.percent(nominal)}`;
    const [work, variation] = [record.work[choice.head][choice.candidate], record.variation[choice.head][choice.candidate]];
    return `${head} with the estimator ${estimator}${at}: ${lens.percent(work)} of the work of exact scores; on held-out inputs its patterns move by ${lens.short(variation)} in total variation.`;
  };

  lens.startPatterns = () => {
    for (const root of document.querySelectorAll("[data-patterns]")) {
      const record = lens.data.patterns[root.dataset.patterns];
      const control = (name) => root.querySelector(`[data-${name}]`);
      const show = () => {
        const [head, position, mode] = [Number(control("head-choice").value), Number(control("slider").value), control("mode").value];
        const budget = record.budgets[position];
        control("slider").disabled = record.fixed.includes(mode);
        const choice = { input: Number(control("input").value), head, candidate: record.chosen[mode][head][position] };
        control("budget").textContent = lens.percent(budget);
        control("slider").setAttribute("aria-valuetext", lens.percent(budget));
        control("caption").textContent = caption(record, choice, mode);
        const shown = choice.candidate === null ? [] : rowsOf(record, choice, control("window").value.split(",").map(Number));
        lens.show(record.figure, shown, `input ${choice.input + 1}, ${record.heads[head]}, ${mode}, ${lens.percent(budget)}`);
      };
      root.addEventListener("input", show);
      show();
    }
  };
})();
