"""Attention mechanisms by name, built in or your own, for lab models and for transformers.

A class with `@mechanism("mine")` is known to `make`, to every lab model
(`Config(mechanism="mine")`) and to `eigenlens bench`. `register("mine")` makes it an attention
implementation of transformers, which every model can be set to:

>>> register("doubly-normalised")
>>> model.set_attn_implementation("doubly-normalised")

A function with the signature of transformers' attention interface can be registered, too:

    (module, q (B,H,T,D), k (B,G,S,D), v (B,G,S,E), mask, scaling, dropout, **kw) → (out (B,T,H,E),
    weights or None)

Both are registered together with the function that builds their masks: without one, transformers
passes no mask, and causality and padding would be silently lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from torch import Tensor

from ..errors import EigenlensError
from ..hints import describe_type, fits_type
from ..names import unknown_name
from .contract import Mechanism, Shape
from .masks import read_mask, with_bias

Interface = Callable[..., tuple[Any, Any]]
Kind = TypeVar("Kind", bound=type[Mechanism])

_known: dict[str, type[Mechanism]] = {}
_aliases: dict[str, str] = {}
_registered: dict[str, Interface] = {}

RENAMED = {"gapless": "spectral-gap-removal"}
"""Names that mechanisms had in results of earlier versions."""

UNKNOWN = ("softcap", "s_aux")
"""Features that a model may ask for and that no mechanism here supports."""


def mechanism(name: str, *aliases: str, letter: str | None = None) -> Callable[[Kind], Kind]:
    """Register a class of `Mechanism` under a name: a decorator.

    Parameters
    ----------
    name : str
        The name for `make`, for `Config(mechanism=…)` and for `eigenlens bench`.
    *aliases : str
        Further names.
    letter : str, optional
        A letter for patterns of layers such as `"DDDF"`. Default: none.

    Returns
    -------
    callable
        The decorator, which returns the class.

    Raises
    ------
    EigenlensError
        If another mechanism has one of the names.

    Examples
    --------
    >>> @mechanism("mine")
    ... class Mine(Mechanism): ...
    """

    def add(kind: Kind) -> Kind:
        under = [name, *aliases, *([letter] if letter else [])]
        if taken := [other for other in under if _aliases.get(other, name) != name]:
            raise EigenlensError(
                f"there is already a mechanism called {taken[0]!r} ({_aliases[taken[0]]}); choose"
                " another name"
            )
        _aliases.update(dict.fromkeys(under, name))
        kind.name, kind.letter = name, letter
        _known[name] = kind
        return kind

    return add


def mechanisms() -> dict[str, type[Mechanism]]:
    """List every known mechanism.

    Returns
    -------
    dict of str to type
        The classes by name.

    Examples
    --------
    >>> "window" in mechanisms()
    True
    """
    return dict(_known)


def find(name: str) -> type[Mechanism]:
    """Find a mechanism by its name, an alias, or its letter.

    Parameters
    ----------
    name : str
        The name.

    Returns
    -------
    type
        The class of the mechanism.

    Raises
    ------
    EigenlensError
        If there is no such mechanism; the message lists the names.

    Examples
    --------
    >>> find("softmax").name
    'softmax'
    """
    if name not in _aliases:
        if name in RENAMED:
            raise EigenlensError(f"the mechanism {name} is now called {RENAMED[name]}")
        raise unknown_name("mechanism", name, sorted(_known))
    return _known[_aliases[name]]


def make(name: str, shape: Shape | None = None, **settings: Any) -> Mechanism:
    """Make a mechanism by name, with its settings.

    Parameters
    ----------
    name : str
        The name of a known mechanism.
    shape : Shape, optional
        The shape of its layer; needed by mechanisms with weights of their own. Default: none.
    **settings : object
        Its settings by name.

    Returns
    -------
    Mechanism
        A function of `q (B, H, T, D)`, `k (B, G, S, D)`, `v (B, G, S, E)` that gives `(B, H, T,
        E)`.

    Raises
    ------
    EigenlensError
        If the mechanism or a setting is unknown, or if a setting has the wrong type or value.

    Examples
    --------
    >>> make("fastmax", p=1)(q, k, v, causal=True)
    >>> make("linformer", Shape(heads=4, head_width=32, width=128, length=256), size=64)
    """
    kind = find(name)
    return kind(settings_of(kind, settings), shape)


def settings_of(kind: type[Mechanism], given: Mapping[str, Any]) -> Any:
    """Return the settings of a mechanism after checking names, types and values."""
    hints = {
        field.name: get_type_hints(kind.Settings)[field.name] for field in fields(kind.Settings)
    }
    for key, value in given.items():
        if key not in hints:
            has = f"has {', '.join(hints)}" if hints else "has none"
            raise EigenlensError(f"no setting {key!r} of {kind.name}; it {has}")
        if not fits_type(value, hints[key]):
            raise EigenlensError(
                f"the setting {key} of {kind.name} must be {describe_type(hints[key])}, not"
                f" {value!r}"
            )
    return kind.Settings(**given)


def register(
    name: str,
    mechanism: str | Interface | Mechanism | None = None,
    mask_function: Callable[..., Any] | None = None,
    **settings: Any,
) -> None:
    """Register a mechanism as an attention implementation of transformers.

    Parameters
    ----------
    name : str
        The name for `model.set_attn_implementation(name)`. One that was registered here before is
        replaced.
    mechanism : str, callable or Mechanism, optional
        A known mechanism by name, an instance, or a function of transformers' attention
        interface. Default: the known mechanism called `name`.
    mask_function : callable, optional
        The function that builds its masks. Default: that of `sdpa`.
    **settings : object
        Settings of a mechanism that is given by name.

    Raises
    ------
    EigenlensError
        If the mechanism has weights of its own, which a loaded model does not have, or if
        transformers has an attention of that name.

    Examples
    --------
    >>> register("narrow", "window", window=64)
    >>> model.set_attn_implementation("narrow")
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if mechanism is None or isinstance(mechanism, str):
        kind = find(mechanism or name)
        without_weights(kind)
        mechanism = make(kind.name, **settings)
    elif settings:
        raise EigenlensError(
            f"the settings {', '.join(settings)} can only be given for a mechanism that is named,"
            " not for an instance or a function"
        )
    if isinstance(mechanism, Mechanism):
        mechanism = interface(mechanism)
    if not callable(mechanism):
        raise EigenlensError(f"the attention mechanism {name!r} is not callable: {mechanism!r}")
    if name not in _registered and (
        name == "eager" or name in ALL_ATTENTION_FUNCTIONS.valid_keys()
    ):
        raise EigenlensError(
            f"transformers already has an attention called {name!r}; choose another name"
        )
    AttentionInterface.register(name, mechanism)
    AttentionMaskInterface.register(name, mask_function or sdpa_mask)
    _registered[name] = mechanism


