// The search runs in a Worker, which browsers refuse to a page that was opened by double click.
// There, a hidden frame runs the Worker's script instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data });
      this.frame = frame;
      this.loaded = new Promise((done) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => done(inside);
        script.onerror = (event) => this.onerror?.(event);
        inside.document.documentElement.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then((inside) => inside.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
