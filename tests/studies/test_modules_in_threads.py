"""A module in hand that several threads use or study.

Each gets its own numbers, and the module comes back as it was.
"""

import threading

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import eigenlens as el
from eigenlens.captures.borrowed import evaluation_mode
from studies.modules_in_hand import (
    IDS,
    SMALL,
    Encoder,
    a_study,
    state_of,
    training_bert,
    training_llama,
)
from tiny import small_bert, small_llama


@pytest.mark.parametrize("make", [training_bert, training_llama])
def test_two_studies_of_one_module_in_two_threads(make):
    """One waits for the other.

    Both have the numbers of a study that was alone, and the module is as it was.
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


def test_a_model_and_its_backbone_are_one_model_to_two_threads():
    model = training_llama()
    order = []

    def second():
        with evaluation_mode(model.model):
            order.append("second")

    with evaluation_mode(model):
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
