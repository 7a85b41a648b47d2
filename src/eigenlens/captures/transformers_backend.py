"""The transformers backend: the attention interface of the transformers library."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .call import AttentionCall
from .masks import causal_pairs
from .rotary import RotaryRecorder
from .session import AttentionNotSeen, Session
from .sites import Site

NAME = "eigenlens-capture"

INTERNAL = "_attn_implementation_internal"
"""The attribute of a config that names the implementation of its model."""

CHECKED = 256
"""On how many tokens of an input captured attention is compared with the family's own."""

TOLERANCE = 1e-2
"""The largest difference allowed between the two, relative to the largest value.

For a formula that runs in half precision, `√ε` of its dtype.
"""

_open: list[_Watching] = []
_exchanging = threading.Lock()
# of every config that is on our implementation: its own, and how many captures
_before: dict[int, tuple[Any, int]] = {}
# compared with their family's own formula, once
_checked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def supports(model: nn.Module) -> bool:
    """Whether `model` is a transformers model whose attention the interface can replace."""
    # slow to load; before that, nothing is a model of it
    library = sys.modules.get("transformers.modeling_utils")
    return (
        library is not None
        and isinstance(model, library.PreTrainedModel)
        and model._can_set_attn_implementation()
    )


@dataclass(eq=False)
class _Watching:
    """A session on a model of the library."""

    session: Session
    rotary: RotaryRecorder | None = None  # turns queries and keys back to before the embedding
    # what the model attends by otherwise, if that is a mechanism made here
    own: Callable[..., tuple[Tensor, Tensor | None]] | None = None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    watches: list[_Watching] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The function that a model calls for its attention while it is captured.

    It shows the call to the captures it belongs to, and computes the model's own attention unless
    one of them returns the output.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    extras: dict[str, Any] = {
        "mask": attention_mask,
        "causal": bool(causal) and attention_mask is None and query.shape[2] > 1,
        "bias": position_bias,
        "softcap": softcap,
        "sinks": s_aux,
    }
    output = None
    for watching in list(_open) if watches is None else watches:
        session, q, k = watching.session, query, key
        if module not in session.names or not session.here:
            continue
        if module not in _checked and not module.training:
            _check_against_eager(module, query, key, value, scale, kwargs, extras)
            _checked.add(module)
        if watching.rotary is not None:
            q, k = watching.rotary.undo(module, query, key)
        given = session.see(module, q, k, value, scale, **extras)[1]
        output = given if given is not None else output
    if output is not None:
        return output.to(query.dtype).transpose(1, 2).contiguous(), None
    given_to_all = {
        "dropout": dropout,
        "is_causal": is_causal,
        "position_bias": position_bias,
        **kwargs,
    }
    for watching in list(_open) if watches is None else []:
        if watching.own is not None and module in watching.session.names:
            more = {"scaling": scaling, "softcap": softcap, "s_aux": s_aux}
            return watching.own(module, query, key, value, attention_mask, **more, **given_to_all)
    if softcap is None and s_aux is None:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return sdpa(module, query, key, value, attention_mask, scaling=scale, **given_to_all)
    call = AttentionCall(Site("", 0), "self", "", query, key, value, scale, **extras)
    weights = torch.dropout(call.pattern(), dropout, module.training)
    return (weights @ call.values).to(query.dtype).transpose(1, 2).contiguous(), None


@torch.no_grad()
def _check_against_eager(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, kwargs: dict, extras: dict
) -> None:
    """Compare with the family's own eager formula on the first input of the first pass.

    A family may do more in its eager function than it tells the interface; the captured scores
    would then be silently wrong.
    """
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        return
    first: dict[str, Any] = {
        name: x[:1] if isinstance(x, Tensor) and name != "sinks" and x.shape[0] == q.shape[0] else x
        for name, x in extras.items()
    }
    first_q, first_k, first_v = q[:1], k[:1], v[:1]
    T, S = q.shape[2], k.shape[2]
    # the corner of the first tokens: the whole pattern of a long input would not fit into memory
    if T == S > CHECKED:
        first_q, first_k, first_v = (x[:, :, :CHECKED] for x in (first_q, first_k, first_v))
        for name in ("mask", "bias"):
            if isinstance(first[name], Tensor):
                first[name] = first[name].expand(*first[name].shape[:-2], T, S)[
                    ..., :CHECKED, :CHECKED
                ]
    call = AttentionCall(Site("", 0), "self", "", first_q, first_k, first_v, scale, **first)
    named = {
        name: x for name, x in (("softcap", call.softcap), ("s_aux", call.sinks)) if x is not None
    }

    def by_eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask, bias = first["mask"], first["bias"]
        allowed = (
            causal_pairs(call.q.shape[2], call.k.shape[2], call.q.device)
            if call.causal
            else mask
            if mask is not None and mask.dtype == torch.bool
            else None
        )
        if allowed is not None:
            mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill_(
                ~allowed, torch.finfo(q.dtype).min
            )
        more = named if bias is None else {**named, "position_bias": bias.to(q.dtype)}
        return eager(module, q, k, v, mask, scaling=scale, dropout=0.0, **more, **kwargs)[0]

    try:
        try:
            theirs, tolerance = by_eager(call.q, call.k, call.v), TOLERANCE
        except RuntimeError:
            # weights of the module take part: the formula runs in their dtype alone, with its
            # rounding
            theirs, tolerance = (
                by_eager(first_q, first_k, first_v),
                max(TOLERANCE, torch.finfo(q.dtype).eps ** 0.5),
            )
    except TypeError:
        return  # an eager function of another signature cannot be compared
    ours = (call.pattern() @ call.values).transpose(1, 2)  # (1, T, H, E)
    seen = call.valid().any(-1)[:, 0]  # (1, T): a row without keys is undefined in both
    gap = (
        (ours - theirs.reshape(ours.shape))[seen.expand(1, ours.shape[1])].abs().max()
        if seen.any()
        else torch.zeros(())
    )
    if gap > tolerance * v.abs().max().clamp_min(1e-6):
        raise AttentionNotSeen(
            f"the scores of {type(module).__name__} cannot be captured: it adds something to them"
            f" that the attention interface does not show (outputs differ by {gap.item():.2g})"
        )