def unregister(name: str) -> None:
    """Take back what `register` made known; a model that still uses it can no longer attend."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if _registered.pop(name, None) is not None:
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def registered() -> dict[str, Interface]:
    """List the mechanisms that were registered through this package.

    Returns
    -------
    dict of str to callable
        Functions of transformers' attention interface, by name.

    Examples
    --------
    >>> registered()["narrow"]
    """
    return dict(_registered)


def interface(mechanism: Mechanism) -> Interface:
    """Turn a mechanism into a function of transformers' attention interface.

    Parameters
    ----------
    mechanism : Mechanism
        A mechanism without weights of its own.

    Returns
    -------
    callable
        `(module, q (B, H, T, D), k (B, G, S, D), v (B, G, S, E), mask, …) → (out (B, T, H, E),
        None)`.

    Raises
    ------
    EigenlensError
        If the mechanism has weights of its own.

    Examples
    --------
    >>> interface(make("window", window=64))
    """
    without_weights(mechanism)

    def attend(
        module: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None = None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        asked = [option for option in UNKNOWN if options.get(option) is not None]
        if asked:
            raise EigenlensError(
                f"this model asks for {asked[0]}, which {mechanism.name} does not support"
            )
        T, keys, pairs = q.shape[2], None, None
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if attention_mask is not None:
            seen, keys, pairs = read_mask(attention_mask, T, k.shape[2])
            # a mask of one query does not tell that it is the last token
            causal = seen or (causal and T == 1)
        elif causal and 1 < T < k.shape[2]:
            # the first pass over a cache of fixed size: what follows is empty
            k, v = k[:, :, :T], v[:, :, :T]
        pairs = with_bias(pairs, position_bias, T, k.shape[2])
        out = mechanism(q, k, v, causal=causal, keys=keys, pairs=pairs, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    return attend


def without_weights(kind: type[Mechanism] | Mechanism) -> None:
    """Refuse a mechanism that a loaded model cannot have."""
    if kind.own_weights:
        raise EigenlensError(
            f"{kind.name} has weights of its own, which a loaded model does not have; train it in a"
            " lab model"
        )
