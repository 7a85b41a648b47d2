"""Every kind of study makes a page: parts of statistics, several stacks, grouped queries, images,
many heads, two lengths.
"""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    BertConfig,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import eigenlens as el
from eigenlens.captures import Site
from eigenlens.reports.gather import gather
from eigenlens.reports.head_numbers import head_numbers
from reports.browser import column
from tiny import small_llama

SIZE = {"max_inputs": 20, "max_length": 8, "rank": 4}


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    return BertModel(config, add_pooling_layer=False).eval()


@pytest.fixture(scope="module")
def ids():
    torch.manual_seed(1)
    return torch.randint(50, (20, 8))


def page_of(show, tmp_path, *results):
    shown = show(el.report(*results, output=tmp_path / "page.html"))
    shown.settle()
    assert shown.complaints == []
    return shown


@pytest.mark.parametrize(
    ("only", "figures"),
    [
        ("rows", {"spectrum", "vectors", "mean"}),
        ("matrices", {"spectrum", "maps"}),
        ("depth", set()),
    ],
)
def test_one_statistic_alone(show, tmp_path, bert, ids, only, figures):
    """What a study does not hold is not there; what it holds can be opened."""
    study = el.study(bert, ids, tmp_path / "study", only=[only], **SIZE)
    shown = page_of(show, tmp_path, study)
    present = {
        f.removeprefix("heads0-")
        for f in shown.page.eval_on_selector_all(
            "#heads0 .figure", "all => all.map(x => x.dataset.figure)"
        )
    }
    assert present == figures
    shown.page.locator("[data-head]").nth(3).click()
    assert shown.text("#heads0-name") == "L1H1"
    assert shown.complaints == []
    if "mean" in figures:
        found = np.array(column(shown.figure("heads0-mean"), "value"))
        sums = study.row_sums()[Site("encoder", 1)]
        by_hand = (sums.first[1].double() / sums.rows).flatten().numpy()
        np.testing.assert_allclose(found, by_hand, atol=np.abs(by_hand).max() * 1e-4)
    assert shown.page.locator("#overlap article").count() == (only == "rows")
    assert (shown.page.locator("[data-figure=depth0] svg").count() > 0) == (only == "depth")
    assert "undefined" not in shown.text("main")
    assert "NaN" not in shown.text("main")


