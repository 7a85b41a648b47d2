"""The fastest plan within a loss: chosen on some documents, checked on others."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

import eigenlens as el
from eigenlens.attention import HeadForm
from eigenlens.captures import Site
from eigenlens.plans import loss_search, make_sparse_plan, plan_inputs
from eigenlens.plans.allocation import Allocation, Candidate
from eigenlens.plans.calibration import (
    CHOOSING,
    DENSE,
    GATHERED,
    NEAR,
    RANKED,
    Calibration,
    Timing,
)
from eigenlens.plans.loss_search import Found, Rises, pays_from, search, single_document
from eigenlens.plans.menu import Tried
from eigenlens.run.progress import silent
from tiny import small_t5, some_text


def timed(*per_pair, kernel="kernel"):
    """A calibration: nanoseconds per pair of dense, gathered, near, choosing, ranked."""
    forms = (DENSE, GATHERED, NEAR, CHOOSING, RANKED)
    timings = tuple(
        Timing(form, "torch" if form == DENSE else "native", causal, length, ns * 1e-9, 1.0)
        for form, ns in zip(forms, per_pair, strict=True)
        for causal in (True, False)
        for length in (1024, 4096)
    )
    return Calibration("machine", "cpu", 2, "2", kernel, 16, timings, "now")


def tried(errors, pairs):
    """A layer with these errors and pairs per option and head, dense first."""
    x, n = torch.tensor(errors).double(), torch.tensor(pairs).double()
    zero, maps = torch.zeros_like(x), torch.zeros(x.shape[1], 16, 4)
    options = [HeadForm()]
    options += [HeadForm("blocks", 10.0**-i, samples=4) for i in range(len(errors) - 1, 0, -1)]
    return Tried(
        options, True, 1024, (16, 16), maps, maps, x, zero, zero, n / n[0], n, zero, inputs=1
    )


@pytest.fixture
def allocation():
    errors = [[0.0, 0.0], [1.0, 0.1], [4.0, 0.2], [9.0, 0.3]]
    pairs = [[100.0, 100.0], [50.0, 50.0], [20.0, 20.0], [10.0, 10.0]]
    return Allocation({Site("self", 0): tried(errors, pairs)}, {16: timed(1, 1, 1, 1, 1)})


def test_the_family_goes_from_fast_to_exact_and_no_allocation_beats_it(allocation):
    family = allocation.family()
    assert [c.seconds for c in family] == sorted(c.seconds for c in family)
    assert [c.error for c in family] == sorted((c.error for c in family), reverse=True)
    assert family[-1].error == 0 and family[0].error == pytest.approx(9.3)
    everything = [
        allocation.candidate(np.array(chosen)) for chosen in itertools.product(range(4), repeat=2)
    ]
    for c in family:
        assert not [o for o in everything if o.error < c.error - 1e-12 and o.seconds < c.seconds]


def test_a_candidate_is_a_plan_with_a_choice_per_head(allocation):
    chosen = Candidate(np.array([1, 3]), 1.3, 6e-8, 0.3)
    made = allocation.plan(chosen, 1024)
    forms = made.layers[Site("self", 0)].heads
    assert [form.threshold for form in forms] == pytest.approx([1e-3, 1e-1])
    rows = allocation.choices(chosen)
    assert [row.work for row in rows] == pytest.approx([0.5, 0.1])
    assert "5e-05 ms instead of 0.0001 ms" in rows[0].why


def test_seconds_are_those_of_the_machine():
    """Where choosing is dear and gathering is not, and the other way round."""
    layer = tried([[0.0], [1.0]], [[100.0], [20.0]])
    layer.sampled = torch.tensor([[0.0], [10.0]]).double()
    cheap, dear = (
        Allocation({Site("self", 0): layer}, {16: timed(1, 1, 1, ns, 1)}) for ns in (1, 90)
    )
    assert cheap.seconds[1, 0] == pytest.approx(30e-9)
    assert dear.seconds[1, 0] == pytest.approx(920e-9)
    assert len(cheap.family()) == 2 and len(dear.family()) == 1  # dense is the fastest


class Meter:
    """A model whose documents rise by a multiple of the plan's error."""

    factors: dict

    def __init__(self, model, batches, tell):
        self.task, self.batches, self.each = object(), batches, Meter.factors[batches[0]]

    def measure(self, plan, stop_above=np.inf):
        rises = [plan.expected["error"] * factor / 100 for factor in self.each]
        return Rises(rises, [1.0] * len(rises), [2.0] * len(rises))


