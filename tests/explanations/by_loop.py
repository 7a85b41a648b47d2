"""Relevance by plain loops over numpy, from the attentions that a model on its eager attention
gives out itself.
"""

import numpy as np
import torch


def eager(model, given, score_of):
    """Attentions by kind, each with its gradient, as lists of numpy (B, H, T, S), and the score."""
    out = model(**given, output_attentions=True)
    score = score_of(out)
    names = {
        "attentions": "self",
        "encoder_attentions": "encoder",
        "decoder_attentions": "decoder",
        "cross_attentions": "cross",
    }
    asked = [(kind, A) for name, kind in names.items() for A in getattr(out, name, None) or ()]
    gradients = torch.autograd.grad(score.sum(), [A for _, A in asked], allow_unused=True)
    found = {kind: [] for kind, _ in asked}
    for (kind, A), gradient in zip(asked, gradients):
        gradient = torch.zeros_like(A) if gradient is None else gradient
        found[kind].append((A.detach().numpy(), gradient.numpy()))
    return found, score.detach()


def positive(A, gradient):
    """One input's mean over heads of what is positive in A · gradient."""
    T, S = A.shape[1:]
    mean = np.zeros((T, S), A.dtype)
    for h in range(len(A)):
        for i in range(T):
            for j in range(S):
                mean[i, j] += max(A[h, i, j] * gradient[h, i, j], 0) / len(A)
    return mean


def normalised(R):
    found = np.eye(len(R), dtype=R.dtype)
    for i in range(len(R)):
        rest = R[i] - np.eye(len(R))[i]
        if rest.sum() > 0:
            found[i] += rest / rest.sum()
    return found


def encoder(layers, b):
    """R of input b through a stack of self-attentions."""
    R = np.eye(layers[0][0].shape[2], dtype=layers[0][0].dtype)
    for A, gradient in layers:
        R = R + positive(A[b], gradient[b]) @ R
    return R


def encoder_decoder(found, b):
    """(R of the encoder, of the decoder, of the decoder from the encoder) for input b."""
    ee = encoder(found["encoder"], b)
    dd = np.eye(found["decoder"][0][0].shape[2], dtype=ee.dtype)
    de = np.zeros((len(dd), len(ee)), ee.dtype)
    for (A, slope), (C, cross_slope) in zip(found["decoder"], found["cross"]):
        mean = positive(A[b], slope[b])
        dd, de = dd + mean @ dd, de + mean @ de
        de = de + normalised(dd).T @ positive(C[b], cross_slope[b]) @ normalised(ee)
    return ee, dd, de
