#!/bin/sh
# Make a model faster at a loss you name: the commands of faster.ipynb.
#
#     sh examples/faster.sh [FOLDER]
#
# Everything is written into FOLDER (default: faster), which is made anew. It takes a quarter of an
# hour on two cores; with EIGENLENS_QUICK=1 a minute, and the figures then mean nothing.
set -eu
out=${1:-faster}
length=4096 loss=1% inputs=8
if [ -n "${EIGENLENS_QUICK:-}" ]; then
  length=256 loss=5% inputs=2
fi

# The study says which model and which texts; a small one will do.
eigenlens study smollm2 wikipedia -o "$out/study" --overwrite --max-inputs 4 --only moments

# The fastest attention within the loss, chosen on some texts and checked on others. It also says
# when no plan pays.
eigenlens plan "$out/study" --loss "$loss" --max-length "$length" --max-inputs "$inputs" -o "$out/plan" --overwrite

# The loss with its interval, seconds and memory beside the plain model, on texts that nothing was
# chosen on.
eigenlens evaluate smollm2 --plan "$out/plan" --max-inputs "$inputs" -o "$out/evaluation" --overwrite

# What this machine has, and what was measured of it.
eigenlens doctor

# What each head computes, and what that loses, on one page.
eigenlens report "$out/study" "$out/plan" "$out/evaluation" -o "$out/report.html"
