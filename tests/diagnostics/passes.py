"""A pass of a model with diagnostics looking on, as a study makes it."""

from contextlib import ExitStack

import torch

from eigenlens.captures import SiteInfo, capture, capture_layers
from eigenlens.diagnostics import CallView, LayerView, StudiedModel
from eigenlens.models.forward import forward_of
from eigenlens.models.load import load


def subject_of(model, batch):
    """The model and the sites that attend in it on a batch."""
    model, sites = load(model, device=None), {}

    def note(call):
        sites[call.site] = SiteInfo.of_call(call)

    with torch.no_grad(), capture(model.backbone, note):
        forward_of(model)(batch)
    return StudiedModel(model, sites)


def diagnosed(model, batches, *diagnostics):
    """Show every batch to the diagnostics (`batches` empty: only those of probes of their own).

    Gives the subject.

    A diagnostic that does not apply is left alone: `subject.notes[name]` says why.
    """
    model = load(model, device=None)
    batches = list(batches)
    own = {d.name: d.batches(model) for d in diagnostics if d.sees == "probe"}
    studied = subject_of(model, (batches or next(iter(own.values())))[0])
    studied.notes = {d.name: d.begin(studied) for d in diagnostics}
    chosen = [d for d in diagnostics if not studied.notes[d.name]]
    show(studied, batches, [d for d in chosen if d.sees in ("calls", "layers")])
    for d in chosen:
        if d.sees == "probe":
            show(studied, own[d.name], [d])
    return studied


def show(studied, batches, diagnostics):
    """Run the batches with these diagnostics attached."""
    if not diagnostics:
        return
    names = {site.name: site.kind for site in studied.sites.values()}
    current, shown = {}, {}

    def see(call):
        shown[str(call.site)] = seen = CallView(
            call,
            _ids(current["batch"], call.site.stack, call.kind, call.k.shape[2]),
            studied.vocabulary,
        )
        for d in diagnostics:
            if d.sees != "layers":
                d.update(seen)

    def leave(layer):
        ids = _ids(current["batch"], layer.site.stack, "self", layer.inputs.shape[1])
        seen = LayerView.of(layer, slice(None), ids, shown.get(str(layer.site)), studied.vocabulary)
        for d in diagnostics:
            if d.sees == "layers":
                d.update(seen)

    forward = forward_of(studied.model)
    with torch.no_grad(), ExitStack() as hooks:
        for d in diagnostics:
            hooks.enter_context(d.attached(studied))
        hooks.enter_context(capture_layers(studied.module, names, leave, calls=see))
        for batch in batches:
            current["batch"] = batch
            shown.clear()
            forward(batch)


def _ids(batch, stack, kind, tokens):
    """The ids (B, S) of the keys of a call, or of a block's tokens.

    None where they are no tokens of the input.
    """
    decoder = "decoder_input_ids" in batch and stack.startswith("decoder") and kind == "self"
    ids = batch.get("decoder_input_ids" if decoder else "input_ids")
    return ids if ids is not None and ids.shape[1] == tokens else None
