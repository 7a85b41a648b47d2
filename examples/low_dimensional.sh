#!/bin/sh
# Is my model low-dimensional, and what could be left out? The commands of low_dimensional.ipynb.
#
#     sh examples/low_dimensional.sh [FOLDER]
#
# Everything is written into FOLDER (default: low_dimensional), which is made anew.
set -eu
out=${1:-low_dimensional}
mkdir -p "$out"

# The dimensions that each head needs for 90 % of the variance of held-out texts, and the moments of
# queries and keys that a plan is fitted from.
eigenlens study minilm python-docs -o "$out/study" --overwrite \
  --max-inputs 80 --max-length 64 --only rows,moments

# A quarter of the work of exact scores, simulated: every head gets the estimator that loses least.
# `eigenlens show --full` on its folder prints the error of every estimator at every budget.
eigenlens plan "$out/study" --budget 0.25 -o "$out/plan" --overwrite \
  --max-inputs 4 --estimators key-pca,joint,adaptive,exact

# What the model loses with the plan, on documents that neither the study nor the plan has seen ...
eigenlens evaluate minilm --plan "$out/plan" -o "$out/documents" --overwrite --max-inputs 8

# ... and on texts of another kind: short reviews and tweets.
eigenlens evaluate minilm reviews --plan "$out/plan" -o "$out/reviews" --overwrite --max-inputs 8

# Spectra, error against budget, and losses on one page.
eigenlens report "$out/study" "$out/plan" "$out/documents" "$out/reviews" -o "$out/report.html"
