"""Writing results as one page."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..display import numbered
from ..errors import EigenlensError
from ..run.files import disk_errors, write_text
from ..run.progress import Progress, silent
from ..run.result import Result
from ..shell import option


def report(
    *results: Result | str | Path,
    output: str | Path = "report.html",
    title: str | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write results as one self-contained HTML page.

    Parameters
    ----------
    *results : Study, Comparison, Plan, Evaluation, Collapse, Explanation, str or Path
        Results, or their folders; a folder with result folders inside stands for all of them.
    output : str or Path, default "report.html"
        The page to write.
    title : str, optional
        The heading of the page. Default: the names of the models.
    overwrite : bool, default False
        Overwrite a file that is no report; a report is always written anew.
    progress : callable, optional
        Called with `(what, done, total)` during the work. Default: silent.

    Returns
    -------
    Path
        The page. It needs a browser and nothing else: no network, no server.

    Raises
    ------
    EigenlensError
        If a result cannot be opened, or if the file is there and no report.

    Examples
    --------
    >>> report("minilm-study", "minilm-plan", output="minilm.html")
    """
    from .contents import contents_of  # plotting loads when it is used
    from .gather import gather
    from .page import drawing_library, render

    place = Path(output)
    if place.is_dir():
        raise EigenlensError(
            f"{place} is a folder; name a file for the page, such as {place / 'report.html'}"
        )
    if place.exists() and not overwrite and not _ours(place):
        raise EigenlensError(
            f"{place} exists and is no report; name another file, or overwrite it with"
            f" {option('overwrite')}"
        )
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as beside:
        library = beside.submit(drawing_library)  # seconds, the first time
        found = gather(results)
        number = len(found.all)
        stage = f"reading {numbered(number, 'result')}"
        progress(stage, 0, number)
        contents = contents_of(found, title, lambda done: progress(stage, done, number))
        progress("writing the page", 0, 1)
        write_text(place, render(contents, library.result()))
    return place


MARK = '<meta name="generator" content="eigenlens">'
"""The mark of a report: a file that has it may be overwritten, other files may not."""


def _ours(place: Path) -> bool:
    with place.open("rb") as file:
        return MARK.encode() in file.read(4096)
