"""Massive activations.

Planted ones, and loops over the hidden states that models give themselves.
"""

import numpy as np
import pytest
import torch

from diagnostics.passes import diagnosed
from eigenlens import EigenlensError
from eigenlens.captures import Site
from eigenlens.diagnostics import LayerView
from eigenlens.diagnostics.spikes import Spikes
from eigenlens.papers.inputs import make_batches
from tiny import of_catalogue, small_llama


def layer(inputs, outputs, valid=None, ids=None, site="self/0", vocabulary=None):
    valid = torch.ones(outputs.shape[:2], dtype=torch.bool) if valid is None else valid
    return LayerView(Site.parse(site), inputs, outputs, valid, ids, None, vocabulary)


def test_a_planted_spike_is_found_with_its_channel_and_token():
    torch.manual_seed(0)
    X, Y = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    Y[0, 0, 7], Y[1, 3, 7], Y[1, 3, 2] = -4000.0, 3000.0, 2000.0
    spikes = Spikes()
    spikes.update(layer(X, Y, ids=torch.arange(10).view(2, 5), vocabulary=10))
    finding = spikes.result(tokens={0: "the"})
    value = {name: finding.value(name, "self", 0) for name in finding.words}
    assert value["largest"] == 3500 and value["massive"] == 1 and value["first"] == 0.5
    # the lower of the two in the middle of 80
    medians = [np.sort(np.abs(y.numpy()).ravel())[39] for y in Y]
    assert value["median"] == pytest.approx(np.mean(medians), rel=1e-6)
    assert value["ratio"] == pytest.approx(
        np.mean([4000 / medians[0], 3000 / medians[1]]), rel=1e-6
    )
    seconds = [float(Y[0].abs().amax(0).sort().values[-2]), 2000.0]
    assert value["second"] == pytest.approx(np.mean(seconds), rel=1e-6)
    assert value["step"] == pytest.approx(float((Y - X).abs().amax((1, 2)).mean()))
    assert value["before"] == pytest.approx(float(X.abs().amax((1, 2)).mean()))
    channels = {row["channel"]: row for row in finding.tables["Channels, over layers and inputs"]}
    assert (
        channels[7]["massive"] == 2 and channels[7]["largest"] == 2 and channels[2]["massive"] == 1
    )
    tokens = finding.tables["Tokens that carry massive activations"]
    assert [(row["id"], row["token"], row["at the front"]) for row in tokens] == [
        (0, "the", 1),
        (8, "id 8", 0),
    ]
    assert spikes.token_ids() == [0, 8]
    assert finding.tables["Largest over all inputs"][0]["largest"] == 4000
    assert (
        "Channel 7 is massive most often" in finding.sentence
        and "in 50 % of the inputs the largest activation is at the first token" in finding.sentence
    )


def test_both_thresholds_must_be_passed():
    Y = torch.full((1, 4, 8), 0.2)
    for spike, massive in ((150.0, 0.0), (250.0, 1.0)):  # 1000 × the median is 200
        Y[0, 1, 3] = spike
        spikes = Spikes()
        spikes.update(layer(Y, Y))
        assert spikes.result().value("massive", "self", 0) == massive
    Y = torch.full((1, 4, 8), 0.01)
    Y[0, 1, 3] = 99.0  # 9900 × the median, but not above 100
    spikes = Spikes()
    spikes.update(layer(Y, Y))
    assert (
        spikes.result().value("massive", "self", 0) == 0
        and "No activation is massive" in spikes.result().sentence
    )
    loose = Spikes(size=50.0)
    loose.update(layer(Y, Y))
    assert loose.result().value("massive", "self", 0) == 1


def test_padding_does_not_count_and_neither_do_empty_inputs():
    X, Y = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    plain, padded = Spikes(), Spikes()
    plain.update(layer(X, Y))
    wide = [torch.cat([torch.full((2, 3, 8), 1e5), x], 1) for x in (X, Y)]
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[:, :3] = False
    wide, valid = (
        [torch.cat([x, x[:1]]) for x in wide],
        torch.cat([valid, torch.zeros(1, 9, dtype=torch.bool)]),
    )
    padded.update(layer(*wide, valid))
    one, other = plain.result(), padded.result()
    assert [(n.name, n.mean, n.number) for n in one.numbers] == [
        (n.name, n.mean, n.number) for n in other.numbers
    ]
    assert one.tables == other.tables


def test_silence_and_one_token_give_no_nan():
    spikes = Spikes()
    spikes.update(layer(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)))
    finding = spikes.result()
    assert all(np.isfinite(n.mean) for n in finding.numbers)
    # two channels, a median of 0
    assert {n.name for n in finding.numbers} == set(finding.words) - {"third", "ratio"}
    assert finding.sentence and finding.plot() is not None


