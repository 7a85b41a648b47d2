#!/bin/sh
# A first look at a model: the commands of first_look.ipynb.
#
#     sh examples/first_look.sh [FOLDER]
#
# Everything is written into FOLDER (default: first_look), which is made anew.
set -eu
out=${1:-first_look}
mkdir -p "$out"

# One pass over the Python language reference: how many dimensions each head needs, what the heads
# do (sinks, previous tokens, ...), and how the tokens grow alike along the depth of the model.
eigenlens study minilm python-docs -o "$out/study" --overwrite \
  --max-inputs 40 --max-length 64 --only rows,depth,diagnostics

# The same study, read from its folder without the model: every picture as SVG and PNG, and every
# number of every head as JSON, for other programs.
eigenlens show "$out/study" --pictures "$out/pictures" --json >"$out/study.json"

# All of it on one page that opens in any browser.
eigenlens report "$out/study" -o "$out/report.html"
