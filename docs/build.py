"""Build the documentation: `python docs/build.py`, then open `site/index.html`.

The pages are first assembled as plain Markdown (`builder/pages.py`): pages from outside of `docs/`,
tables of options, mechanisms and diagnostics, formulas as MathML, links. Then Zensical makes the
site of them, and every link of the site is followed (`builder/check.py`). What is wrong is printed,
one line each, and the command ends with 1.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from builder.check import broken_links, missing_pages
from builder.navigation import as_toml, navigation
from builder.pages import assemble

DOCS = Path(__file__).parent
ROOT = DOCS.parent


def build(output: Path) -> list[str]:
    """Build the site into a folder, and return what is wrong with it, one line each."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        pages = assemble(ROOT, work / "pages")
        nav = navigation(pages)
        settings = (DOCS / "zensical.toml").read_text(encoding="utf-8")
        (work / "zensical.toml").write_text(
            settings.replace('"NAVIGATION"', as_toml(nav)), encoding="utf-8"
        )
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", work / "src", ignore=skip)  # for mkdocstrings
        shutil.copytree(DOCS / "builder", work / "builder", ignore=skip)
        zensical = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(zensical, cwd=work, capture_output=True, text=True)
        if done.returncode or "Warning" in done.stdout + done.stderr:
            return [(done.stdout + done.stderr).strip()]
        shutil.copytree(work / "site", output, dirs_exist_ok=True)
    return [*missing_pages(pages, nav), *broken_links(output)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation.")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "site", help="the folder")
    output: Path = parser.parse_args().output
    shutil.rmtree(output, ignore_errors=True)
    wrong = build(output)
    print("\n".join(wrong) or f"The site is {output / 'index.html'}; open it in a browser.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
