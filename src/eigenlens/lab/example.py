"""A file of a training run with every key; optional ones are commented out at their defaults."""

EXAMPLE = """\
# A training run: eigenlens train run.toml -o run

[task]
name = "next-bytes"         # next-bytes, next-tokens, masked-bytes, composition,
                            # nearest-neighbour, sort, repeated, convex-hull, memorise, circle,
                            # digits; what each lets you choose: docs/guides/train-a-small-model.md
data = "python-docs"        # text: a named one, a file, a folder, or a list of them
length = 64                 # text: tokens in an input
# characters = 400000       # text: how much of it is read
# held_out = 0.1            # text: share of the documents that is only measured on
# windows = 256             # text: inputs that are measured on
# start = false             # text: a token of its own begins every input

[model]
layers = 2
width = 64
heads = 2
mechanism = "softmax"       # a name, letters for layers ("DDDF"), a list by layer, or
                            # heads [["softmax", 1], ["local", 1]]
# rank = 32                 # width of a head's queries and keys (default: width / heads)
# value_width = 32          # width of a head's values (default: width / heads)
# mlp_width = 256           # default: 4 * width
# activation = "gelu"       # or "relu"
# norm_position = "pre"     # or "post"
# gate = "G1"               # G1 heads' output, G2 values, G3 keys, G4 queries, G5 output;
                            # also "G1-head", "G1-shared", "G1-silu"
# fusion = "concat"         # read out all layers: "concat", "max" or "gate"
# causal = true             # default: as the task needs it
# positions = true          # false: the model sees a set
# neighbourly = true        # text: at the start tokens look at their neighbourhood
# size = 0.1                # standard deviation of an embedded input at the start
# attention_skip = true     # parts of every block that can be taken out
# mlp_skip = true
# mlp = true
# norm = true
# attention = true

# [model.mechanism_settings.local]
# window = 16

[training]
steps = 300
seeds = [0, 1]
batch = 16                  # inputs in a step
rate = 3e-3                 # of AdamW, after the warm-up; it falls to a tenth along a cosine
# warmup = 50
# decay = 0.01
# measure = 100             # steps between measurements on held-out data
# patience = 3              # stop after as many measurements without a better loss (default: never)
# penalty = 0.0             # times the localisation penalty of all heads' queries and keys
# device = "auto"           # the GPU, where there is one; or such as "cpu"
"""
