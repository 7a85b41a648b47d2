"""The pictures of the report in the README: `python docs/screenshots.py demo/report.html`, with
chromium and playwright.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    " --disable-sync"
)


def main(page: str) -> None:
    address = Path(page).resolve().as_uri()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS.split())
        for theme, section in (("light", "#heads"), ("dark", "#reconstruction")):
            for form, width, height in (("wide", 1280, 1240), ("phone", 390, 844)):
                size = {"width": width, "height": height}
                tab = browser.new_context(viewport=size, color_scheme=theme).new_page()
                tab.goto(address)
                tab.wait_for_selector("html[data-ready=yes]")
                print(_shot(tab, section, f"report-{form}-{theme}"))
        browser.close()


def _shot(tab: Page, section: str, name: str) -> Path:
    """What the window shows of a section."""
    tab.eval_on_selector(section, "element => element.scrollIntoView()")
    tab.wait_for_timeout(800)
    path = PICTURES / f"{name}.png"
    tab.screenshot(path=path)
    Image.open(path).convert("RGB").save(path, optimize=True)
    return path


if __name__ == "__main__":
    main(sys.argv[1])