def test_encoder_and_decoder_with_attention_between_them(show, tmp_path):
    """Three stacks of attention: every head of every one opens with its own numbers."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    model = T5ForConditionalGeneration(config).eval()
    study = el.study(
        model, torch.randint(1, 50, (20, 15)), tmp_path / "study", only=["rows", "matrices"], **SIZE
    )
    shown = page_of(show, tmp_path, study)
    expected, firsts = study.record()["heads"], set()
    assert len({r["stack"] for r in expected}) == 3
    assert shown.page.locator("[data-head]").count() == 12
    for record in expected:
        stack = record["stack"].removeprefix("decoder.")  # the decoder's other stack is `cross`
        name = f"{stack} L{record['layer']}H{record['head']}"
        shown.page.locator(f'[data-head][aria-label^="{name}:"]').click()
        assert shown.text("#heads0-name") == name
        spectrum = study.spectra.one(
            analysis="rows",
            level="head",
            centring="centred",
            stack=record["stack"],
            layer=record["layer"],
            head=record["head"],
        )
        found = column(
            shown.figure("heads0-spectrum"), "share", analysis="rows", variance="in the sample"
        )
        assert found[0] == pytest.approx(spectrum.explained[0], rel=1e-5)
        firsts.add(found[0])
    assert len(firsts) == 12
    assert shown.complaints == []


def test_grouped_queries_of_a_causal_model(show, tmp_path):
    """Pairs that the mask forbids are left out of the maps."""
    torch.manual_seed(0)
    study = el.study(small_llama(), torch.randint(50, (20, 8)), tmp_path / "study", **SIZE)
    shown = page_of(show, tmp_path, study)
    assert shown.page.locator("[data-head]").count() == 8
    shown.page.locator('[data-head="5"]').click()
    rows = [row for row in shown.figure("heads0-maps") if row["map"].startswith("mean score")]
    mean = list(study.matrix_results.values())[1]["mean"][1].numpy()
    assert {(int(row["query"]), int(row["key"])) for row in rows} == {
        (i, j) for i in range(8) for j in range(i + 1)
    }
    largest = float(np.nanmax(np.abs(mean)))
    for row in rows:
        assert float(row["value"]) == pytest.approx(
            float(mean[int(row["query"]), int(row["key"])]), abs=0.01 * largest
        )


def test_images(show, tmp_path):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for i in range(20):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / "pictures" / f"{i}.png"
        )
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
    )
    model = ViTModel(config, add_pooling_layer=False).eval()
    study = el.study(model, tmp_path / "pictures", tmp_path / "study", max_inputs=20, rank=4)
    shown = page_of(show, tmp_path, study)
    assert shown.page.locator("[data-head]").count() == 4
    shown.page.locator('[data-head="3"]').click()
    # four patches and a class
    assert len([row for row in shown.figure("heads0-vectors") if row["component"] == "1"]) == 5


def test_patterns_instead_of_scores(show, tmp_path, bert, ids):
    study = el.study(bert, ids, tmp_path / "study", of="pattern", **SIZE)
    shown = page_of(show, tmp_path, study)
    assert any(row["map"].startswith("mean pattern") for row in shown.figure("heads0-maps"))


def test_studies_of_different_lengths_are_not_compared(show, tmp_path, bert, ids):
    one = el.study(bert, ids, tmp_path / "one", only=["rows"], **SIZE)
    two = el.study(
        bert, ids[:, :6], tmp_path / "two", only=["rows"], max_inputs=20, max_length=6, rank=4
    )
    shown = page_of(show, tmp_path, one, two)
    assert "These studies are not compared" in shown.text("#between")
    assert "at the same length: " in shown.text("#between")
    assert (
        shown.page.locator("#heads0 [data-head]").count()
        == shown.page.locator("#heads1 [data-head]").count()
        == 4
    )
    shown.page.locator('#heads1 [data-head="2"]').click()
    assert [shown.text("#heads0-name"), shown.text("#heads1-name")] == [
        "L0H0",
        "L1H0",
    ]


@pytest.mark.parametrize("only", ["matrices", "depth"])
def test_two_studies_without_rows_are_not_compared(tmp_path, bert, ids, only):
    studies = [
        el.study(bert, ids, tmp_path / str(i), only=[only], seed=i, **SIZE) for i in range(2)
    ]
    html = el.report(*studies, output=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "These studies are not compared" in html


def test_a_single_head(show, tmp_path):
    """Nothing to share directions with, and nothing to compare: the page still loads."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
    )
    study = el.study(
        BertModel(config, add_pooling_layer=False).eval(),
        torch.randint(50, (20, 4)),
        tmp_path / "study",
        max_inputs=20,
        max_length=4,
    )
    shown = page_of(show, tmp_path, study)
    assert shown.page.locator("[data-head]").count() == 1
    assert shown.page.locator("#overlap article").count() == 0


def test_results_of_other_weights_are_not_mixed(tmp_path, bert, ids, tiny):
    """A plan of one model says nothing of the heads of another."""
    study = el.study(bert, ids, tmp_path / "study", only=["rows"], **SIZE)
    html = el.report(study, tiny.plan, output=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "In the plan its estimator is" not in html
    assert 'value="plan_work"' not in html
    assert 'value="plan_work"' in tiny.page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_twelve_layers_of_twelve_heads_at_128_tokens_stay_under_five_megabytes(tmp_path):
    """The size of a page is a matter of heads and tokens, not of the width of the model."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=96,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=96,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    study = el.study(
        model, torch.randint(50, (8, 128)), tmp_path / "study", max_inputs=8, max_length=128, rank=6
    )
    page = el.report(study, output=tmp_path / "page.html")
    assert page.stat().st_size <= 5_000_000
    assert page.read_text(encoding="utf-8").count("data-head=") == 144


def test_of_several_plans_each_keeps_its_numbers(tmp_path, tiny):
    other = el.plan(tiny.study, budget=0.9, max_inputs=3, estimators=["mean", "exact"])
    results = gather([tiny.study, tiny.plan, other])
    numbers = head_numbers(tiny.study, results)
    for choice, more, record in zip(tiny.plan.choices, other.choices, numbers):
        assert (
            record["plan_total_variation"] == choice.total_variation
            and record["plan_2_estimator"] == more.estimator
        )
    page = el.report(
        tiny.study, tiny.plan, other, output=tmp_path / "new" / "folder" / "page.html"
    ).read_text(encoding="utf-8")
    assert "budget 0.5: Simulated: 4 heads" in page and "budget 0.9: Simulated: 4 heads" in page
