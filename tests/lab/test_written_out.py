"""The lab's transformer is the one written out in numpy, with its gates, norms and widths."""

import numpy as np
import pytest

from lab.moved import IDS, moved


def linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
        + w[f"{name}.bias"]
    )


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def by_hand(model, ids, D=8, E=8, gate=None, post=False, relu=False):
    """The model in numpy, loops over layers and heads; every row of queries and keys has D numbers,
    of values E.
    """
    w = {name: x.detach().numpy() for name, x in model.state_dict().items()}
    found = []
    for sequence in ids:
        x = w["tokens.weight"][sequence] + w["positions.weight"]
        for i in range(2):
            u = x if post else norm(x, w, f"blocks.{i}.norm_1")
            rows = linear(u, w, f"blocks.{i}.attention.project")
            g = w.get(f"blocks.{i}.attention.gate.weight")  # (C, H, D or E)
            y = w[f"blocks.{i}.attention.out.bias"].copy()
            for h in range(2):
                q, k = (rows[:, 2 * D * part + D * h :][:, :D] for part in range(2))
                v = rows[:, 4 * D + E * h :][:, :E]
                opened = sigmoid(u @ g[:, h]) if g is not None and gate != "G5" else 1.0
                q, k, v = (
                    q * (opened if gate == "G4" else 1),
                    k * (opened if gate == "G3" else 1),
                    v * (opened if gate == "G2" else 1),
                )
                z = softmax(q @ k.T / D**0.5) @ v * (opened if gate == "G1" else 1)
                y = y + z @ w[f"blocks.{i}.attention.out.weight"][:, E * h : E * h + E].T
            if gate == "G5":
                y = y * sigmoid(u @ g[:, 0])
            x = norm(x + y, w, f"blocks.{i}.norm_1") if post else x + y
            z = linear(x if post else norm(x, w, f"blocks.{i}.norm_2"), w, f"blocks.{i}.wide")
            z = (
                np.maximum(z, 0)
                if relu
                else 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
            )
            y = linear(z, w, f"blocks.{i}.narrow")
            x = norm(x + y, w, f"blocks.{i}.norm_2") if post else x + y
        found.append((x if post else norm(x, w, "norm")) @ w["tokens.weight"].T)
    return np.stack(found)


@pytest.mark.parametrize(
    ("config", "hand"),
    [
        ({"norm_position": "post", "activation": "relu"}, {"post": True, "relu": True}),
        ({"mlp_width": 5}, {}),
        ({"rank": 3, "value_width": 5}, {"D": 3, "E": 5}),
        ({"rank": 1}, {"D": 1}),
        *[({"gate": gate}, {"gate": gate}) for gate in ("G1", "G2", "G3", "G4", "G5")],
        ({"gate": "G1-head"}, {"gate": "G1"}),
        ({"gate": "G2", "rank": 3, "value_width": 5}, {"gate": "G2", "D": 3, "E": 5}),
        ({"gate": "G4", "rank": 3, "value_width": 5}, {"gate": "G4", "D": 3, "E": 5}),
    ],
)
def test_the_model_is_the_one_written_out(config, hand):
    model = moved(**config)
    np.testing.assert_allclose(
        model(IDS).detach().numpy(), by_hand(model, IDS, **hand), rtol=1e-9, atol=1e-9
    )
