"""Load models: a catalogue name, a folder, a hub id or a module in memory.

Code that comes with a model is never run.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from ..errors import EigenlensError, first_line
from ..names import did_you_mean
from . import catalogue
from .borrowed_names import place_of
from .device import device_named
from .facts import Kind, ModelFacts, Source
from .model_folder import check_folder
from .tokenizers import tokenizer_of
from .wrapped import unwrapped

if TYPE_CHECKING:
    import transformers


@dataclass
class Model:
    """A loaded model: the module, what turns data into its inputs, and what is known about it."""

    facts: ModelFacts
    """Its name and kind, where it came from, and a fingerprint of its weights."""
    module: nn.Module
    tokenizer: Any = None
    processor: Any = None
    max_length: int | None = None
    tokenizer_missing: str = ""
    """Why there is no tokenizer, if the model's folder should have one."""

    @property
    def name(self) -> str:
        """The name in the catalogue, or of the folder, the hub id or the class."""
        return self.facts.name

    @property
    def kind(self) -> Kind:
        """What it reads and how, such as `"encoder"`, `"decoder"` or `"vision"`."""
        return self.facts.kind or "module"

    @property
    def no_tokenizer(self) -> str:
        """A message that there is no tokenizer, and why."""
        return (
            f"{self.name} has no"
            f" tokenizer{f' ({self.tokenizer_missing})' if self.tokenizer_missing else ''}"
        )

    @property
    def backbone(self) -> nn.Module:
        """The part of the model that has the attention, without the task's head.

        Logits over a vocabulary cost much and involve no attention.
        """
        # slow to load; before that, nothing is a model of it
        library = sys.modules.get("transformers.modeling_utils")
        module: Any = self.module
        return (
            module.base_model
            if library is not None and isinstance(module, library.PreTrainedModel)
            else module
        )

    @property
    def config(self) -> Any:
        """The transformers config; None for a module that has none."""
        return getattr(self.module, "config", None)

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))


