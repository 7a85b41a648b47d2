"""A module in hand comes back as it was given.

Modes, gradients, hooks, attention and random numbers.
"""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
)

import eigenlens as el
from studies.modules_in_hand import (
    IDS,
    SMALL,
    Encoder,
    a_study,
    state_of,
    training_bert,
    training_llama,
)
from tiny import small_llama


def a_plan(model):
    return el.plan(a_study(model), model=model, data=IDS, budget=0.5, max_inputs=4)


BERT = {
    "load": lambda m: el.load(m),
    "study": a_study,
    "study in double": lambda m: el.study(m, IDS, **SMALL, only=("rows", "depth"), float64=True),
    "collapse": lambda m: el.collapse(m, IDS, **SMALL, paths=4, bounds=4),
    "plan": a_plan,
    "evaluate a plan": lambda m: el.evaluate(m, IDS, plan=a_plan(m), max_inputs=4),
    "evaluate a mechanism": lambda m: el.evaluate(
        m, IDS, attention="window", settings={"window": 4}, max_inputs=4, max_length=16
    ),
}


@pytest.mark.parametrize("name", BERT)
def test_whatever_is_done_with_a_module_it_comes_back_as_it_was(name):
    model = training_bert()
    before = state_of(model)
    BERT[name](model)
    assert state_of(model) == before


def test_an_explained_module_comes_back_as_it_was(llama):
    model = AutoModelForCausalLM.from_pretrained(llama).train()
    model.lm_head.requires_grad_(False)
    before = state_of(model)
    el.explain(model, "to be or not to be", tokenizer=AutoTokenizer.from_pretrained(llama))
    assert state_of(model) == before
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("make", [training_bert, training_llama])
def test_a_module_comes_back_after_an_error_in_the_middle(make):
    model = make()
    before = state_of(model)

    class Stop(Exception):
        pass

    def stop(_what, done, _total):
        if done > 4:
            raise Stop

    for run in (el.study, el.collapse):
        with pytest.raises(Stop):
            run(model, IDS, **SMALL, progress=stop)
        assert state_of(model) == before

    def breaks(module, args):
        raise RuntimeError("a broken layer")

    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-2]
    hook = last.register_forward_pre_hook(breaks)
    before = state_of(model)
    for run in (el.study, el.collapse):
        with pytest.raises((el.EigenlensError, RuntimeError), match="a broken layer"):
            run(model, IDS, **SMALL)
        assert state_of(model) == before
    hook.remove()


@pytest.mark.parametrize(
    "run", [el.load, a_study, lambda m: el.collapse(m, IDS, **SMALL, paths=2, bounds=2)]
)
def test_a_training_ends_at_the_same_loss_with_a_study_in_it(run):
    def trained(between):
        model = training_llama()
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            loss = model(IDS, labels=IDS).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1:
                between(model)
        return loss.item()

    assert trained(lambda model: None) == trained(run)


def test_a_plan_registered_for_one_model_is_refused_by_another_copy(tmp_path):
    small_llama().save_pretrained(tmp_path / "m")
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval() for _ in range(2)]
    made = el.plan(
        el.study(models[0], IDS, **SMALL), model=models[0], data=IDS, budget=0.3, max_inputs=4
    )
    el.attention.register("plan-of-one", made.mechanism(models[0]))
    for model in models:
        model.set_attn_implementation("plan-of-one")
    with torch.no_grad():
        plain = LlamaForCausalLM.from_pretrained(tmp_path / "m")(IDS).logits
        assert not torch.allclose(models[0](IDS).logits, plain, atol=1e-3)
        with pytest.raises(el.EigenlensError, match="made for another LlamaModel in memory"):
            models[1](IDS)
        el.attention.register("plan-of-two", made.mechanism(models[1]))
        models[1].set_attn_implementation("plan-of-two")
        torch.testing.assert_close(models[1](IDS).logits, models[0](IDS).logits)


class Merging(nn.Linear):
    """A layer that folds something into its weights in evaluation mode and takes it out in
    training, as adapters do.
    """

    merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += -1.0 if mode else 1.0
            self.merged = not mode
        return self


def test_a_part_that_does_more_in_training_than_set_a_flag_does_it_again():
    model = Encoder().train()
    model.extra = Merging(4, 4)
    before = model.extra.weight.detach().clone()
    a_study(model)
    assert model.extra.training and not model.extra.merged
    torch.testing.assert_close(model.extra.weight, before)


class Fixed(nn.Module):
    """Cannot be moved, as a quantised module cannot."""

    def __init__(self):
        super().__init__()
        self.inner = Encoder()

    def to(self, *args, **kwargs):
        raise ValueError("`.to` is not supported")

    def forward(self, ids):
        return self.inner(ids)


def test_a_module_that_cannot_be_moved_is_studied_where_it_is():
    model = Fixed().train()
    a_study(model)
    assert model.training and model.inner.training
    with pytest.raises(el.EigenlensError, match="cannot be put on the device meta"):
        el.study(model, IDS, **SMALL, device="meta")
    assert model.training and model.inner.training


def test_what_a_sink_runs_is_not_the_models():
    model, other, seen = Encoder().eval(), Encoder().eval(), []

    def sink(call):
        seen.append(str(call.site))
        other(IDS[:1])

    with torch.no_grad(), el.capture(model, sink):
        model(IDS[:2])
    assert seen == ["self/0", "self/1"]


def test_a_model_with_a_plan_can_be_copied_and_calls_can_be_saved(tmp_path):
    model = small_llama()
    made = el.plan(el.study(model, IDS, **SMALL), model=model, data=IDS, budget=0.3, max_inputs=4)
    made.mechanism(model)
    el.study(model, IDS, **SMALL, only="depth", float64=True)  # of a copy
    with torch.no_grad(), el.capture(model) as calls:
        model(IDS[:2], attention_mask=torch.arange(16)[None].expand(2, -1).ge(4).long())
    torch.testing.assert_close(copy.deepcopy(calls[1]).pattern(), calls[1].pattern())
