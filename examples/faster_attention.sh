#!/bin/sh
# Make a model faster at a loss you name: the commands of faster_attention.ipynb.
#
#     sh examples/faster_attention.sh [FOLDER]
#
# Everything is written into FOLDER (default: faster_attention), which is made anew. For a language
# model: MODEL=smollm2 DATA=wikipedia LENGTH=4096 sh examples/faster_attention.sh
set -eu
out=${1:-faster_attention}
data=${DATA:-skimage}
length=${LENGTH:-901}
mkdir -p "$out"

# The first 2 of the 12 layers of DINOv2-small, fewer than in the notebook, so that it takes
# seconds; a model that you name stays whole.
model=${MODEL:-}
if [ -z "$model" ]; then
  model=$out/model
  OUT=$model python - <<'PYTHON'
import os

import eigenlens as el

module = el.load("dinov2-small").module
module.encoder.layer = module.encoder.layer[:2]
config = module.config
config.num_hidden_layers, config.stage_names = 2, config.stage_names[:3]
config.out_features, config.out_indices = ["stage2"], [2]
module.save_pretrained(os.environ["OUT"])
PYTHON
fi

# The study says which model and which data; a small one will do.
eigenlens study "$model" "$data" -o "$out/study" --overwrite --max-inputs 4 --only moments

# The fastest attention within a loss of 1 %, chosen on two inputs and checked on two others; eight
# of each (the default) are better. It also says when no plan pays.
eigenlens plan "$out/study" --loss 1% --max-length "$length" --max-inputs 2 -o "$out/plan" --overwrite

# The loss with its interval, seconds and memory beside the plain model, on inputs that nothing was
# chosen on.
eigenlens evaluate "$model" --plan "$out/plan" --max-inputs 2 -o "$out/evaluation" --overwrite

# What was measured of this machine, and what it has.
eigenlens doctor

# What each head computes, and what that loses, on one page.
eigenlens report "$out/study" "$out/plan" "$out/evaluation" -o "$out/report.html"