def load(
    model: str | Path | nn.Module | Model,
    *,
    device: str | torch.device | None = "auto",
    tokenizer: Any = None,
) -> Model:
    """Load a model for study.

    Remote code is never run, and pickled weights are read as tensors only.

    Parameters
    ----------
    model : str, Path, nn.Module or Model
        A name of the catalogue (`"minilm"`), a folder as `save_pretrained` writes it, a hub id
        (`"org/name"`), or a module in memory.
    device : str, torch.device or None, default "auto"
        Where the model runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one. `None`
        leaves the model where it was loaded. A module in memory stays where and as it is.
    tokenizer : object, optional
        The tokenizer to use. Default: the one in the model's folder.

    Returns
    -------
    Model
        The module with its tokenizer or processor, and facts about it.

    Raises
    ------
    EigenlensError
        If there is no such model, or if weights are missing, truncated or not finite.

    Examples
    --------
    >>> load("minilm").module
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module):
        return _from_module(model, tokenizer)
    name = str(model)
    place = place_of(name)
    loaded = _from_place(place)
    if place != name:
        loaded.facts = replace(loaded.facts, name=name)
    if device is None:
        return loaded
    if device == "auto":
        device = device_named("auto")
    try:
        loaded.module.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise EigenlensError(
            f"{loaded.name} cannot be put on the device {device}: {first_line(error)}"
        ) from error
    if tokenizer is not None:
        loaded.tokenizer = tokenizer
    return loaded


def _from_module(module: nn.Module, tokenizer: Any) -> Model:
    module = unwrapped(module)
    config = getattr(module, "config", None)
    library = sys.modules.get("transformers.configuration_utils")
    is_transformers = library is not None and isinstance(config, library.PreTrainedConfig)
    kind: Kind = _kind(config) if is_transformers else "module"
    limit = _max_length(config, tokenizer) if is_transformers else None
    facts = _facts(type(module).__name__, kind, "module", module)
    return Model(facts, module, tokenizer, None, limit)


def _facts(
    name: str,
    kind: Kind,
    source: Source,
    module: nn.Module,
    place: str | None = None,
    note: str | None = None,
) -> ModelFacts:
    return ModelFacts(
        name,
        kind,
        source,
        type(module).__name__,
        _parameters(module),
        fingerprint_of(module),
        place,
        note,
    )


def _from_place(name: str) -> Model:
    import transformers

    folder: str | Path
    source: Source
    if name in catalogue.MODELS:
        folder, source = catalogue.model_folder(name), "catalogue"
    elif Path(name).is_dir():
        folder, source = Path(name), "folder"
        check_folder(folder)
    elif Path(name).exists():
        raise EigenlensError(
            f"{name} is a file; give the folder of the model (with config.json and weights)"
        )
    elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        folder, source = name, "hub"
    else:
        hint = did_you_mean(name, catalogue.MODELS)
        raise EigenlensError(
            f"no such model: {name!r}{hint} is not a catalogue name, a folder or a hub id"
        )
    with _quiet():
        config = _config(folder, name)
        module = _weights(folder, config, name)
        kind = _kind(config)
        tokenizer, tokenizer_missing = (None, "") if kind == "vision" else tokenizer_of(folder)
        processor = None
        if kind == "vision":
            processor = _optional(transformers.AutoImageProcessor, folder)
        elif kind == "audio":
            processor = _optional(transformers.AutoFeatureExtractor, folder)
    if source == "catalogue":
        facts = _facts(name, kind, source, module, note=catalogue.MODELS[name].note or None)
    else:
        label = name if source == "hub" else Path(name).resolve().name
        facts = _facts(label, kind, source, module, place=name)
    limit = _max_length(config, tokenizer)
    return Model(facts, module, tokenizer, processor, limit, tokenizer_missing)


def _config(folder: str | Path, name: str) -> transformers.PreTrainedConfig:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever the library makes of a config that is none
        if isinstance(folder, str):
            known = ", ".join(catalogue.MODELS)
            raise EigenlensError(
                f"no such model: {name!r}{did_you_mean(name, catalogue.MODELS)} is not a folder,"
                f" not in the catalogue ({known}), and could not be downloaded from the hub"
            ) from error
        raise EigenlensError(f"the config of {name} cannot be read: {first_line(error)}") from error
    return config


def _class_of(config: transformers.PreTrainedConfig, name: str) -> Any:
    """Return the library's class that the config names first, or the one of its kind.

    Never a function, and never code that comes with the model.
    """
    import transformers

    architectures = getattr(config, "architectures", None) or [""]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise EigenlensError(
            f"the config of {name} names no known architecture: {str(architectures)[:80]!r}"
        )
    implementation = str(getattr(config, "_attn_implementation", None) or "")
    if "/" in implementation:
        raise EigenlensError(
            f"the config of {name} asks for the attention {implementation[:80]!r}, which is code"
            " from elsewhere; remove that entry from the config"
        )
    found = getattr(transformers, architectures[0], None)
    known = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if known else transformers.AutoModel


def _check_size(cls: Any, config: transformers.PreTrainedConfig, folder: Path, name: str) -> None:
    """Refuse a config with far more weights than the files hold, before memory is allocated."""
    import transformers

    build = cls.from_config if cls is transformers.AutoModel else cls._from_config
    try:
        with torch.device("meta"):
            module = build(copy.deepcopy(config))
    except Exception as error:  # a config can be wrong in as many ways as there are models
        raise EigenlensError(
            f"{name} cannot be built from its config: {first_line(error)}"
        ) from error
    wanted = sum(x.numel() for x in [*module.parameters(), *module.buffers()])
    # a byte a weight, or more
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    if wanted > 2 * stored + SPARE:
        raise EigenlensError(
            f"the config of {name} describes {wanted:,} numbers, but its files hold {stored:,}"
            " bytes: they do not belong together"
        )


SPARE = 1 << 26
"""Numbers that may be missing from the files: positions, masks, a pooler."""


def _weights(folder: str | Path, config: transformers.PreTrainedConfig, name: str) -> nn.Module:
    cls = _class_of(config, name)
    if isinstance(folder, Path):
        _check_size(cls, config, folder, name)
    try:
        module, info = cls.from_pretrained(
            folder,
            config=config,
            trust_remote_code=False,
            weights_only=True,
            output_loading_info=True,
            dtype=torch.float32,
        )
    except SafetensorError as error:
        raise EigenlensError(
            f"the weights of {name} are damaged or cut short: {first_line(error)}"
        ) from error
    except Exception as error:
        # config and weights that do not fit each other fail anywhere in the library
        raise EigenlensError(f"{name} cannot be loaded: {first_line(error)}") from error
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    if missing:
        raise EigenlensError(
            f"{len(missing)} of the weights of {name} are missing, such as {missing[0]}"
        )
    for key, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise EigenlensError(
                f"the weights of {name} contain NaN or infinity, for example in {key}"
            )
    return module


def _optional(cls: Any, folder: str | Path) -> Any:
    """Return a processor; None if the folder has none, since tensors can be used without."""
    try:
        return cls.from_pretrained(folder, trust_remote_code=False)
    except Exception:
        return None


def _kind(config: Any) -> Kind:
    from transformers.models.auto import modeling_auto as auto

    if getattr(config, "is_encoder_decoder", False):
        return "audio" if hasattr(config, "num_mel_bins") else "encoder-decoder"
    if hasattr(config, "image_size") and not hasattr(config, "vocab_size"):
        return "vision"
    names = " ".join(getattr(config, "architectures", None) or [])
    mapping = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    kind = getattr(config, "model_type", "")
    if "CausalLM" in names or "LMHead" in names or (kind in mapping and kind not in masked):
        return "decoder"
    return "encoder"


def _max_length(config: Any, tokenizer: Any) -> int | None:
    if hasattr(config, "relative_attention_num_buckets"):
        return None  # relative positions have no end
    text = getattr(config, "max_target_positions", None) or getattr(
        config, "max_position_embeddings", None
    )
    limit = text or getattr(config, "n_positions", None)
    bounds = [limit, getattr(tokenizer, "model_max_length", None)]
    known = [int(bound) for bound in bounds if bound is not None and 0 < bound < 1 << 30]
    return min(known) if known else None


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def fingerprint_of(module: nn.Module) -> str:
    """Return a fingerprint that tells two sets of weights apart without hashing gigabytes.

    It uses the sizes, a thin slice of each tensor, and the sum of its bits.
    """
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if "pooler" in key:
            continue  # no attention in it, and random where the file has none
        flat = tensor.detach().flatten().contiguous()
        step = max(1, flat.numel() // 64)
        digest.update(f"{key.replace('_orig_mod.', '')}{tuple(tensor.shape)}".encode())
        digest.update(flat[::step].cpu().float().numpy().tobytes())
        if not flat.is_complex() and flat.numel():
            whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
                flat.element_size()
            ]
            digest.update(str(int(flat.view(whole).sum(dtype=torch.int64))).encode())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars and warnings of the library while a model loads.

    Errors are reported by eigenlens.
    """
    from transformers.utils import logging as log

    level, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bar:
            log.enable_progress_bar()
