"""Build the documentation: `python docs/build.py`, then open `site/index.html`.

Blocks, figures and pictures of the pages are first filled from `results/`, in the sources, so that
a reader on a Git host sees what the site shows (`builder/filling.py`; `--fill` does only that).
Then the pages are assembled as plain Markdown (`builder/pages.py`): pages from outside of `docs/`,
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

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "results")]  # this tree, whatever is installed

from builder.check import broken_links, missing_pages  # noqa: E402
from builder.filling import fill_sources, typed_figures  # noqa: E402
from builder.navigation import as_toml, navigation  # noqa: E402
from builder.pages import assemble  # noqa: E402
from builder.results import Results  # noqa: E402


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
    parser.add_argument("--fill", action="store_true", help="only fill the sources from results/")
    parser.add_argument(
        "--figures", action="store_true", help="only list figures in sentences that no result holds"
    )
    given = parser.parse_args()
    if given.figures:
        typed = typed_figures(ROOT, Results())
        print("\n".join(typed) or "Every figure of a sentence is in the results.")
        return 1 if typed else 0
    output: Path = given.output
    written, wrong = fill_sources(ROOT)
    for path in written:
        print(f"filled {path.relative_to(ROOT)}")
    if given.fill or wrong:
        print("\n".join(wrong) or "The sources hold what the results give.")
        return 1 if wrong else 0
    shutil.rmtree(output, ignore_errors=True)
    wrong = build(output)
    print("\n".join(wrong) or f"The site is {output / 'index.html'}; open it in a browser.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
