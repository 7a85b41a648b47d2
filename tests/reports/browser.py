"""A real browser on a page of the report: what it shows, what it saves, and what it complains
about.
"""

import csv
import io
import shutil
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 300_000
"""Milliseconds until what has not happened never will: far more than a loaded machine takes."""


@contextmanager
def chromium():
    """The browser of this machine; a test without one fails."""
    found = shutil.which("chromium")
    assert found, "these tests need chromium on the path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGS, timeout=PATIENCE)
        yield browser
        browser.close()


class Shown:
    """One page in the browser, with everything it said and asked for since it was opened."""

    def __init__(self, browser, path, offline=False, ready=True, **options):
        options = {"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **options}
        self.context = browser.new_context(**options)
        self.context.set_offline(offline)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints, self.requests, self.dialogs = [], [], []
        self.page.on(
            "console", lambda message: self.complaints.append(f"{message.type}: {message.text}")
        )
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._refuse)
        self.page.goto(Path(path).as_uri())
        if ready:
            self.page.wait_for_selector("html[data-ready=yes]", state="attached")

    def _refuse(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def close(self):
        self.context.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def unfold(self):
        """Open everything that can be unfolded."""
        self.page.evaluate(
            "document.querySelectorAll('details').forEach(part => { part.open = true; })"
        )

    def settle(self):
        """Wait until every chart is drawn, pictures are loaded or refused, and two frames are
        painted.
        """
        self.page.wait_for_selector("[aria-busy=true]", state="detached")
        self.page.evaluate("""async () => {
              await new Promise((resolve) => { Object.assign(new Image(), { onerror: resolve, src: "data:image/png,no" }); });
              for (let i = 0; i < 2; i += 1) await new Promise((resolve) => { requestAnimationFrame(resolve); });
            }""")

    def resize(self, width, height):
        """Another size of the window; the page draws its charts anew when it has stayed so for a
        while.
        """
        self.page.evaluate("""() => { window.resized = new Promise((resolve) => {
              addEventListener("resize", () => { setTimeout(resolve, 1000); }, { once: true });
            }); }""")
        self.page.set_viewport_size({"width": width, "height": height})
        # timers of one page come in their order: the page's own is shorter
        self.page.evaluate("window.resized")
        self.settle()

    def saved(self, selector):
        """The bytes that a button saves."""
        with self.page.expect_download() as waiting:
            self.page.locator(selector).click()
        return Path(waiting.value.path()).read_bytes()

    def saved_at_once(self, selector):
        """Click every button within one turn of the page's script: the name and the bytes of each
        file, as they come.
        """
        found = []

        def taken(download):
            found.append(download)

        self.page.on("download", taken)
        buttons = self.page.eval_on_selector_all(
            selector, "all => { all.forEach(x => x.click()); return all.length; }"
        )
        while len(found) < buttons:
            self.page.wait_for_event("download")
        self.page.remove_listener("download", taken)
        return [(each.suggested_filename, Path(each.path()).read_bytes()) for each in found]

    def csv(self, selector):
        """What a CSV button saves: one dictionary of text a row."""
        return rows_of(self.saved(selector))

    def figure(self, key, kind="csv"):
        """What a figure saves: rows of its CSV, or the bytes of its picture."""
        selector = f'[data-figure="{key}"] [data-save="{kind}"]'
        return self.csv(selector) if kind == "csv" else self.saved(selector)

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def focused(self, what):
        """Something of the element that has the focus, such as `dataset.head`."""
        return self.page.evaluate(f"document.activeElement.{what}")


def rows_of(content):
    """The bytes of a CSV: one dictionary of text a row."""
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def column(rows, name, **wanted):
    """The numbers of one column of saved rows, of those rows that say `wanted`; None where a cell
    is empty.
    """
    chosen = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return [float(row[name]) if row[name] else None for row in chosen]
