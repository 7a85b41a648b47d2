"""Plans that leave keys out: made from a study, kept, applied and evaluated."""

import copy
import gc
import json
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.attention import planned_attention
from eigenlens.attention.head_keys import keep_keys
from eigenlens.captures import AttentionCall, Site
from eigenlens.plans.gradients import TaskGradients, task_gradients
from eigenlens.plans.menu import try_options
from eigenlens.plans.sparse_plan import SparsePlan
from tiny import small_bert, small_llama, some_text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("long")


@pytest.fixture(scope="module")
def study(place, llama):
    return el.study(
        llama,
        some_text(place / "text.txt", documents=40),
        place / "study",
        max_length=32,
        max_inputs=20,
        only=["moments", "rows"],
    )


@pytest.fixture(scope="module")
def plan(place, study):
    return el.plan(study, budget=0.6, blocks=True, max_length=768, output_dir=place / "plan")


def ids(length):
    return torch.randint(1000, 20_000, (1, length), generator=torch.Generator().manual_seed(1))


def test_every_query_head_has_a_form_and_the_budget_is_kept(plan):
    assert len(plan.choices) == 8 and plan.work <= 0.6 + 1e-9
    assert {choice.estimator for choice in plan.choices} <= {"dense", "window", "blocks", "ranked"}
    assert not plan.simulated and plan.kind == "plan" and "full attention" in plan.sentence


def test_a_budget_for_everything_is_dense(study, llama):
    dense = el.plan(study, budget=1.0, blocks=True, max_length=640)
    model = el.load(llama).module
    with torch.no_grad():
        before = model(ids(600)).logits
        with dense.applied(model):
            after = model(ids(600)).logits
    assert (after - before).abs().max() < 1e-3 * before.abs().max()


