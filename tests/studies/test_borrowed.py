"""A module in hand comes back as it was given: modes, gradients, hooks, attention and random
numbers.
"""

import copy
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    LlamaForCausalLM,
)

import eigenlens as el
from eigenlens.captures.borrowed import borrowed
from tiny import small_bert, small_llama, tiny_llama

IDS = torch.randint(1, 50, (24, 16), generator=torch.Generator().manual_seed(5))
SMALL = {"length": 16, "inputs": 24}


def training_bert():
    """In training with dropout, but for one frozen part in evaluation mode; on eager attention,
    with a hook of its owner's.
    """
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = BertModel(
        BertConfig(vocab_size=50, initializer_range=0.3, **sizes), add_pooling_layer=False
    )
    model.set_attn_implementation("eager")
    model.train()
    model.encoder.layer[0].eval()
    model.embeddings.requires_grad_(False)
    model.encoder.layer[1].register_forward_hook(lambda *_: None)
    return model


def training_llama():
    model = small_llama()
    for part in model.modules():
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.1
    return model.train()


def state_of(model):
    """Everything of a module, and of the process, that nobody may leave changed."""
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_forward_hooks_with_kwargs",
    )
    return {
        "modes": {name: m.training for name, m in model.named_modules()},
        "gradients": {name: p.requires_grad for name, p in model.named_parameters()},
        "hooks": {
            (name, kind): tuple(getattr(m, kind))
            for name, m in model.named_modules()
            for kind in hooks
        },
        "weights": {
            name: (x.data_ptr(), x.dtype, x.device, x.double().sum().item())
            for name, x in model.state_dict().items()
        },
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "random": (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ),
        "threads": torch.get_num_threads(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
    }


def a_study(model):
    return el.study(model, IDS, **SMALL, rank=4, depth_every=1, diagnostics_every=1)


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


def test_an_explained_module_comes_back_as_it_was(tmp_path):
    folder = tiny_llama(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(folder).train()
    model.lm_head.requires_grad_(False)
    before = state_of(model)
    el.explain(model, "to be or not to be", tokenizer=AutoTokenizer.from_pretrained(folder))
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


@pytest.mark.parametrize("make", [training_bert, training_llama])
def test_two_studies_of_one_module_in_two_threads(make):
    """One waits for the other: both have the numbers of a study that was alone, and the module is
    as it was.
    """
    model = make()
    before = state_of(model)
    alone = a_study(model)
    found, failed = [], []

    def run():
        try:
            found.append(a_study(model))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for other in found:
        for a, b in zip(alone.spectra, other.spectra, strict=True):
            np.testing.assert_array_equal(a.eigenvalues, b.eigenvalues)
            np.testing.assert_array_equal(a.held_out, b.held_out)
    after = state_of(model)
    assert {**after, "random": None} == {**before, "random": None}


class Encoder(nn.Module):
    """A user's own module around torch's."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.embed, self.layers = (
            nn.Embedding(50, 32),
            nn.ModuleList([layer, nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)]),
        )

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_thread_that_only_uses_the_module_is_not_captured():
    for model in (small_bert(), Encoder().eval()):
        go, done, shapes = threading.Event(), threading.Event(), []

        def use(model=model, go=go, done=done):
            go.wait(120)
            with torch.no_grad():
                model(IDS[:7, :5])
            done.set()

        thread = threading.Thread(target=use)
        thread.start()

        def sink(call, go=go, done=done, shapes=shapes):
            go.set()
            assert done.wait(120)  # the other one runs while this call is being seen
            shapes.append((str(call.site), tuple(call.q.shape)))

        with torch.no_grad(), el.capture(model, sink):
            model(IDS[:2])
        thread.join()
        stack = "encoder" if isinstance(model, BertModel) else "self"
        assert shapes == [(f"{stack}/{layer}", (2, 4, 16, 8)) for layer in (0, 1)]
    assert torch.backends.mha.get_fastpath_enabled()


def test_two_modules_with_one_config_in_two_threads():
    """Neither is left on the attention of capture, whichever ends first."""
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    models = [BertModel(config, add_pooling_layer=False).eval() for _ in range(2)]
    second, first_closed = threading.Event(), threading.Event()

    def later():
        with torch.no_grad(), el.capture(models[1]) as calls:
            second.set()
            assert first_closed.wait(120)
            models[1](IDS[:2])
        assert len(calls) == 2

    thread = threading.Thread(target=later)
    with torch.no_grad(), el.capture(models[0]) as calls:
        thread.start()
        assert second.wait(120)
        models[0](IDS[:2])
    first_closed.set()
    thread.join()
    assert len(calls) == 2
    assert config._attn_implementation == "sdpa"


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


def test_a_registered_plan_serves_several_threads():
    model = small_llama()
    made = el.plan(el.study(model, IDS, **SMALL), model=model, data=IDS, budget=0.3, max_inputs=4)
    el.attention.register("plan-in-threads", made.mechanism(model))
    model.set_attn_implementation("plan-in-threads")
    with torch.no_grad():
        expected = model(IDS).logits
    found = []

    def use():
        with torch.no_grad():
            found.append(model(IDS).logits)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for logits in found:
        torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("how", ["wrapped", "in place", "a part", "own module"])
def test_a_compiled_module_is_studied_as_the_one_it_was_made_of(how):
    def plain():
        torch.manual_seed(0)
        return Encoder().eval() if how == "own module" else small_bert()

    model = plain()
    if how in ("wrapped", "own module"):
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.encoder.layer[0] = torch.compile(model.encoder.layer[0], backend="eager")
    with torch.no_grad():
        model(IDS[:2])  # compiled by now
    options = {**SMALL, "only": ("rows", "depth")}
    found, expected = el.study(model, IDS, **options), el.study(plain(), IDS, **options)
    assert found.facts.model.fingerprint == expected.facts.model.fingerprint
    for a, b in zip(found.spectra, expected.spectra, strict=True):
        np.testing.assert_allclose(a.eigenvalues, b.eigenvalues, rtol=1e-5, atol=1e-9)
    with torch.no_grad(), el.capture(model) as calls:
        model(IDS[:2])
    assert len(calls) == 2
    assert torch._dynamo.eval_frame._stance.stance == "default"
    el.collapse(model, IDS, **SMALL, paths=0, bounds=0, variants=["full"])


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


def test_a_model_and_its_backbone_are_one_model_to_two_threads():
    model = training_llama()
    order = []

    def second():
        with borrowed(model.model):
            order.append("second")

    with borrowed(model):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and model.model.training


def test_a_capture_may_end_in_another_thread():
    model = small_bert()
    opened = el.capture(model)
    opened.__enter__()
    with torch.no_grad():
        model(IDS[:2])
    thread = threading.Thread(target=opened.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with torch.no_grad(), el.capture(model) as calls:
        model(IDS[:2])
    assert len(calls) == 2 and model.config._attn_implementation == "sdpa"


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
