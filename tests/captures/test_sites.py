"""A capture and a study name the attention of a model alike."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

import eigenlens as el
from eigenlens.captures import AttentionCall, Site, SiteInfo, attention_kinds
from tiny import SMALL, small_gpt2, small_llama, small_t5

MODELS = {
    "llama": (small_llama, ["self/0", "self/1"]),
    "llama classifier": (
        lambda: LlamaForSequenceClassification(LlamaConfig(**SMALL, pad_token_id=0)),
        ["self/0", "self/1"],
    ),
    "bert": (lambda: BertForMaskedLM(BertConfig(**SMALL)), ["encoder/0", "encoder/1"]),
    "roberta": (
        lambda: RobertaForSequenceClassification(RobertaConfig(**SMALL)),
        ["encoder/0", "encoder/1"],
    ),
    "gpt2": (small_gpt2, ["self/0", "self/1"]),
    "t5": (
        small_t5,
        ["encoder/0", "decoder/0", "decoder.cross/0"],
    ),
}


@pytest.mark.parametrize("family", MODELS)
def test_a_capture_of_a_model_with_its_head_has_the_names_of_its_study(family):
    make, wanted = MODELS[family]
    torch.manual_seed(0)
    model = make().eval()
    ids = torch.randint(2, 50, (12, 9))
    given = {"input_ids": ids[:2]} | ({"decoder_input_ids": ids[:2]} if family == "t5" else {})
    with el.capture(model) as calls:
        model(**given)
    with el.capture(model.base_model) as bare:
        model.base_model(**given)
    names = [str(call.site) for call in calls]
    assert names == [str(call.site) for call in bare] == wanted
    assert sorted(names) == sorted(map(str, el.study(model, ids.numpy(), only="rows").sites))
    modules = dict(model.named_modules())
    # the name of a call is its path in the model that was given
    assert all(call.name in modules for call in calls)


def test_a_module_that_is_not_of_the_library_is_named_by_its_own_paths():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, batch_first=True), 2, enable_nested_tensor=False
            )
            self.base_model = self.model  # a name that the library gives another meaning

        def forward(self, input_ids):
            return self.model(torch.nn.functional.one_hot(input_ids, 8).float())

    module = Wrapped()
    ids = np.random.default_rng(0).integers(0, 8, (12, 6))
    with el.capture(module) as calls:
        module(torch.from_numpy(ids))
    assert (
        [str(call.site) for call in calls]
        == [str(site) for site in el.study(module, ids, only="rows").sites]
        == ["model/0", "model/1"]
    )


def test_what_is_known_of_a_site_is_what_its_call_shows_and_comes_back_from_json():
    """Four query heads share two key-value heads under a causal mask; 1 + … + 5 = 15 pairs."""
    q, k = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 5, 8)
    call = AttentionCall(Site("self", 1), "self", "layers.1.attn", q, k, k, 1.0, causal=True)
    info = SiteInfo.of_call(call)
    record = {
        "kind": "self",
        "name": "layers.1.attn",
        "heads": 4,
        "kv_heads": 2,
        "queries": 5,
        "keys": 5,
        "head_dimension": 8,
        "mask": "causal",
        "linear": True,
        "pairs": 15,
    }
    assert list(info.record().items()) == list(record.items())
    assert SiteInfo.of(json.loads(json.dumps(record))) == info
    older = {key: x for key, x in record.items() if key != "linear"}
    assert SiteInfo.of({**older, "written by": "another version"}) == info
    capped = SiteInfo.of_call(replace(call, softcap=30.0))
    assert not capped.linear and capped == replace(info, linear=False)
    assert attention_kinds({Site("self", 1): info}) == {"layers.1.attn": "self"}
