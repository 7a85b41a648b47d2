"""An encoder fine-tuned as a whole with one read-out, which is how the authors try their remedy.

Their models are BERT, RoBERTa and ALBERT on GLUE and others; here it is a smaller encoder on the
sentiment of reviews.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...diagnostics.smoothing import distance
from ...models.load import load
from ...run.progress import Progress
from ...stats.geometry import mean_cosine
from .blocks import block_steps
from .models import Reader, clear_reviews, quarters

if TYPE_CHECKING:
    from . import Scale

LENGTH, BATCH, RATE = 32, 32, 5e-5
SHOWN = 32
"""Of so many of the reviews that are asked for, every depth is kept."""


def tuned_run(read_out: str, scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """Accuracy on the reviews that were not learned from, and how alike tokens are on them.

    The states behind all blocks are fused as they are; dropout is that of the model. For the last
    layer's read-out, `depth` has the similarity at every depth, before and after, and `steps` has
    every block afterwards.
    """
    name = scale.models[0]
    model = load(name)
    texts, labels = clear_reviews(scale.tuned)
    batch = model.tokenizer(
        texts, return_tensors="pt", truncation=True, max_length=LENGTH, padding="max_length"
    )
    ids, mask = batch["input_ids"], batch["attention_mask"]
    generator = torch.Generator().manual_seed(seed)
    learned, asked = quarters(len(labels), generator)
    torch.manual_seed(seed)
    backbone: Any = model.backbone

    def states(rows: Tensor) -> Tensor:
        """Before the first block and behind every block, (B, L + 1, T, C)."""
        out = backbone(input_ids=ids[rows], attention_mask=mask[rows], output_hidden_states=True)
        return torch.stack(out.hidden_states, 1)

    layers = len(states(asked[:1])[0]) - 1
    reader = Reader(read_out, layers, backbone.config.hidden_size)
    plain = read_out == "last layer"
    depth = (
        _depth_rows(name, "pretrained, reviews", states, mask, asked[:SHOWN], seed) if plain else []
    )
    optimiser = torch.optim.AdamW([*backbone.parameters(), *reader.parameters()], lr=RATE)
    backbone.train()
    for epoch in range(scale.tuned_epochs):
        for rows in learned[torch.randperm(len(learned), generator=generator)].split(BATCH):
            loss = F.cross_entropy(reader(states(rows)[:, 1:], mask[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        progress(f"fine-tuning with the read-out {read_out}", epoch + 1, scale.tuned_epochs)
    backbone.eval()
    logits, alike = [], []
    with torch.no_grad():
        for rows in asked.split(BATCH):
            found = states(rows)[:, 1:]
            logits.append(reader(found, mask[rows]))
            alike.append(mean_cosine(reader.fused(found), mask[rows].bool()))
    found_logits = torch.cat(logits)
    right = (found_logits.argmax(1) == labels[asked]).double().mean()
    steps = []
    if plain:
        depth += _depth_rows(name, "fine-tuned, reviews", states, mask, asked[:SHOWN], seed)
        # the bound is for inputs without padding
        alone = [{"input_ids": ids[at, mask[at].bool()][None]} for at in asked[:SHOWN].tolist()]
        steps = [
            {"model": name, "state": "fine-tuned", "seed": seed, **step.row()}
            for step in block_steps(model, alone)
        ]
    row = {"model": f"{name} fine-tuned", "read-out": read_out, "seed": seed}
    numbers = {
        "accuracy": float(right),
        "loss": float(F.cross_entropy(found_logits, labels[asked])),
        "similarity": float(torch.cat(alike).mean()),
    }
    return {"row": {**row, **numbers}, "depth": depth, "steps": steps}


@torch.no_grad()
def _depth_rows(
    name: str, state: str, states: Any, mask: Tensor, some: Tensor, seed: int
) -> list[dict[str, Any]]:
    """Similarity and d_M of each input at each depth; padding is left out."""
    rows, valid = [], mask[some].bool()
    for depth, x in enumerate(states(some).unbind(1)):
        place = {"model": name, "state": state, "seed": seed, "depth": depth}
        pairs = zip(mean_cosine(x, valid).tolist(), distance(x, valid).tolist())
        rows += [
            {**place, "input": int(at), "similarity": alike, "distance": apart}
            for at, (alike, apart) in zip(some, pairs)
        ]
    return rows