@pytest.mark.parametrize(
    ("loss", "choosing", "checking", "found"),
    [
        (0.2, [1.0, 1.1, 0.9], [1.0, 1.0], 9.3),  # all of them keep to it
        (0.05, [1.0, 1.01, 0.99], [1.0, 1.0], 4.3),
        (0.05, [1.0, 1.01, 0.99], [2.0, 2.0], 1.3),  # the check is worse: tightened
        (0.0001, [1.0, 1.1, 0.9], [1.0, 1.0], 0.0),  # only the exact one keeps to it
        (0.05, [0.0, 3.0, 0.0], [1.0, 1.0], 0.3),  # the mean is within, its interval is not
    ],
)
def test_the_fastest_within_the_loss_is_found(
    monkeypatch, allocation, loss, choosing, checking, found
):
    monkeypatch.setattr(loss_search, "LossMeter", Meter)
    Meter.factors = {"choose": choosing, "check": checking}
    done = search(
        None, allocation, loss, 1024, ["choose"] * len(choosing), ["check"] * 2, 1, str, silent
    )
    assert done.candidate.error == pytest.approx(found)
    assert done.checked.mean <= loss and done.predicted.interval[1] <= loss
    faster = [c for c in allocation.family() if c.seconds < done.candidate.seconds]
    for c in faster:
        rises = Rises([c.error * x / 100 for x in choosing], [1.0], [1.0])
        assert not rises.within(loss) or c.error * np.mean(checking) / 100 > loss


def test_where_torch_is_as_fast_no_plan_is_better_than_the_exact_one(monkeypatch, allocation):
    monkeypatch.setattr(loss_search, "LossMeter", Meter)
    Meter.factors = {"choose": [1.0, 1.1], "check": [1.0, 1.0]}
    allocation.calibrations = {16: timed(1e-9, 1, 1, 1, 1)}  # torch's own attention
    done = search(None, allocation, 1e-4, 1024, ["choose"] * 2, ["check"] * 2, 1, str, silent)
    assert done.candidate is None and done.checked is None
    assert all(one["rise"] > 1e-4 for one in done.tried)


def test_intervals_are_students():
    each = [0.01, 0.02, 0.04, 0.015]
    found = Rises(each, [1.0] * 4, [1.0] * 4)
    low, high = stats.t.interval(0.95, 3, np.mean(each), stats.sem(each))
    assert found.interval == pytest.approx((low, high))
    spread = np.std(each, ddof=1) * np.sqrt(1 + 1 / 4)
    assert single_document(each) == pytest.approx(np.mean(each) + stats.t.ppf(0.95, 3) * spread)
    assert found.within(high + 1e-9) and not found.within(high - 1e-9)


@pytest.fixture(scope="module")
def study(tmp_path_factory, llama):
    place = tmp_path_factory.mktemp("loss")
    text = some_text(place / "text.txt", documents=60)
    return el.study(llama, text, place / "study", max_length=32, max_inputs=12, only=["moments"])


def test_a_plan_within_a_loss(monkeypatch, study, llama, tmp_path):
    """Whatever the clock says, so that the search ends with a plan."""
    monkeypatch.setattr(make_sparse_plan, "PAYS", 0.0)
    stages = set()
    made = el.plan(
        study,
        loss="20%",
        max_length=640,
        max_inputs=3,
        output_dir=tmp_path / "plan",
        progress=lambda what, done, total: stages.add(what),
    )
    found = made.stored["search"]
    assert found["pays"] and found["checked"]["rise"] <= 0.2
    assert found["predicted"]["interval"][1] <= 0.2 and made.target == {"loss": 0.2}
    each = [*found["predicted"]["each"], *found["checked"]["each"]]
    assert len(each) == 2 * found["checked"]["documents"]
    assert found["single"] == single_document(each)
    assert made.sentence.startswith("At 640 tokens the model is ")
    assert "within a loss of 20.00 %: on 3 texts that nothing was chosen on" in made.sentence
    assert {s.split(" on ")[0] for s in stages} >= {"choosing a plan", "checking the plan"}
    again = el.Plan.open(tmp_path / "plan")
    assert again.sentence == made.sentence and again.record() == made.record()
    made.stored["search"]["tried"].append({"error": 1.0, "rise": 0.3, "checked": 1.0})
    assert "on 3 texts that it was checked on (and made safer 1 time because" in made.sentence
    evaluated = el.evaluate(llama, plan=again, max_inputs=3)
    # on documents that neither chose nor checked
    assert len(evaluated.notes) == 1 and "with 8 or more its interval" in evaluated.notes[0]


def test_it_says_plainly_that_no_plan_pays(monkeypatch, study):
    monkeypatch.setattr(make_sparse_plan, "PAYS", np.inf)
    made = el.plan(study, loss=0.2, max_length=640, max_inputs=2)
    assert not made.stored["search"]["pays"] and not made.sparse.layers
    assert {choice.estimator for choice in made.choices} == {"dense"} and made.work == 1
    assert "At 640 tokens attention is " in made.sentence and "no plan pays" in made.sentence
    assert "The best plan that was tried, and not taken" in made.printed()[0].title
    short = el.plan(study, loss=0.01, max_inputs=2)
    assert short.length == 32 and "% of this model's time: no plan pays; " in short.sentence


def test_an_exact_plan_says_that_nothing_is_left_out(monkeypatch, study):
    def exact(model, allocation, *_):
        rises = Rises([0.0, 1e-8], [1.0, 1.0], [2.0, 2.0])
        return Found(allocation.family()[-1], rises, rises, [])

    monkeypatch.setattr(make_sparse_plan, "search", exact)
    made = el.plan(study, loss=1e-4, max_length=640, max_inputs=2)
    assert made.stored["search"]["pays"] and made.work == 1
    assert made.sentence == (
        f"At 640 tokens the model is 2.00 times faster and loses nothing: all {len(made.choices)}"
        " heads attend to every key, by the native kernel. No plan that leaves keys out was found"
        " within a loss of 0.01 %."
    )


