"""Who takes part, and what a user's own file adds."""

from pathlib import Path

import pytest
import torch

from eigenlens.attention import make, mechanisms, registry
from eigenlens.bench import load_file
from eigenlens.bench.entrants import MIDDLE, SMALL, entrants, fits, settings_for
from eigenlens.errors import EigenlensError

MINE = Path(__file__).parent / "all_alike.py"


@pytest.fixture
def mine(monkeypatch):
    """A user's file; what it makes known is forgotten again."""
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr(registry, "_aliases", dict(registry._aliases))
    return MINE


def test_all_take_part_or_those_that_are_named_each_once():
    assert set(entrants()) == set(mechanisms()) and entrants()[0] == "softmax"
    assert entrants(["local", "full", "softmax", "W"]) == ["softmax", "local"]
    with pytest.raises(EigenlensError, match="no mechanism 'hardmax'"):
        entrants(["hardmax"])


def test_directions():
    assert (
        fits("softmax", True)
        and fits("softmax", False)
        and not fits("sinkhorn", True)
        and not fits("delta", False)
    )


@pytest.mark.parametrize("of", [SMALL, MIDDLE])
def test_every_setting_is_one_that_the_mechanism_has(of):
    for name, settings in of.items():
        assert settings_for(name, of) == settings, name
        if not mechanisms()[name].own_weights:
            assert make(name, **settings).settings is not None


def test_a_users_file_makes_its_mechanism_known(mine):
    assert load_file(mine) == ["all-alike"]
    v = torch.randn(1, 2, 5, 3)
    out = make("all-alike", weight=2.0)(v, v, v, causal=True)
    torch.testing.assert_close(out[:, :, 4], v.mean(2))
    assert "all-alike" in entrants()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "makes no mechanism known"),
        ("1 / 0", "does not run: ZeroDivisionError"),
        ("def", "SyntaxError"),
    ],
)
def test_a_file_without_a_mechanism_is_refused(tmp_path, text, told):
    path = tmp_path / "other.py"
    path.write_text(text)
    with pytest.raises(EigenlensError, match=told):
        load_file(path)
    with pytest.raises(EigenlensError, match="no file"):
        load_file(tmp_path / "nothing.py")
