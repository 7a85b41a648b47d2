"""Papers on a cluster.

Their passes and parts are those of this process to the last bit, and what is in hand stays here.
"""

import importlib
from dataclasses import replace

import pytest
import torch

import eigenlens as el
from eigenlens import lab, papers
from eigenlens.diagnostics import CallView
from eigenlens.diagnostics.localisation import Localisation
from eigenlens.papers.diagnostic_pass import DiagnosticPass
from eigenlens.papers.inputs import make_batches
from eigenlens.papers.multiformer.relevance import catalogue_map
from eigenlens.papers.over_smoothing.blocks import block_steps
from eigenlens.papers.paper import Paper
from eigenlens.papers.qk_eigenspectrum.heads import head_rows
from eigenlens.run.engine import choose_engine, use_engine
from eigenlens.run.files import locked
from eigenlens.run.parts import Parts
from eigenlens.run.progress import Here


def test_passes_of_diagnostics_on_a_cluster_are_those_of_this_process(cluster, bert):
    def rows():
        return [
            head_rows(bert, 8, 16, "python-docs", 0),
            catalogue_map(bert, "python-docs", 16, 20, 0),
        ]

    with use_engine(cluster):
        there = rows()
    assert rows() == there and len(there[0]) == len(there[1]) == 4


def test_every_block_of_every_input_comes_back_in_order(cluster, bert):
    model = el.load(bert)
    batches = [{"input_ids": torch.randint(1000, 20_000, (2, 12))} for _ in range(3)]
    with use_engine(cluster):
        steps = block_steps(model, batches)
    assert [(step.layer, step.input) for step in steps] == [
        (layer, i) for layer in range(2) for i in range(6)
    ]
    assert block_steps(model, batches) == steps


def test_a_diagnostic_sees_every_call_of_every_input(bert):
    model = el.load(bert)
    batches = make_batches(model, "python-docs", 16, 6, 0, 4)
    found = DiagnosticPass(model, "localisation", batches).run()
    expected = Localisation()
    with torch.no_grad(), el.capture(model.backbone, lambda call: expected.update(CallView(call))):
        for batch in batches:
            model.backbone(**batch)
    assert found.sums.keys() == expected.sums.keys() and found.sums
    for name, x in expected.sums.items():
        torch.testing.assert_close(found.sums[name], x)


def test_what_was_trained_is_measured_in_this_process(cluster):
    torch.manual_seed(0)
    shape = {"vocabulary": 20, "length": 12, "width": 16, "heads": 2, "layers": 2}
    model = lab.Transformer(lab.Config(**shape, norm_position="post", activation="relu"))
    with use_engine(cluster):
        assert len(block_steps(model, [{"input_ids": torch.randint(20, (3, 12))}])) == 2 * 3


@pytest.fixture
def asked(monkeypatch):
    """A paper that notes which engine is in force while it is reproduced."""
    engines = []

    def measure(*_):
        engines.append(choose_engine())
        return {}

    monkeypatch.setitem(papers.PAPERS, "small", empty_paper("small", measure))
    monkeypatch.setattr("eigenlens.papers.pictures.draw", lambda *_: ["picture.png"])
    return engines


def test_the_command_puts_its_engine_in_force(cluster, asked, tmp_path, run):
    address = cluster._client.scheduler.address
    ended = run(
        "reproduce", "small", "-o", tmp_path / "there", "--engine", "dask", "--scheduler", address
    )
    assert ended.code == 0, ended.err
    assert asked[0].remote and asked[0].scheduler == address and asked[0].on_failure == "stop"
    assert run("reproduce", "small", "-o", tmp_path / "here", "--on-failure", "partial").code == 0
    assert not asked[1].remote and asked[1].on_failure == "partial"
    assert not choose_engine().remote  # afterwards all is as before
    assert run("reproduce", "small", "-o", tmp_path / "none", "--engine", "slurm").code == 2
    assert len(asked) == 2


def empty_paper(name, measure):
    """A paper that claims nothing and has no pictures."""
    scale = lab.TrainingSettings(1)
    return Paper(name, "No paper", scale, scale, measure, lambda *_: (), lambda _: {})


def test_two_processes_do_not_share_a_folder(tmp_path):
    paper = empty_paper("none", lambda *_: {})
    folder = tmp_path / "paper"
    paper(output_dir=folder)
    with locked(folder), pytest.raises(el.EigenlensError, match="another process is working in"):
        paper(output_dir=folder, resume=True)
    assert paper(output_dir=folder, resume=True).paper == "none"


def tables_of(module, changes, folder, on=None):
    """The tables of a paper at a small scale, made here or on a cluster."""
    with use_engine(on):
        return module.measure(
            replace(module.QUICK, **changes), Parts.begin(folder, {}), 0, Here(lambda *_: None)
        )


@pytest.mark.parametrize(
    ("paper", "changes"),
    [
        ("rank_versus_heads", {"samples": 300, "steps": 20, "models": ()}),
        ("universal_approximation", {}),
        ("gated", {"steps": 10, "seeds": 1, "characters": 20_000}),
    ],
)
def test_parts_made_on_a_cluster_are_those_of_this_process(
    cluster, tmp_path, paper, changes, monkeypatch
):
    module = importlib.import_module(f"eigenlens.papers.{paper}")
    here = tables_of(module, changes, tmp_path / "here")
    monkeypatch.setattr(Parts, "part", only_what_is_there)
    there = tables_of(module, changes, tmp_path / "there", cluster)
    assert {name: timeless(rows) for name, rows in there.items()} == {
        name: timeless(rows) for name, rows in here.items()
    }


def only_what_is_there(self, name, make):
    """In place of `Parts.part`: what a cluster leaves to this process are exact checks."""
    if not self.has(name):
        assert name == "checks"
        self.write(name, make())
    return self.read(name)


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