@pytest.mark.parametrize(
    ("rest", "longest", "expected"),
    [(1e-9, None, 576), (1e-2, None, 1774), (10.0, None, None), (1e-2, 1024, None)],
)
def test_from_which_length_on_a_plan_would_pay(rest, longest, expected):
    """Attention of 4e-7 s per squared token, of which a plan takes 28 %: by hand 177,400 · rest."""
    found = pays_from(rest, lambda n: (4e-7 * n * n, 0.28125 * 4e-7 * n * n), longest)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert 0.95 * expected <= found <= 1.25 * expected


def test_too_few_documents_are_refused(tmp_path, llama):
    text = some_text(tmp_path / "text.txt", documents=3)
    study = el.study(llama, text, tmp_path / "study", max_length=32, max_inputs=6, only=["moments"])
    with pytest.raises(el.EigenlensError, match=r"no held-out documents are left|too (few|short)"):
        el.plan(study, loss=0.01, max_length=1900)


def test_between_lengths_seconds_per_pair_are_interpolated():
    known = timed(1, 1, 1, 1, 1)
    more = (Timing(GATHERED, "native", True, 4096, 3e-9, 1.0),)
    kept = [t for t in known.timings if not (t.form == GATHERED and t.length == 4096 and t.causal)]
    known = Calibration(**{**vars(known), "timings": (*kept, *more)})
    assert known.per_pair(GATHERED, True, 2048) == pytest.approx(2e-9)
    assert known.per_pair(GATHERED, True, 64) == pytest.approx(1e-9)
    assert known.per_pair(GATHERED, True, 99_999) == pytest.approx(3e-9)


@pytest.mark.parametrize("length", [24, 600])
def test_a_model_without_attention_that_a_plan_could_serve_is_refused(tmp_path, length):
    """Scores with a position bias, as in T5, however short the inputs."""
    model, ids = small_t5(), np.random.default_rng(0).integers(0, 50, (30, 2 * length - 1))
    made = el.study(model, ids, tmp_path / "study", max_inputs=4, only=["moments"])
    with pytest.raises(el.EigenlensError, match="no attention of this model can be planned"):
        el.plan(made, loss=0.01, max_length=length, max_inputs=2, model=model, data=ids)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": "1%%"}, "the loss must be a share between 0 and 1"),
        ({"loss": "1%", "max_inputs": 1}, "a plan within a loss needs at least 2 inputs"),
        ({"loss": "1%", "max_inputs": -3}, "needs at least 2 inputs to choose on, not -3"),
        ({"budget": 0.3, "blocks": True, "max_inputs": 0}, "a plan of blocks needs at least 1"),
        ({"loss": "1%", "max_length": 0}, "a length of 0 is too short"),
    ],
)
def test_numbers_out_of_range_are_one_sentence(study, given, says):
    with pytest.raises(el.EigenlensError, match=says):
        el.plan(study, **given)


def test_inputs_are_single_documents_if_enough_are_long_enough(monkeypatch, llama, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i:02}.txt").write_text(f"Text {i}. " + "one two three " * (40 if i % 2 else 4))
    study = el.study(llama, folder, tmp_path / "s", max_length=32, max_inputs=8, only=["moments"])
    monkeypatch.setattr(make_sparse_plan, "SHORTEST", 99)  # nothing to save: no search
    apart = el.plan(study, loss=0.1, max_length=64, max_inputs=4)
    assert not apart.request.joined and not apart.notes
    joined = el.plan(study, loss=0.1, max_length=64, max_inputs=12)
    assert joined.request.joined and "an input may join several" in joined.notes[0]
    few = el.plan(study, loss=0.1, max_length=128, max_inputs=12)
    assert "where 12 each were asked for: there are no more" in few.notes[-1]


def test_a_compiler_that_fails_is_said_once_and_torch_computes(monkeypatch, study):
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("EIGENLENS_CACHE", str(study.folder.parent / "cache"))
    made = el.plan(study, loss=0.1, max_inputs=2)
    said = [note for note in made.notes if "there is no native kernel, so torch computes" in note]
    assert len(said) == 1 and "/bin/false" in said[0]


@pytest.mark.parametrize(
    ("kind", "length", "documents", "expected"),
    [
        ("decoder", 128, 8, 4),
        ("decoder", 4096, 8, 2),
        ("decoder", 8192, 8, 1),
        ("vision", 8192, 8, 8),
        ("vision", 8192, 2, 2),
    ],
)
def test_inputs_are_asked_for_so_that_every_part_gets_some(kind, length, documents, expected):
    fitted = plan_inputs._fitted(length, documents, kind)
    assert fitted == expected
    asked = plan_inputs._request(("text",), length, documents, fitted, 0, True)
    held = round(asked.max_inputs * asked.held_out)
    assert held == 4 * documents and asked.max_inputs - held >= 2
