#!/bin/sh
# Which heads matter, and what did a fine-tune change? The commands of heads_and_fine_tunes.ipynb.
#
#     sh examples/heads_and_fine_tunes.sh [FOLDER]
#
# Everything is written into FOLDER (default: heads_and_fine_tunes), which is made anew.
set -eu
out=${1:-heads_and_fine_tunes}
mkdir -p "$out"

# A fine-tune of minilm in plain PyTorch: are the words of a text in order, or shuffled? It writes
# the tuned model into a folder, and token ids of held-out texts into a file. Fewer steps than in
# the notebook, and heads are not taken away one by one: that needs Python.
OUT=$out python - <<'PYTHON'
import os
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import eigenlens as el

torch.manual_seed(0)
model = el.load("minilm")
tuned, tokenizer = model.module, model.tokenizer


def pieces(names):
    """Token ids (pieces, 24) of some topics, in random order."""
    texts = [topics[name] for name in names]
    found = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    ids = torch.tensor([number for text in found for number in text])
    ids = F.pad(ids[: len(ids) // 22 * 22].view(-1, 22), (1, 1))
    ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    return ids[torch.randperm(len(ids))]


train, held_out = pieces(sorted(topics)[1::2]), pieces(sorted(topics)[::2])
classifier = nn.Linear(tuned.config.hidden_size, 1)
tuned.embeddings.requires_grad_(False)
learned = [p for p in (*tuned.parameters(), *classifier.parameters()) if p.requires_grad]
optimizer = torch.optim.AdamW(learned, lr=2e-4)
for step in range(15):
    ids, label = train[16 * step : 16 * step + 16], torch.arange(16) % 2
    for row in ids[1::2]:
        row[1:-1] = row[1:-1][torch.randperm(22)]
    found = classifier(tuned(ids).last_hidden_state.mean(1))[:, 0]
    loss = F.binary_cross_entropy_with_logits(found, label.float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"the loss of the last step is {loss.item():.2f}; {np.log(2):.2f} would be a guess")
tuned.save_pretrained(os.environ["OUT"] + "/tuned")
np.save(os.environ["OUT"] + "/held_out.npy", held_out[:64].numpy())
PYTHON

# The base model and the tuned one on the same texts, and which heads count in each.
for model in minilm "$out/tuned"; do
  eigenlens study "$model" "$out/held_out.npy" -o "$out/study-$(basename "$model")" --overwrite \
    --only rows,diagnostics
done

# What changed: the directions that the heads of both share, and the head that changed most in each
# diagnostic; relevance is the share of a head in what its layer gives.
eigenlens compare "$out/study-minilm" "$out/study-tuned"

# Both studies on one page, head by head.
eigenlens report "$out/study-minilm" "$out/study-tuned" -o "$out/report.html"