def test_the_planned_model_is_the_masked_formula_in_every_layer(place, plan, llama):
    """Against a forward in which every layer is dense and masked, with the forms of the plan."""
    again, model = el.Plan.open(place / "plan"), el.load(llama).module
    assert again.rows() == plan.rows() and again.record() == plan.record()

    def reference(call):
        forms = again.sparse.layers[call.site]
        kept = keep_keys(call.q, call.k, call.v, forms, scale=call.scale)
        T = call.q.shape[2]
        scores = call.q @ call.keys.mT * call.scale
        pattern = torch.softmax(scores.masked_fill(~kept.mask(T, T), -torch.inf), -1)
        out = pattern @ call.values
        if kept.weight is None:
            return out
        rows = torch.arange(T) // forms.block
        weight = kept.weight[:, :, rows, None].clone()
        weight[:, :, -forms.last :] = 0.0  # the last queries attend to every key
        return (1 - weight) * out + weight * kept.mean[:, :, rows]

    with torch.no_grad():
        plain = model(ids(768)).logits
        with el.replace_attention(model.model, reference):
            expected = model(ids(768)).logits
        with again.applied(model):
            planned = model(ids(768)).logits
    torch.testing.assert_close(planned, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(planned, plain, atol=1e-3)


def test_calls_it_does_not_cover_are_exact_and_counted(place, llama):
    plan, model = el.Plan.open(place / "plan"), el.load(llama).module
    with torch.no_grad():
        plain = {length: model(ids(length)).logits for length in (100, 800)}
        with plan.applied(model):
            for length, logits in plain.items():  # too short, and longer than it was made for
                torch.testing.assert_close(model(ids(length)).logits, logits)
            model(ids(700))
    assert plan.tally.record() == {"planned": 2, "short": 2, "long": 2}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_are_planned(plan, llama, side):
    """Every text of a padded batch gets what it gets alone, up to the blocks it falls into."""
    model = el.load(llama).module
    short, long = ids(640)[0, :640], ids(760)[0]
    batch = torch.zeros(2, 760, dtype=torch.long)
    mask = torch.zeros(2, 760, dtype=torch.long)
    where = slice(120, None) if side == "left" else slice(0, 640)
    batch[0, where], mask[0, where] = short, 1
    batch[1], mask[1] = long, 1
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    plan.tally.planned = 0
    with torch.inference_mode(), plan.applied(model):
        both = model(batch, attention_mask=mask, position_ids=positions).logits
        alone = model(long[None]).logits[0]
    assert plan.tally.planned == 4
    torch.testing.assert_close(both[1], alone, atol=2e-4, rtol=2e-4)
    if side == "right":
        with torch.inference_mode(), plan.applied(model):
            single = model(short[None]).logits[0]
        torch.testing.assert_close(both[0, :640], single, atol=2e-4, rtol=2e-4)
    assert bool(both[0, where].isfinite().all())


def test_it_is_installed_for_good_and_taken_out_again(plan, llama):
    model = el.load(llama).module
    with torch.no_grad():
        plain = model(ids(768)).logits
        with plan.applied(model):
            expected = model(ids(768)).logits
        plan.install(model)
        torch.testing.assert_close(model(ids(768)).logits, expected)
        plan.install(model)  # again: nothing is stacked
        torch.testing.assert_close(model(ids(768)).logits, expected)
        out = model.generate(ids(700), max_new_tokens=3, do_sample=False)
        assert out.shape[1] == 703
        plan.uninstall(model)
        torch.testing.assert_close(model(ids(768)).logits, plain)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(el.EigenlensError, match="no plan is installed"):
        plan.uninstall(model)


def test_copies_and_siblings_of_an_installed_model_attend_as_before(plan, llama):
    model = el.load(llama).module
    with torch.no_grad():
        plain = model(ids(768)).logits
        plan.install(model)
        planned = model(ids(768)).logits
        copied, sibling = copy.deepcopy(model), type(model)(model.config)
        sibling.load_state_dict(model.state_dict())
        plan.tally.reset()
        for other in (copied, sibling):
            torch.testing.assert_close(other(ids(768)).logits, plain)
        assert plan.tally.planned == 0
        torch.testing.assert_close(model(ids(768)).logits, planned)
        plan.uninstall(model)
        for other in (model, copied, sibling):
            torch.testing.assert_close(other(ids(768)).logits, plain)


def test_a_model_with_a_plan_is_freed_and_a_program_with_one_ends_quietly(plan, llama, place):
    model = el.load(llama).module
    plan.install(model)
    backbone = weakref.ref(model.model)
    del model
    gc.collect()
    assert backbone() is None
    code = "import eigenlens as el; m = el.load({!r}); el.Plan.open({!r}).install(m)"
    done = subprocess.run(
        [sys.executable, "-c", code.format(str(llama), str(place / "plan"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Exception" not in done.stderr, done.stderr


def test_every_part_of_a_model_gets_its_own_attention_back(plan, llama):
    model = el.load(llama).module
    model.config._attn_implementation_internal = "eager"
    plan.install(model)
    assert model.config._attn_implementation == "eigenlens-installed"
    plan.uninstall(model)
    assert model.config._attn_implementation == "eager"
    with plan.applied(model):
        with pytest.raises(el.EigenlensError, match="install the plan before the block or after"):
            plan.install(model)
        model(ids(700))


def test_a_prompt_read_into_a_longer_cache_is_exact_and_counted(plan, llama):
    model = el.load(llama).module
    plan.tally.reset()
    with torch.inference_mode(), plan.applied(model):
        model.generate(ids(700), max_new_tokens=2, do_sample=False, cache_implementation="static")
    assert plan.tally.record() == {"planned": 0, "cache": 2, "decoding": 2}


def test_an_evaluation_counts_for_itself_and_notices_other_data(place, study, plan, llama):
    plan.tally.reset()
    found = el.evaluate(llama, plan=plan, max_inputs=2)
    assert plan.tally.record() == {"planned": 0} and not any("changed" in n for n in found.notes)
    text = place / "text.txt"
    before = text.read_text()
    text.write_text(before[::-1])
    try:
        found = el.evaluate(llama, plan=plan, max_inputs=2)
    finally:
        text.write_text(before)
    assert any("the data has changed since the plan was made" in note for note in found.notes)


def test_it_serves_a_module_of_ones_own(tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 32)

        def forward(self, x):
            h = self.emb(x).unflatten(2, (2, 16)).transpose(1, 2)
            a = torch.nn.functional.scaled_dot_product_attention(h, h, h, is_causal=True)
            return self.out(a.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, tokens = Own().eval(), np.random.default_rng(0).integers(0, 50, (12, 600))
    studied = el.study(model, tokens, tmp_path / "own", only=["moments"])
    made = el.plan(studied, budget=0.7, blocks=True, max_length=600, model=model, data=tokens)
    x = torch.from_numpy(tokens[:1])
    with torch.no_grad():
        plain = model(x)
        made.install(model)
        planned = model(x)
        made.uninstall(model)
        assert torch.equal(model(x), plain)
    assert made.tally.planned == 1 and not torch.equal(planned, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_precision_of_the_same_weights_is_served(plan, llama, dtype):
    model = el.load(llama).module.to(dtype)
    plan.tally.planned = 0
    with torch.inference_mode(), plan.applied(model):
        out = model(ids(700)).logits
    assert out.dtype == dtype and plan.tally.planned == 2
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(1.05)
    with pytest.raises(el.EigenlensError, match="the plan was made for"), plan.applied(model):
        pass


def test_it_is_evaluated_beside_the_unchanged_model(place, plan, llama):
    found = el.evaluate(llama, plan=place / "plan", max_inputs=2)
    rows = {row["measure"]: row for row in found.rows()}
    assert 0 < rows["relative error of the attention output"]["planned"] < 1
    assert rows["perplexity"]["plain"] > 1 and rows["perplexity"]["change"] is not None
    rise = rows["rise of the perplexity, mean over inputs"]
    assert rise["low"] <= rise["planned"] <= rise["high"]
    for name in (
        "seconds of attention, per input",
        "seconds to the first token, per input",
        "most memory of a pass, MB beyond the model",
    ):
        assert rows[name]["plain"] > 0, name
    assert "its attention alone" in found.sentence and "95 % interval" in found.sentence
    assert found.facts.length == 768 and len(found.heads) == 8 and not found.simulated
    found.plot().to_dict()
    plan.plot().to_dict()


def test_an_evaluation_says_how_many_calls_were_exact(place, plan, llama):
    found = el.evaluate(llama, place / "text.txt", plan=plan, max_inputs=1, max_length=256)
    assert {head["work"] for head in found.heads} == {1.0}
    assert found.notes[-1] == (
        "2 of 2 attention calls were attended exactly: 2 for inputs too short to save anything"
    )


def test_the_work_of_an_evaluation_is_that_of_the_masks(place, plan, llama):
    token_ids = np.random.default_rng(0).integers(1000, 1010, (2, 700))
    np.save(place / "few_words.npy", token_ids)
    found = el.evaluate(llama, place / "few_words.npy", plan=plan, max_inputs=2, max_length=700)
    shares = []

    def count(call):
        forms = plan.sparse.layers[call.site]
        kept = keep_keys(call.q, call.k, call.v, forms, scale=call.scale)
        pairs = kept.mask(700, 700).sum((2, 3)).double().mean(0) / (700**2 / 2)
        for h, form in enumerate(forms.heads):
            if form.kind == "dense":
                pairs[h] = 1
            elif form.chooses:
                pairs[h] += form.samples / 128 * (form.rank / 16 or 1) / 2
                pairs[h] += (form.correction > 0) / 128 / 2
        shares.append(pairs)

    model = el.load(llama)
    with torch.no_grad(), el.capture(model.backbone, count):
        model.module(torch.from_numpy(token_ids))
    work = torch.tensor([head["work"] for head in found.heads]).double()
    torch.testing.assert_close(work, torch.cat(shares), atol=1e-6, rtol=1e-6)
    assert f"This takes {100 * work.mean():.1f} % of the work of full attention" in found.sentence


def test_what_cannot_be_planned_is_refused(study):
    with pytest.raises(el.EigenlensError, match="saves nothing at 512 tokens"):
        el.plan(study, budget=0.5, blocks=True, max_length=512)
    with pytest.raises(el.EigenlensError, match="must be above 0"):
        el.plan(study, budget=0.0, blocks=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"blocks": True}, r"needs a budget, such as budget=0\.3 \(--budget 0\.3\)"),
        ({"blocks": True, "error": 0.1}, "takes only a budget, and no error"),
        ({"loss": 0.1, "budget": 0.5}, "takes only a loss, and no budget"),
        ({"loss": 0.1, "blocks": True}, "finds the forms of heads by itself"),
        (
            {"blocks": True, "budget": 0.5, "estimators": "mean", "seed": 1},
            "takes only a budget, and no estimators and no seed",
        ),
        ({"budget": 0.5, "max_length": 640}, "has the length of its study"),
        ({"loss": "much"}, "between 0 and 1 such as 0.01, or percent such as 1%, not 'much'"),
        ({"loss": 1.5}, "not 1.5"),
        ({"loss": "150%"}, "not '150%'"),
        ({"loss": 0}, "not 0"),
        ({"loss": float("nan")}, "not nan"),
    ],
)
def test_options_that_make_no_sense_are_refused(study, given, said):
    with pytest.raises(el.EigenlensError, match=said):
        el.plan(study, **given)


def call(T=640, sharpness=(6.0, 0.1), seed=0, layer=0, **extras):
    """Two key-value heads of three query heads: one looks at few keys, the other at all alike."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, T, 16, generator=g) for heads in (6, 2, 2))
    q = q * torch.tensor(sharpness).repeat_interleave(3)[:, None, None]
    return AttentionCall(
        Site("self", layer), "self", "", q, k, v, 0.25, **({"causal": True} | extras)
    )


@pytest.mark.parametrize(
    ("causal", "length", "before_picture"),
    [(True, 640, None), (False, 640, None), (False, 626, 1)],
)
@pytest.mark.parametrize("of_tokens", [True, False])
def test_errors_of_the_menu_are_those_of_the_output(causal, length, before_picture, of_tokens):
    """Of every option at its best correction, against the output and the given gradient."""
    c, site = call(length, causal=causal), Site("self", 0)
    gradient = torch.randn(1, 6, length, 16, generator=torch.Generator().manual_seed(1))
    gradients = TaskGradients([{site: gradient}], of_tokens)
    tried = try_options(c, gradients, before_picture=before_picture)
    true = c.pattern() @ c.values
    for i, option in enumerate(tried.options):
        forms = tried.forms([i] * 6)
        out = planned_attention(c.q, c.k, c.v, forms, scale=c.scale)
        effects = ((out - true).double() * gradient).sum(3)
        effects = effects if of_tokens else effects.sum(2, keepdim=True)
        expected = effects.square().sum((0, 2))
        torch.testing.assert_close(
            tried.error[i], expected, rtol=5e-2, atol=1e-5, msg=lambda m, o=option: f"{o}: {m}"
        )
    # causal models gain nothing by it
    assert any(option.kind == "pooled" for option in tried.options) is not causal
    # a lower threshold costs more and errs less, before the correction
    blocks = [i for i, option in enumerate(tried.options) if option.kind == "blocks"]
    assert (tried.pairs[blocks].diff(dim=0) >= 0).all()
    assert not of_tokens or (tried.x[blocks[-1]] <= tried.x[blocks[0]]).all()


def test_what_the_plan_does_not_know_is_left_to_the_model():
    ones = TaskGradients([{Site("self", 0): torch.ones(1, 6, 640, 16)}], True)
    tried = try_options(call(), ones)
    made = SparsePlan({Site("self", 0): tried.forms([3] * 6)}, 640)
    odd = torch.ones(1, 1, 640, 640).tril().bool()
    odd[..., 300:, 5:9] = False
    for other, why in (
        (call(layer=7), "layer"),
        (call(causal=False, mask=odd), "mask"),
        (call(softcap=2.0), "scores"),
        (call(T=700), "long"),
        (call(causal=False), "mask"),
    ):
        assert made.attend(other) is None and made.uncovered(other)[0] == why
    assert made.attend(call()) is not None
    again = SparsePlan.from_record(json.loads(json.dumps(made.record())), made.tensors, 640)
    assert torch.equal(again.attend(call(seed=2)), made.attend(call(seed=2)))


def test_gradients_are_those_of_the_loss():
    """Against a finite difference along a direction of one layer's heads."""
    model = small_llama()
    tokens = torch.randint(0, 50, (1, 24), generator=torch.Generator().manual_seed(0))
    gradients = task_gradients(el.load(model), {"input_ids": tokens})
    assert gradients.of_tokens and len(gradients.sets) == 1
    slope = gradients.sets[0][Site("self", 1)]
    direction, weight = slope.sign() * (1 + slope.abs()), 1e-2

    def loss(step):
        hook = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(
            lambda m, args: (args[0] + step * direction.transpose(1, 2).flatten(2),)
        )
        with torch.no_grad():
            logits = model(tokens, use_cache=False).logits.double()
        hook.remove()
        return torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="sum")

    expected = (loss(weight) - loss(-weight)) / (2 * weight)
    assert (slope * direction).sum().item() == pytest.approx(expected.item(), rel=1e-2)
    assert all(p.requires_grad for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"


def test_gradients_of_an_encoder_are_those_of_its_embedding_in_random_directions():
    model = el.load(small_bert())
    tokens = torch.randint(0, 50, (1, 24), generator=torch.Generator().manual_seed(0))
    found = task_gradients(model, {"input_ids": tokens})
    gradients = found.sets
    assert not found.of_tokens
    assert len(gradients) == 4 and set(gradients[0]) == {Site("encoder", 0), Site("encoder", 1)}
    directions = torch.randn(4, 1, 32, generator=torch.Generator().manual_seed(0))
    step = torch.randn(1, 4, 24, 8, generator=torch.Generator().manual_seed(2)) * 1e-2

    def embedding(sign):
        hook = model.module.encoder.layer[0].attention.output.dense.register_forward_pre_hook(
            lambda m, args: (args[0] + sign * step.transpose(1, 2).flatten(2),)
        )
        with torch.no_grad():
            hidden = model.module(tokens).last_hidden_state.mean(1)
        hook.remove()
        return torch.nn.functional.normalize(hidden, dim=-1)

    turned = (embedding(1) - embedding(-1)) / 2
    for z, grads in zip(directions, gradients):
        found = (grads[Site("encoder", 0)] * step).sum()
        assert found.item() == pytest.approx((turned * z).sum().item(), rel=5e-2, abs=1e-5)
