"""All benches by name, their sizes, and the run that is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..attention import find
from ..data.needs import check_named, names_of_scale
from ..errors import EigenlensError
from ..models.device import device_named
from ..names import unknown_name
from ..run.parts import Parts
from ..run.progress import Progress, silent
from .assigned import CHOICE_QUICK, ChoiceScale, choices
from .damage import DAMAGE_QUICK, DamageScale, damage
from .entrants import FULL, entrants, fits, ours
from .quality import QUALITY_QUICK, quality
from .result import Bench
from .spectra import spectra
from .speed import SPEED_QUICK, SpeedScale, speed
from .training import TASKS, LabScale

ON_DEVICES = ("speed", "damage")
SCALES: Mapping[str, tuple[Any, Any]] = {
    "speed": (SpeedScale(), SPEED_QUICK),
    "quality": (LabScale(), QUALITY_QUICK),
    "damage": (DamageScale(), DAMAGE_QUICK),
    "spectra": (LabScale(), QUALITY_QUICK),
    "choose": (ChoiceScale(), CHOICE_QUICK),
}
"""The sizes of every bench, full and quick, in running order.

The bench spectra looks at the models that the bench quality trains.
"""


def run_bench(
    name: str,
    output_dir: str | Path = "bench",
    *,
    quick: bool = False,
    mechanisms: str | Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Bench:
    """Run a bench by name and keep it in a folder of its name.

    Parameters
    ----------
    name : str
        `"speed"`, `"quality"`, `"damage"`, `"spectra"` or `"choose"`.
    output_dir : str or Path, default "bench"
        The folder that holds the folder of the bench, and the trained models beside it.
    quick : bool, default False
        A miniature of a minute or two.
    mechanisms : str or sequence of str, optional
        Mechanisms that take part, as a list or with commas. Default: every one that is known.
    lengths : sequence of int, optional
        Tokens per input of the speed bench. Default: 256 to 16384.
    device : str, default "auto"
        Where it runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one and the bench
        can use it.
    resume : bool, default False
        Go on with a bench that was interrupted, after its last finished part.
    overwrite : bool, default False
        Overwrite an existing result.
    progress : callable, optional
        Called with `(what, done, total)` during the work. Default: silent.

    Returns
    -------
    Bench
        The tables of the bench, its settings and its sentence.

    Raises
    ------
    EigenlensError
        If there is no such bench or mechanism, if an option is wrong, or if the folder is taken.

    Examples
    --------
    >>> run_bench("speed", mechanisms=["softmax", "window"]).sentence
    """
    if name not in SCALES:
        raise unknown_name("bench", name, SCALES)
    output_dir, chosen = Path(output_dir), entrants(mechanisms)
    device = device_named("cpu" if device == "auto" and name not in ON_DEVICES else device)
    if device != "cpu" and name not in ON_DEVICES:
        raise EigenlensError(
            f"the bench {name} trains on the CPU; another device is for {' and '.join(ON_DEVICES)}"
        )
    scale = SCALES[name][quick]
    if name == "speed" and lengths is not None:
        if not lengths or min(lengths) < 2:
            raise EigenlensError(
                f"lengths are whole numbers from 2 on, not {', '.join(map(str, lengths)) or 'none'}"
            )
        scale = replace(scale, lengths=tuple(sorted(set(lengths))))
    if name == "choose" and (mechanisms is not None or not all(ours(find(one)) for one in chosen)):
        scale = replace(scale, candidates=_candidates(chosen, scale, mechanisms is None))
    check_needs(name, quick)
    request = {"bench": name, "mechanisms": chosen, "device": device, **asdict(scale)}
    parts = Parts.begin(
        output_dir / name, request, resume=resume, overwrite=overwrite, what="bench"
    )
    store = output_dir / "models"
    if name == "speed":
        found = speed(scale, parts, chosen, progress, device)
    elif name == "quality":
        found = quality(scale, parts, chosen, progress, store)
    elif name == "damage":
        found = damage(scale, parts, chosen, progress, device)
    elif name == "spectra":
        found = spectra(scale, parts, chosen, progress, store)
    else:
        found = choices(scale, parts, progress, store)
    found = replace(found, settings={**parts.request, **found.settings})
    parts.write("bench", found.record())
    return found


def check_needs(name: str, quick: bool) -> None:
    """Refuse a bench whose models and data need libraries that are not here."""
    check_named(names_of_scale(SCALES[name][quick]), f"the bench {name}")


def _candidates(chosen: Sequence[str], scale: ChoiceScale, whole: bool) -> tuple[str, ...]:
    """The mechanisms to choose from.

    They are those that were named and can be dropped in; where none was named, the usual ones and a
    user's own.
    """
    ways = {TASKS[task] for task in scale.lab.tasks}
    named = [
        name
        for name in chosen
        if all(fits(name, way) for way in ways) and not find(name).own_weights
    ]
    usual = [*scale.candidates, *(name for name in named if not ours(find(name)))]
    return tuple(dict.fromkeys([FULL, *(usual if whole else named)]))
