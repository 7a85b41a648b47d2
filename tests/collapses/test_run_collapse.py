"""A collapse run: its curves against plain numpy, what it says, what it keeps, and what it
refuses.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GraniteConfig,
    GraniteModel,
    T5Config,
    T5EncoderModel,
)

import eigenlens as el
from eigenlens import EigenlensError, cli
from eigenlens.cli.terminal import show
from eigenlens.collapses import ABLATIONS, VARIANTS
from eigenlens.collapses.bounds_model import model_bounds
from eigenlens.collapses.verdict import sentence
from eigenlens.data.inputs import Request, prepare
from eigenlens.stats import DepthNumber
from tiny import small_llama

SIZE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SMALL = {"max_inputs": 6, "max_length": 16, "paths": 2, "bounds": 1}


@pytest.fixture(scope="module")
def world(bert, text):
    return bert, text


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
    model, text = world
    return el.collapse(model, text, tmp_path_factory.mktemp("run") / "run", **SMALL)


def residual(X):
    """‖X − 1x̄ᵀ‖ / ‖X‖ in the composite norm, by the definition."""

    def norm(A):
        return np.sqrt(np.abs(A).sum(0).max() * np.abs(A).sum(1).max())

    return norm(X - X.mean(0)) / norm(X)


def streams(model, text, tmp_path, switches):
    """What goes into the first block and comes out of each, of every input, by transformers' own
    hidden states.
    """
    loaded = el.load(model)
    inputs = prepare(loaded, Request((str(text),), 16, 6, 0.2, 0), tmp_path)
    found = []
    for group in inputs.groups:
        for _, batch in inputs.batches(group, 1):
            with torch.no_grad(), el.ablate(loaded, switches):
                states = loaded.backbone(**batch, output_hidden_states=True).hidden_states
            found.append([state[0].double().numpy() for state in states])
    return found


@pytest.fixture(scope="module")
def collapsing(world, tmp_path_factory):
    """Runs in float32 and float64 of a BERT that attention alone makes one vector: small weights,
    three blocks.
    """
    folder = tmp_path_factory.mktemp("collapsing")
    torch.manual_seed(0)
    shape = {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    made = BertModel(
        BertConfig(vocab_size=30_522, max_position_embeddings=64, initializer_range=0.1, **shape),
        add_pooling_layer=False,
    )
    made.save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).write_bytes((world[0] / name).read_bytes())
    return {
        double: el.collapse(
            folder / "model", world[1], folder / f"run {double}", float64=double, **SMALL
        )
        for double in (False, True)
    }


def test_what_rounding_hides_is_called_so_and_float64_shows_it(collapsing, capsys, tmp_path):
    """A residual below 8ε of float32 is no figure there; the same run in float64 has the figure,
    far below.
    """
    single, double = collapsing[False], collapsing[True]
    floor = 8 * np.finfo(np.float32).eps
    hidden = single.curves["SAN"].curve("residual")[-1]["mean"]
    true = double.curves["SAN"].curve("residual")[-1]["mean"]
    assert 0 < hidden < floor and true < hidden / 100
    assert "below rounding without both skips" in single.sentence
    assert "below rounding" not in double.sentence
    printed = {}
    for name, made in (("single", single), ("double", double)):
        show(made)
        printed[name] = capsys.readouterr().out
    assert "below rounding" in printed["single"] and f"{hidden:.1e}" not in printed["single"]
    assert f"{true:.1e}" in printed["double"]
    page = single._repr_html_() + single.curves["SAN"]._repr_html_()
    assert "below rounding" in page and f"{hidden:.3g}" not in page
    report = el.report(single, output=tmp_path / "page.html").read_text()
    assert "below rounding" in report and f"<td>{hidden:.4g}</td>" not in report


def test_records_keep_the_number_and_say_that_it_is_rounding(collapsing, tmp_path):
    run = collapsing[False]
    floor = 8 * np.finfo(np.float32).eps
    record = json.loads(json.dumps(run.record()))
    points = [row for rows in record["curves"].values() for row in rows]
    flagged = [row for row in points if row["below_rounding"]]
    assert flagged and all(
        row["metric"] in ("residual", "high_frequency") and 0 <= row["mean"] < floor
        for row in flagged
    )
    residuals = [row for row in points if row["metric"] == "residual"]
    assert all(row["below_rounding"] == (row["mean"] < floor) for row in residuals)
    for rows in (record["paths"]["lengths"], record["paths"]["single"]):
        assert rows and all(row["below_rounding"] == (row["residual"] < floor) for row in rows)
    assert (
        record["facts"]["precision"] == "float32"
        and collapsing[True].stored["precision"] == "float64"
    )


def test_runs_of_older_versions_are_still_read(run, tmp_path):
    """They say neither in which precision they ran nor what is below rounding."""
    content = json.loads(json.dumps(run.record()))
    del content["facts"]["precision"]
    for rows in (
        *content["curves"].values(),
        content["paths"]["lengths"],
        content["paths"]["single"],
    ):
        for row in rows:
            del row["below_rounding"]
    (tmp_path / "collapse.json").write_text(json.dumps(content))
    again = el.Collapse.open(tmp_path)
    assert again.floor == 8 * np.finfo(np.float32).eps and again.sentence == run.sentence
    assert again.record()["curves"] == json.loads(json.dumps(run.record()))["curves"]


@pytest.mark.parametrize("name", ABLATIONS)
def test_curves_are_the_mean_residual_over_inputs(run, world, tmp_path, name):
    by_hand = np.array(
        [[residual(X) for X in states] for states in streams(*world, tmp_path, ABLATIONS[name])]
    )
    curve = run.curves[name].curve("residual")
    assert [point["number"] for point in curve] == [6, 6, 6]
    np.testing.assert_allclose([point["mean"] for point in curve], by_hand.mean(0), rtol=1e-4)
    error = by_hand[:, -1].std(ddof=1) / np.sqrt(6)
    # Student's t, 5 degrees
    assert curve[-1]["high"] - curve[-1]["mean"] == pytest.approx(2.5705818 * error, rel=1e-3)


def test_the_paper_s_four_variants_are_among_the_ablations(run):
    assert set(VARIANTS) == {"SAN", "SAN+MLP", "SAN+skip", "full"} <= set(run.curves)


def test_paths_add_up_to_the_output(run):
    assert run.error < 1e-4
    assert sum(row["share"] for row in run.paths) == pytest.approx(1, abs=1e-4)
    assert [row["paths"] for row in run.paths[:-1]] == [1, 4, 4]
    shares = {row["attention_hops"]: row["share"] for row in run.paths}
    for hops in (1, 2):  # every path of k hops goes through k heads
        assert sum(row["by_length"][hops] for row in run.heads) == pytest.approx(
            hops * shares[hops], abs=1e-4
        )


def test_bounds_are_of_every_head_and_not_exceeded(run):
    assert [(row["layer"], row["head"]) for row in run.bounds] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(
        row["violated"] == 0 and row["max_d"] > 0 and 0 <= row["dobrushin"] <= 1
        for row in run.bounds
    )
    assert [row["depth"] for row in run.depth_bounds] == [0, 1, 2]


def test_a_finished_run_is_opened_and_never_overwritten_unasked(world, tmp_path, run):
    model, text = world
    again = el.collapse(model, text, tmp_path / "run", **SMALL)
    # the same command gives the same numbers
    assert again.record()["curves"] == run.record()["curves"]
    assert el.Collapse.open(tmp_path / "run").record() == again.record()
    for part, key, told in (
        ("facts", "float64", "lack float64"),
        ("bounds", "heads", "its bounds are not complete"),
    ):
        content = json.loads((tmp_path / "run" / "collapse.json").read_text())
        del content[part][key]
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / "collapse.json").write_text(json.dumps(content))
        with pytest.raises(EigenlensError, match=told):
            el.Collapse.open(tmp_path / "damaged")
    with pytest.raises(EigenlensError, match="already holds a collapse run"):
        el.collapse(model, text, tmp_path / "run", **SMALL)
    with pytest.raises(EigenlensError, match=r"another fingerprint, max_inputs \(--max-inputs\);"):
        el.collapse(model, text, tmp_path / "run", **{**SMALL, "max_inputs": 5}, resume=True)


def test_a_run_that_was_cut_short_goes_on(world, tmp_path, run, monkeypatch):
    model, text = world
    from eigenlens.collapses import run_collapse as make

    monkeypatch.setattr(
        make.CollapseRun, "paths", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        el.collapse(model, text, tmp_path / "run", **SMALL)
    monkeypatch.undo()
    with pytest.raises(EigenlensError, match="no finished collapse run"):
        el.Collapse.open(tmp_path / "run")
    monkeypatch.setattr(
        make.CollapseRun, "curves", lambda *_: pytest.fail("a finished part was done again")
    )
    whole = el.collapse(model, text, tmp_path / "run", **SMALL, resume=True)
    assert whole.record()["curves"] == run.record()["curves"]
    assert whole.record()["paths"] == run.record()["paths"]


def test_double_precision_has_no_floor(world):
    model, text = world
    deep = el.load(model)
    deep.module = BertModel(
        deep.config.__class__(
            **{**deep.config.to_dict(), "num_hidden_layers": 12, "initializer_range": 0.1}
        )
    )
    deep.module.eval()
    options = {**SMALL, "paths": 0, "bounds": 0, "variants": ["SAN"]}
    single = el.collapse(deep, text, **options).curves["SAN"].curve("residual")
    double = el.collapse(deep, text, **options, float64=True).curves["SAN"].curve("residual")
    assert min(point["mean"] for point in single) > 1e-9  # rounding of float32
    assert double[-1]["mean"] < 1e-12
    assert next(deep.module.parameters()).dtype == torch.float32  # the model in hand is left alone
    assert single[1]["mean"] == pytest.approx(double[1]["mean"], rel=1e-3)


class Step(nn.Module):
    """Attention whose parts are named as in no known family."""

    def __init__(self):
        super().__init__()
        self.mixer = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.mixer(x).chunk(3, -1)
        )
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Wrapped(nn.Module):
    """A layer that holds its attention one level down, so that it has a number in its path."""

    def __init__(self):
        super().__init__()
        self.inner = Step()

    def forward(self, x):
        return self.inner(x)


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 16)
        self.steps = nn.ModuleList(Wrapped() for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        for step in self.steps:
            x = step(x)
        return x


def test_an_unknown_family_is_measured_without_ablations():
    ids = np.random.default_rng(0).integers(0, 50, (6, 12))
    run = el.collapse(Unknown(), ids, max_length=12, max_inputs=6)
    assert list(run.curves) == ["full"] and len(run.curves["full"].curve("residual")) == 4
    assert "Wrapped with inner" in run.notes[0] and "known are those of BERT" in run.notes[0]
    assert "no ablation was measured" in run.sentence and run.paths == [] and run.bounds == []
    json.dumps(run.record(), allow_nan=False)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            lambda: GraniteModel(GraniteConfig(**SIZE, residual_multiplier=0.5)),
            "not built as eigenlens takes it",
        ),
        (lambda: BertModel(BertConfig(**SIZE, hidden_act="sigmoid")), "not zero at zero"),
    ],
)
def test_what_a_model_does_not_allow_is_noted_and_the_rest_goes_on(model, why):
    run = el.collapse(
        model().eval(),
        np.random.default_rng(0).integers(3, 50, (4, 10)),
        max_length=10,
        max_inputs=4,
        paths=1,
        bounds=1,
    )
    assert len(run.curves["full"].curve("residual")) == 3 and run.paths == []
    assert any(why in note for note in run.notes)


def test_inputs_of_padding_alone_are_left_out(world):
    model = el.load(world[0]).backbone
    mask = torch.ones(3, 8, dtype=torch.long)
    mask[1], mask[2, 5:] = 0, 0
    frozen = el.freeze(model, {"input_ids": torch.randint(5, 900, (3, 8)), "attention_mask": mask})[
        0
    ]
    whole = el.freeze(model, {"input_ids": torch.randint(5, 900, (2, 8))})[0]
    for graph in (frozen, whole):
        lengths = el.decompose_paths(graph)
        assert float(lengths.shares().sum()) == pytest.approx(1, abs=1e-4) and lengths.error < 1e-4
    assert {index for index, _, _ in model_bounds(frozen)} == {0, 2}


def test_a_position_bias_of_one_head_voids_the_cubic_bound():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = T5EncoderModel(config).eval()
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    with torch.no_grad():
        table.zero_()
        table[:, 1] = torch.randn(len(table))
    rows = [
        bound
        for _, _, bound in model_bounds(
            el.freeze(model, {"input_ids": torch.randint(3, 50, (1, 9))})[0]
        )
    ]
    assert not any(head.holds for bound in rows for head in bound.heads)
    # the weights are there all the same
    assert all(head.beta is not None for bound in rows for head in bound.heads)


def test_all_equal_tokens_and_padding_give_numbers(world, tmp_path):
    run = el.collapse(
        small_llama(), np.full((4, 8), 7), max_length=8, max_inputs=4, paths=2, bounds=1
    )
    assert [point["mean"] for point in run.curves["full"].curve("residual")] == pytest.approx(
        [0, 0, 0], abs=1e-6
    )
    json.dumps(run.record(), allow_nan=False)
    lines = [{"text": "word " * number} for number in (3, 8, 20, 5, 12, 30)]
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(map(json.dumps, lines)))
    padded = el.collapse(
        world[0], short, **{**SMALL, "max_length": 32, "paths": 6, "bounds": 6}, padding=True
    )
    json.dumps(padded.record(), allow_nan=False)
    assert padded.error < 1e-4 and sum(row["share"] for row in padded.paths) == pytest.approx(
        1, abs=1e-4
    )


def made_up(**ends):
    """A run whose residuals go from 1 to the given ends over two blocks."""
    curves = {}
    for name, end in ends.items():
        places = [
            (0, "input", 1.0),
            (0, "output", end**0.5),
            (1, "input", end**0.5),
            (1, "output", end),
        ]
        shared = {
            "stack": "encoder",
            "tokens": "all",
            "metric": "residual",
            "head": None,
            "low": None,
            "high": None,
            "number": 3,
        }
        curves[name] = [
            vars(DepthNumber(layer=layer, place=place, mean=mean, **shared))
            for layer, place, mean in places
        ]
    empty = {"error": None, "lengths": [], "heads": [], "single": []}
    facts = {"model": {"name": "m"}, "data": {"name": "d"}}
    return el.Collapse(
        {"facts": facts, "curves": curves, "paths": empty, "bounds": {"heads": [], "depth": []}}
    )


def test_the_sentence_names_what_holds_the_tokens_apart():
    skips = sentence(
        made_up(full=0.4, SAN=1e-4, **{"SAN+MLP": 1e-3, "SAN+skip": 0.3, "without norm": 0.35})
    )
    assert "attention alone would collapse at block 1 (0.01)" in skips
    assert (
        "Both skips hold them apart: at the end 0.001 without both skips, 0.3 without the MLPs"
        in skips
    )
    one = sentence(
        made_up(
            full=0.4,
            SAN=1e-4,
            **{"SAN+MLP": 1e-3, "without attention skip": 2e-3, "without MLP skip": 0.3},
        )
    )
    assert (
        "The attention skip holds them apart: at the end 0.001 without both skips, 0.002 without"
        " the attention skip" in one
    )
    paper = sentence(made_up(full=0.4, SAN=1e-4, **{"SAN+MLP": 1e-5, "SAN+skip": 0.1}))
    assert "Both skips hold them apart" in paper  # the MLPs matter, too, but less
    mlps = sentence(made_up(full=0.4, SAN=1e-4, **{"SAN+MLP": 0.3, "SAN+skip": 0.01}))
    assert "The MLPs hold them apart" in mlps
    nothing = sentence(made_up(full=0.4, SAN=0.2, **{"SAN+MLP": 0.3}))
    assert (
        "attention alone would leave 0.2, which is no collapse" in nothing
        and "No single part" in nothing
    )
    partly = sentence(made_up(full=0.4, **{"without attention skip": 1e-3}))
    assert "no ablation" not in partly and "The attention skip holds them apart" in partly


@pytest.mark.slow
def test_the_command_prints_draws_and_refuses(world, tmp_path, capsys, monkeypatch):
    model, text = world

    def command(*args):
        monkeypatch.setattr("sys.argv", ["eigenlens", "collapse", *map(str, args)])
        try:
            cli.main()
        except SystemExit as end:
            return end.code, capsys.readouterr()
        return 0, capsys.readouterr()

    small = (
        "--max-inputs",
        4,
        "--max-length",
        12,
        "--paths",
        1,
        "--bounds",
        1,
        "-o",
        tmp_path / "out",
    )
    code, said = command(model, text, *small)
    assert not code, said.err
    assert (
        "relative residual behind each block" in said.out and "would" in said.out.splitlines()[-3]
    )
    pictures = {path.name for path in (tmp_path / "out" / "pictures").iterdir()}
    assert pictures >= {
        "residual.png",
        "paths.svg",
        "path-residuals.png",
        "bounds.png",
        "metrics.png",
    }
    for by in ("both", "mlp"):
        code, said = command(model, text, *small, "--overwrite", "--variants", "SAN", "--by", by)
        assert not code and "mlp hops" in said.out
    code, said = command(model, text, *small, "--overwrite", "--json", "--variants", "SAN")
    found = json.loads(said.out)
    assert not code and set(found["curves"]) == {"full", "SAN"} and found["sentence"]
    code, said = command(model, text, *small, "--variants", "SAM")
    assert (
        code == 2 and "no variant 'SAM'; there are SAN" in said.err and "Traceback" not in said.err
    )
    code, said = command(model, text, *small)
    assert code == 2 and "already holds a collapse run" in said.err
