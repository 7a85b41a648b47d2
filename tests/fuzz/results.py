"""Targets that read results: studies, plans, evaluations, collapse runs, explanations."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

import eigenlens as el
from eigenlens.cli.terminal import show
from eigenlens.collapses import Collapse
from eigenlens.errors import EigenlensError
from eigenlens.explanations import Explanation
from eigenlens.plans.evaluation import Evaluation
from eigenlens.studies import Study, compare

from .inputs import bert
from .mutations import damage_json_file, damage_tensor_file, digest, study_seal
from .world import world


@contextlib.contextmanager
def silence():
    """What is printed goes nowhere.

    Halves of characters, which no encoding has, are spelled out as the commands do.
    """
    with (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield


def _plain(record: object) -> None:
    json.dumps(record)


def copied(name: str, folder: Path) -> Path:
    place = folder / name
    shutil.copytree(world() / name, place)
    return place


def damage_study(place: Path, rng: Random) -> None:
    """Damage a study's files, then make its digests right again.

    What is left to notice is the content.
    """
    path = place / "study.json"
    if rng.random() < 0.5:
        chosen = rng.choice(sorted(place.glob("*.safetensors")))
        damage_tensor_file(chosen, rng)
        record = json.loads(path.read_text())
        if rng.random() < 0.95:
            record["files"][chosen.name] = {
                "bytes": chosen.stat().st_size,
                "sha256": digest(chosen),
            }
        path.write_text(json.dumps(study_seal(record)))
    else:
        damage_json_file(path, rng, study_seal)
    if rng.random() < 0.02:
        shutil.rmtree(place) if rng.random() < 0.3 else rng.choice(sorted(place.iterdir())).unlink()


def read_study(place: Path, rng: Random) -> None:
    """Everything a study can be asked, in the order of a user who shows it, then in any order."""
    study = Study.open(place)
    asked: list[Callable[[], object]] = [
        lambda: study.spectra.rows(),
        lambda: study.spectra.sentence,
        lambda: study.depth.rows(),
        lambda: study.depth.sentence,
        lambda: [
            (f.rows(), f.layers(), f.sentence, f.record(), repr(f))
            for f in study.diagnostics.values()
        ],
        lambda: study.heads(),
        lambda: _plain(study.record()),
        lambda: study.overlap(rank=2).summary(),
        lambda: study.matrix_results,
        lambda: study.overlap(rank=2, analysis="matrices").rows(),
        lambda: (study.row_sums("fit"), study.row_sums("held")),
        lambda: (study.moments("fit"), study.moments("held")),
        lambda: show(study),
        lambda: (study.name, study.length, repr(study)),
        lambda: study.overlap(rank=2, level="layer", centring="row-centred").sentence,
        lambda: compare(study, world() / "full").record(),
        lambda: compare(world() / "causal", study).sentence,
    ]
    if rng.random() < 0.04:
        asked.append(lambda: study._repr_html_())
        asked.append(lambda: study.diagnostics._repr_html_())
        asked.append(lambda: [f.plot().to_dict() for f in study.diagnostics.found])
    if rng.random() < 0.03:
        asked.append(lambda: el.report(study, output=place.parent / "page.html"))
    rng.shuffle(asked)
    refused: EigenlensError | None = None
    with silence():
        for ask in asked:
            try:
                ask()
            except EigenlensError as error:
                refused = error
    if refused is not None:
        raise refused


def study(rng: Random, folder: Path) -> None:
    place = copied(rng.choice(["full", "causal"]), folder)
    damage_study(place, rng)
    read_study(place, rng)


def plan(rng: Random, folder: Path) -> None:
    """A plan: its tables, its pictures, and the model run by it."""
    place = copied("plan", folder)
    damage_plan(place, rng)
    opened = el.Plan.open(place)
    with silence():
        _plain(opened.record())
        show(opened)
        opened.rows(), repr(opened), opened.work, opened.total_variation
        if opened.examples is not None:
            for i in range(len(opened.examples.heads)):
                opened.examples.best(i, 0.25), opened.examples.label(i), opened.examples.rows(0, i)
            opened.examples._repr_html_()
        if rng.random() < 0.05:
            opened._repr_html_()
        if rng.random() < 0.03:
            el.report(opened, output=folder / "page.html")
        if rng.random() < 0.5:
            with torch.no_grad(), opened.applied(bert()):
                bert().module(input_ids=torch.arange(8)[None])


def damage_plan(place: Path, rng: Random) -> None:
    path = place / "plan.json"
    if rng.random() < 0.4:
        chosen = place / rng.choice(["plan.safetensors", "examples.safetensors"])
        damage_tensor_file(chosen, rng)
        record = json.loads(path.read_text())
        (record if chosen.name == "plan.safetensors" else record["examples"])["sha256"] = digest(
            chosen
        )
        path.write_text(json.dumps(record))
    else:
        damage_json_file(path, rng)


def evaluation(rng: Random, folder: Path) -> None:
    place = copied("evaluation", folder)
    damage_json_file(place / "evaluation.json", rng)
    found = Evaluation.open(place)
    with silence():
        _plain(found.record())
        print(found.name, found.sentence, found.rows(), repr(found))
        if rng.random() < 0.04:
            found._repr_html_()
        if rng.random() < 0.02:
            el.report(found, output=folder / "page.html")


def collapse(rng: Random, folder: Path) -> None:
    place = copied("collapse", folder)
    damage_json_file(place / "collapse.json", rng)
    found = Collapse.open(place)
    with silence():
        _plain(found.record())
        show(found)
        found.rows(), found.rows("cosine"), found.heads, found.depth_bounds, repr(found)
        if rng.random() < 0.04:
            found._repr_html_()
        if rng.random() < 0.02:
            el.report(found, output=folder / "page.html")


def explanation(rng: Random, folder: Path) -> None:
    place = copied("explanation", folder)
    damage_json_file(place / "explanation.json", rng)
    found = Explanation.open(place)
    with silence():
        _plain(found.record())
        print(found.sentence, found.name, found.notes, repr(found))
        (
            found.rows(),
            found.areas(),
            found.curves(),
            [(found.levels(m), found.strongest(m)) for m in found.methods],
        )
        if rng.random() < 0.1:
            found._repr_html_()
        if rng.random() < 0.02:
            el.report(found, output=folder / "page.html")
