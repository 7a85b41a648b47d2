"""Measures what studies really hold beside what the formula says.

`python measured.py FOLDER CASES`: CASES is JSON, a list of settings of `case`. Every case is a
child of this process, which has the libraries loaded: its peak is its own. Prints a JSON object a
case: the formula's bytes and the measured ones.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from eigenlens import load, study
from eigenlens.data.inputs import Request, prepare
from eigenlens.studies.memory import study_memory
from eigenlens.studies.options import Options
from eigenlens.studies.survey import matrix_form, probe
from tiny import VOCABULARY


def status(name):
    """Bytes of a line of this process's status.

    What it made itself (RssAnon), what it mapped of files (RssFile), the peak.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def case(
    folder,
    causal,
    layers,
    heads,
    length,
    inputs,
    only,
    words=False,
    batch=None,
    shard=None,
    **options,
):
    """A model of `layers` × `heads` at random init over random ids, or over `words`, texts of
    different lengths.
    """
    shape = {
        "vocab_size": VOCABULARY if words else 500,
        "hidden_size": 8 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 64,
        "max_position_embeddings": length,
        "initializer_range": 0.2,
    }
    module = (
        LlamaModel(LlamaConfig(**shape))
        if causal
        else BertModel(BertConfig(**shape), add_pooling_layer=False)
    )
    model = load(module.eval(), tokenizer=load("minilm").tokenizer if words else None)
    data = folder / ("texts.jsonl" if words else "ids.npy")
    if words:
        texts = ["so many words " * (1 + (7 * i) % (length // 3)) for i in range(4 * inputs)]
        data.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    else:
        np.save(data, np.random.default_rng(0).integers(0, 500, (inputs, length), dtype=np.int32))
    request = Request((str(data),), length, inputs, padding=words)
    asked = Options(request, tuple(only), batch_size=batch, shard_size=shard, **options)
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    ready = prepare(model, request, spool)
    sites = probe(model, ready, asked)
    matrix, _ = matrix_form(sites, ready, asked)
    kept = tuple(name for name in only if name != "matrices" or matrix is not None)
    memory = study_memory(model, ready, sites, replace(asked, only=kept), matrix)
    # pages of libraries are not what a study holds
    study(model, np.ones((8, 8), dtype=np.int32), max_length=8, only=only)
    before = status("RssAnon")
    sizes = {"max_length": length, "max_inputs": inputs, "batch_size": batch, "shard_size": shard}
    made = study(model, data, only=only, padding=words, **sizes, **options)
    assert made.stored["options"]["matrices_by"] == matrix
    formula = memory.needed - memory.parts["program"]  # which the first one has loaded
    return {
        "formula": formula,
        "measured": status("VmHWM") - status("RssFile") - before,
        "moment": memory.moment,
        "matrix": matrix,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for given in json.loads(sys.argv[2]):
        child = os.fork()
        if not child:
            print(json.dumps(case(Path(sys.argv[1]), **given)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