def attention_function(
    model: nn.Module,
    attend: Callable[[AttentionCall], Tensor | None],
    full_model: nn.Module | None = None,
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """`attend(call)` for the modules of `model`, as a function for the attention interface.

    It stays with the model: a hook on its forward notices where a pass begins, until the function's
    `forget()`. Attention of the
    `full_model` outside of `model`, for example in a task's head, is as before; that of any other
    model is an error.
    """
    session = Session(model, attend, replaces=True, any_thread=True)
    remembered = weakref.ref(session)  # a copy of the model copies the hook, and nothing more

    def start_pass(module: nn.Module, _: Any) -> None:
        if (mine := remembered()) is not None and module is mine.model:
            mine.start_pass()

    hook = model.register_forward_pre_hook(start_pass)
    known = weakref.WeakSet((full_model or model).modules())
    attend_by: Callable[..., tuple[Tensor, Tensor | None]] = functools.partial(
        _attention, watches=[_Watching(session)]
    )

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        if module not in known:
            raise EigenlensError(
                f"this attention was made for another {type(model).__name__} in memory (a model"
                " that is loaded again is another one); make it for this model, for example with"
                " attention.register(name, plan.mechanism(model))"
            )
        return attend_by(module, *args, **kwargs)

    wrapped: Any = functools.wraps(_attention)(attention)
    wrapped.forget = hook.remove
    return wrapped


plain_attention = functools.update_wrapper(functools.partial(_attention, watches=[]), _attention)
"""The attention of a model that nobody watches, as a function for the attention interface."""


def is_captured(model: nn.Module) -> bool:
    """Whether a capture of any thread is open on a model of transformers."""
    with _exchanging:
        return any(key in _before for key in _configs(model))


def set_implementation(model: nn.Module, name: str) -> Callable[[], None]:
    """Set a model to an attention implementation; the function returned sets it back.

    Parts of a model may have implementations of their own.
    """
    before = [(c, getattr(c, INTERNAL, None)) for c in _configs(model).values()]

    def restore() -> None:
        for config, own in before:
            if hasattr(config, INTERNAL):
                setattr(config, INTERNAL, own)

    try:
        model.set_attn_implementation(name)  # type: ignore[operator]
    except BaseException:
        restore()
        raise
    return restore


def _configs(model: nn.Module) -> dict[int, Any]:
    """The configs of a model and of its parts, by identity."""
    return {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}


@contextlib.contextmanager
def install(session: Session) -> Iterator[None]:
    """Set the model's configs to our implementation, and reset them on exit.

    Two models built from one config object share its setting; the other one simply attends as
    before, since a capture sees only the modules of its own model. The last capture of any thread
    resets it.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    AttentionInterface.register(NAME, _attention)
    # without it causal and padding masks would vanish silently
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model = session.model
    assert isinstance(model, PreTrainedModel)
    configs = _configs(model)
    rotary = RotaryRecorder(model) if session.before_rope else None
    watching = _Watching(session, rotary)
    own = ALL_ATTENTION_FUNCTIONS.get(getattr(model.config, "_attn_implementation", None), None)
    watching.own = own if getattr(own, "__wrapped__", None) is _attention else None
    try:
        with _exchanging:
            for key, config in configs.items():
                before, watches = _before.get(key, (getattr(config, INTERNAL, None), 0))
                _before[key] = before, watches + 1
            model.set_attn_implementation(NAME)
        _open.append(watching)
        yield
    except KeyError as error:
        if NAME not in error.args:
            raise
        raise EigenlensError(
            f"{type(model).__name__} does not accept another attention: {error}"
        ) from error
    finally:
        if watching in _open:
            _open.remove(watching)
        if watching.rotary is not None:
            watching.rotary.close()
        with _exchanging:
            for key, config in configs.items():
                before, watches = _before.pop(key)
                if watches > 1:
                    _before[key] = before, watches - 1
                elif hasattr(config, INTERNAL):
                    setattr(config, INTERNAL, before)