def test_a_block_that_merges_tokens_has_no_step():
    spikes = Spikes()
    spikes.update(
        layer(torch.randn(2, 8, 4), torch.randn(2, 2, 8), torch.ones(2, 8, dtype=torch.bool))
    )
    assert "step" not in {n.name for n in spikes.result().numbers}


def test_steps_follow_the_criterion():
    """0 → 4 → 100 → 90 → 10: up by 96 of 100, down by 80."""
    spikes, sizes = Spikes(), [0.0, 4.0, 100.0, 90.0, 10.0]
    for i, (before, behind) in enumerate(zip(sizes, sizes[1:])):
        X, Y = torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)
        X[0, 1, 2], Y[0, 1, 2] = before, behind
        spikes.update(layer(X, Y, site=f"self/{i}"))
    steps = spikes.result().tables["Blocks where activations step up or down"]
    assert [(row["layer"], row["steps"], row["from"], row["to"]) for row in steps] == [
        (1, "up", 4, 100),
        (3, "down", 90, 10),
    ]
    assert steps[0]["criterion"] == "changes by at least 0.5 of the largest, 100"


@pytest.mark.parametrize(
    ("name", "data"),
    [("smollm2", "python-docs"), ("stories15m", "python-docs"), ("dinov2-small", "photos")],
)
def test_a_model_is_measured_as_by_its_own_hidden_states(name, data):
    model = of_catalogue(name)
    length = None if model.kind == "vision" else 16
    batch = {key: x[:2] for key, x in make_batches(model, data, length, 3, 0, 3)[0].items()}
    spikes = Spikes()
    studied = diagnosed(model, [batch], spikes)
    finding = spikes.result()
    last = next(m for path, m in model.backbone.named_modules() if path in {"norm", "layernorm"})
    kept = []
    # the library norms its last hidden state
    hook = last.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.no_grad():
        states = [*model.backbone(**batch, output_hidden_states=True).hidden_states[:-1], kept[0]]
    hook.remove()
    layers = [n.layer for n in finding.numbers if n.name == "largest"]
    assert len(layers) == len(states) - 1 == len(studied.sites)
    stack = finding.stacks[0]
    for i in layers:
        before, after = (x.double().numpy() for x in states[i : i + 2])
        rows = []
        for x, y in zip(before, after):
            by_channel = sorted(np.abs(y).max(0), reverse=True)
            middle = np.sort(np.abs(y).ravel())[(y.size - 1) // 2]
            token = int(np.abs(y).max(1).argmax())
            massive = by_channel[0] > 100 and by_channel[0] >= 1000 * middle
            more = (np.abs(y - x).max(), np.abs(x).max(), token == 0)
            rows.append([*by_channel[:3], middle, by_channel[0] / middle, massive, *more])
        for number, value in zip(finding.words, np.mean(np.asarray(rows, dtype=float), 0)):
            assert finding.value(number, stack, i) == pytest.approx(value, rel=2e-3, abs=1e-3), (
                number,
                i,
            )
    if name == "smollm2":
        assert (
            max(finding.values("largest").values()) > 1000
            and max(finding.values("massive").values()) == 1
        )
    if name == "dinov2-small":
        assert max(finding.values("massive").values()) == 0


def test_passes_that_are_merged_or_kept_are_one_pass():
    model = small_llama()
    batches = [{"input_ids": torch.randint(0, 50, (3, 12))} for _ in range(3)]
    settings = {"size": 0.01, "ratio": 1.5}
    whole, parts = Spikes(**settings), [Spikes(**settings) for _ in range(3)]
    diagnosed(model, batches, whole)
    for part, batch in zip(parts, batches):
        diagnosed(model, [batch], part)
    kept = Spikes.from_state({name: x.clone() for name, x in parts[0].state().items()}, **settings)
    assert kept.result().record() == parts[0].result().record()
    rest = Spikes.from_state(parts[1].state(), **settings)
    rest.merge(parts[2])
    kept.merge(rest)
    one, other = whole.result(), kept.result()
    assert (
        one.tables["Tokens that carry massive activations"]
        == other.tables["Tokens that carry massive activations"]
    )
    assert one.tables["Largest over all inputs"] == other.tables["Largest over all inputs"]
    assert (
        one.tables["Channels, over layers and inputs"]
        == other.tables["Channels, over layers and inputs"]
    )
    assert [n.mean for n in other.numbers] == pytest.approx(
        [n.mean for n in one.numbers], rel=1e-12
    )


@pytest.mark.parametrize("settings", [{"ratio": 0.5}, {"jump": 0.0}, {"jump": 1.5}, {"size": -1.0}])
def test_thresholds_out_of_range_are_refused(settings):
    with pytest.raises(EigenlensError, match=r"size must be at least 0 and ratio at least 1|jump"):
        Spikes(**settings)
