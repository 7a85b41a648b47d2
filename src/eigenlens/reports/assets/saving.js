"use strict";
// Files that the page saves: as many at once as a browser takes, the others one after the other.
(() => {
  const { eigenlens: lens } = window;
  const [MOST, SPAN] = [10, 1100]; // Chromium takes ten files of a page, and no other until a second after the first of them
  const KEPT = 60000; // ms that a file stays readable: a browser on a busy machine begins late
  const waiting = []; // { name, blob }
  const sent = []; // when the last MOST files went out
  let drawing = 0; // pictures on their way
  let timer = 0;

  const hand = ({ name, blob }) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), KEPT);
  };

  const tell = () => {
    const left = waiting.length + drawing;
    document.getElementById("saving").textContent = left ? `Saving… ${left} ${left === 1 ? "file" : "files"} to go` : "";
  };

  /** A time is taken behind one file and before another: the browser, which counts as it gets them, has waited longer still. */
  const send = () => {
    timer = 0;
    while (waiting.length) {
      const rest = sent.length < MOST ? 0 : sent[0] + SPAN - performance.now();
      if (rest > 0) {
        timer = setTimeout(send, rest);
        break;
      }
      hand(waiting.shift());
      sent.push(performance.now());
      if (sent.length > MOST) sent.shift();
    }
    tell();
  };

  /** The name of a file: the model where the page has several, what it is, and what it is of. */
  lens.fileOf = (key, kind, about) => {
    const words = [lens.data.models[key], key, about].filter(Boolean).join(" ");
    return `${words.replaceAll(/[^\p{L}\p{N}._]+/gu, "-")}.${kind}`;
  };

  lens.save = (name, content, type) => {
    waiting.push({ name, blob: content instanceof Blob ? content : new Blob([content], { type }) });
    if (!timer) send();
    else tell();
  };

  /** Save what is still being made: `content` is a promise of a blob. */
  lens.saveLater = async (name, content) => {
    drawing += 1;
    tell();
    try {
      lens.save(name, await content);
    } finally {
      drawing -= 1;
      tell();
    }
  };

  lens.startSaving = () => {
    window.addEventListener("beforeunload", (event) => {
      if (waiting.length + drawing) event.preventDefault(); // who leaves now would lose files
    });
  };
})();
