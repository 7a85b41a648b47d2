"""What each paper asks, by its name here: short title, arXiv number, question."""

QUESTIONS: dict[str, tuple[str, str, str]] = {
    "eigen-analysis": (
        "Eigen analysis",
        "2106.08823",
        "are attention scores low-dimensional, and can a part of them give the rest?",
    ),
    "rank-collapse": (
        "Rank collapse",
        "2103.03404",
        "does attention alone make all tokens one vector?",
    ),
    "within-one-input": (
        "Within one input",
        "2604.04384",
        "are the scores of a single input low-dimensional, although the weights are not?",
    ),
    "sinks": (
        "Sinks and spikes",
        "2603.05498",
        "why does attention rest on the first token, and what do massive activations have to do"
        " with it?",
    ),
    "tensorlens": (
        "TensorLens",
        "2601.17958",
        "can a transformer at one input be written as one linear operator?",
    ),
    "induction": (
        "Induction heads",
        "2409.10559",
        "how do induction heads arise in training?",
    ),
    "convex-duality": (
        "Convex duality",
        "2205.08078",
        "can a layer of attention be trained to its global optimum?",
    ),
    "explainability": (
        "Explainability",
        "2103.15679",
        "does relevance through all attentions find the tokens that decide?",
    ),
    "hybrid": (
        "Hybrid attention",
        "2602.01763",
        "what can a few full layers among linear ones do?",
    ),
    "gated": (
        "Gated attention",
        "2602.01468",
        "what does a gate at each of five places change?",
    ),
    "universal-approximation": (
        "Universal approximation",
        "2504.15956",
        "can softmax attention alone approximate any function?",
    ),
    "mind-the-gap": (
        "Mind the gap",
        "2410.07799",
        "does removing the spectral gap of attention keep the rank up?",
    ),
    "rank-versus-heads": (
        "Rank versus heads",
        "2407.16153",
        "can many heads of low rank replace one of full rank?",
    ),
    "fast": (
        "FAST",
        "2402.07901",
        "can a polynomial in place of the exponential make attention linear?",
    ),
    "qk-eigenspectrum": (
        "QK eigenspectrum",
        "2402.02098",
        "when does attention become local?",
    ),
    "multiformer": (
        "Multiformer",
        "2205.07100",
        "is a mix of mechanisms by head better than one?",
    ),
    "over-smoothing": (
        "Over-smoothing",
        "2202.08625",
        "why do the tokens of BERT grow alike?",
    ),
    "doubly-normalised": (
        "Doubly-normalised attention",
        "2009.14308",
        "are keys explained away by a softmax over keys?",
    ),
}
