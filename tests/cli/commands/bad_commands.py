"""Commands that cannot be done, each with the sentence that says why."""

from pathlib import Path

from cli.commands.damages import (
    as_pickle,
    cut,
    damaged,
    flipped,
    folder_with,
    interrupted,
    model_with,
    other_format,
    other_plan,
    text_of,
    with_nan,
    without_a_layer,
)
from cli.commands.typed import SMALL

BAD = {
    "no such model": (
        lambda w, t: ("study", "no-such-model", w.text),
        "no such model: 'no-such-model'",
    ),
    "no such hub id": (
        lambda w, t: ("study", "nobody/nothing", w.text),
        "no such model: 'nobody/nothing'",
    ),
    "no model's name": (
        lambda w, t: ("study", "what is this?", w.text),
        "no such model: 'what is this\\?'",
    ),
    "model is a file": (
        lambda w, t: ("study", w.text, w.text),
        "is a file; give the folder of the model",
    ),
    "folder without config": (
        lambda w, t: ("study", folder_with(t / "m"), w.text),
        "no config.json",
    ),
    "folder without weights": (
        lambda w, t: ("study", model_with(w, t, Path.unlink), w.text),
        "has a config but no weights",
    ),
    "config of no model": (
        lambda w, t: (
            "study",
            folder_with(t / "m", **{"config.json": "{", "model.safetensors": ""}),
            w.text,
        ),
        "damaged or cut short|cannot be read",
    ),
    "weights cut short": (
        lambda w, t: (
            "study",
            model_with(w, t, lambda p: p.write_bytes(cut(p.read_bytes()))),
            w.text,
        ),
        r"model\.safetensors is damaged or cut short",
    ),
    "weights with NaN": (
        lambda w, t: ("study", model_with(w, t, with_nan), w.text),
        "contain NaN or infinity, for example in encoder.layer.1.attention.self.query.weight",
    ),
    "weights missing": (
        lambda w, t: ("study", model_with(w, t, without_a_layer), w.text),
        "16 of the weights of .* are missing",
    ),
    "weights that run code": (
        lambda w, t: ("study", model_with(w, t, as_pickle), w.text),
        "cannot be loaded",
    ),
    "empty text": (lambda w, t: ("study", w.model, text_of(t, b"")), "the text is empty"),
    "short text": (
        lambda w, t: ("study", w.model, text_of(t, b"a few words")),
        "the text is too short",
    ),
    "binary text": (
        lambda w, t: ("study", w.model, text_of(t, b"\0\1\2" * 999)),
        r"given\.txt is binary",
    ),
    "no UTF-8": (
        lambda w, t: ("study", w.model, text_of(t, b"Stra\xdfe " * 999)),
        r"given\.txt is not UTF-8",
    ),
    "no such text": (lambda w, t: ("study", w.model, t / "nowhere.txt"), "no such data"),
    "standard input twice": (
        lambda w, t: ("study", w.model, "-", "-"),
        "standard input is named twice",
    ),
    "length over the maximum": (
        lambda w, t: ("study", w.model, w.text, "--max-length", 65),
        "a length of 65 tokens is over the maximum of tiny, 64 tokens",
    ),
    "length of nothing": (
        lambda w, t: ("study", w.model, w.text, "--max-length", 0),
        "a length of 0 is too short",
    ),
    "place is a study": (
        lambda w, t: ("study", w.model, w.text, "-o", w.study),
        "already holds a study",
    ),
    "place is a study, resumed": (
        lambda w, t: ("study", w.model, w.text, "-o", w.study, "--resume"),
        "nothing to resume",
    ),
    "place is another folder": (
        lambda w, t: ("study", w.model, w.text, "-o", folder_with(t / "x", a="1"), "--overwrite"),
        "exists and is not a study",
    ),
    "place is a file": (
        lambda w, t: ("study", w.model, w.text, "-o", text_of(t, b"x")),
        "is a file",
    ),
    "place is under a file": (
        lambda w, t: ("study", w.model, w.text, "-o", text_of(t, b"x") / "study"),
        "cannot be written",
    ),
    "place is interrupted": (
        lambda w, t: ("study", w.model, w.text, "-o", interrupted(t)),
        "interrupted; go on with resume=True",
    ),
    "unknown statistic": (
        lambda w, t: ("study", w.model, w.text, "--only", "rows,ranks"),
        "no statistic 'ranks'",
    ),
    "no statistic": (
        lambda w, t: ("study", w.model, w.text, "--only", ","),
        "no statistic was named",
    ),
    "of something": (lambda w, t: ("study", w.model, w.text, "--of", "values"), "not of 'values'"),
    "share of 0": (
        lambda w, t: ("study", w.model, w.text, "--held-out", 0),
        "between 0 and 1, not 0",
    ),
    "share of 1.5": (
        lambda w, t: ("study", w.model, w.text, "--held-out", 1.5),
        "between 0 and 1, not 1.5",
    ),
    "no such device": (lambda w, t: ("study", w.model, w.text, "--device", "abacus"), "device"),
    "no rotary embedding": (
        lambda w, t: ("study", w.model, w.text, "--before-rope"),
        "no rotary embedding",
    ),
    "show nothing": (lambda w, t: ("show", t / "nowhere"), "no such study"),
    "show another folder": (lambda w, t: ("show", folder_with(t / "x", a="1")), "is no study"),
    "show an interrupted study": (
        lambda w, t: ("show", interrupted(t)),
        "was interrupted before it was finished",
    ),
    "show another version": (
        lambda w, t: ("show", damaged(w, t, "study.json", other_format)),
        r"has format 99, written by eigenlens 0\.2\.0, and eigenlens 0\.2\.0 reads format 4",
    ),
    "show a flipped byte": (
        lambda w, t: ("show", damaged(w, t, "spectra.safetensors", flipped)),
        r"is damaged: spectra\.safetensors has changed",
    ),
    "show a file cut short": (
        lambda w, t: ("show", damaged(w, t, "moments.safetensors", cut)),
        r"is damaged: moments\.safetensors is missing or has another size",
    ),
    "show a record cut short": (
        lambda w, t: ("show", damaged(w, t, "study.json", cut)),
        r"study\.json cannot be read",
    ),
    "show a record of nothing": (
        lambda w, t: ("show", damaged(w, t, "study.json", lambda _: b'{"format": 4}')),
        r"is damaged: study\.json",
    ),
    "draw over a file": (
        lambda w, t: ("show", w.study, "--pictures", text_of(t, b"x")),
        "cannot be written",
    ),
    "compare lengths": (
        lambda w, t: ("compare", w.study, w.shorter),
        "studies can only be compared at the same length: .*16 tokens.*12 tokens",
    ),
    "compare one": (lambda w, t: ("compare", w.study), "at least two"),
    "compare another version": (
        lambda w, t: ("compare", w.study, damaged(w, t, "study.json", other_format)),
        "has format 99",
    ),
    "compare damage": (
        lambda w, t: ("compare", w.study, damaged(w, t, "rows.safetensors", flipped)),
        r"is damaged: rows\.safetensors has changed",
    ),
    "compare too much": (
        lambda w, t: ("compare", w.study, w.study, "--ranks", "17"),
        "rank must be at most 16, the dimensions of a row, not 17",
    ),
    "compare nothing": (
        lambda w, t: ("compare", w.study, w.study, "--ranks", "4,x"),
        "whole numbers",
    ),
    "budget of 0": (
        lambda w, t: ("plan", w.study, "--budget", 0),
        "budget must be above 0 and at most 1, not 0",
    ),
    "budget of 1.5": (lambda w, t: ("plan", w.study, "--budget", 1.5), "at most 1, not 1.5"),
    "loss that is no share": (
        lambda w, t: ("plan", w.study, "--loss", "120%"),
        "must be a share between 0 and 1 such as 0.01, or percent such as 1%, not '120%'",
    ),
    "loss in words": (lambda w, t: ("plan", w.study, "--loss", "little"), "not 'little'"),
    "loss and budget": (
        lambda w, t: ("plan", w.study, "--loss", "1%", "--budget", 0.5),
        "takes only a loss, and no budget",
    ),
    "loss with too few inputs": (
        lambda w, t: ("plan", w.study, "--loss", "1%", "--max-inputs", 1),
        "needs at least 2 inputs to choose on, not 1",
    ),
    "budget of nothing": (lambda w, t: ("plan", w.study), "needs a loss, a budget or an error"),
    "budget and error": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "--error", 0.1),
        "needs a loss, a budget or an error",
    ),
    "plan without moments": (
        lambda w, t: ("plan", w.bare, "--budget", 0.5),
        "was made without moments",
    ),
    "plan of nothing": (lambda w, t: ("plan", t / "nowhere", "--budget", 0.5), "no such study"),
    "plan for another model": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "--model", w.other),
        "but other has weights",
    ),
    "plan over a plan": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "-o", w.plan),
        "already exists",
    ),
    "plan by magic": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "--estimators", "magic"),
        "no estimator 'magic'",
    ),
    "evaluate nothing": (
        lambda w, t: ("evaluate", w.model, "--plan", t / "nowhere"),
        "is not a plan",
    ),
    "evaluate another model": (
        lambda w, t: ("evaluate", w.other, "--plan", w.plan),
        "the plan was made for tiny",
    ),
    "evaluate another length": (
        lambda w, t: ("evaluate", w.model, w.text, "--plan", w.plan, "--max-length", 20),
        "up to 16 tokens, not 20",
    ),
    "evaluate over a plan": (
        lambda w, t: ("evaluate", w.model, "--plan", w.plan, "-o", w.plan, "--overwrite"),
        "is the folder of a plan; name another folder for the evaluation",
    ),
    "evaluate into a full folder": (
        lambda w, t: ("evaluate", w.model, "--plan", w.plan, "-o", w.model),
        "already exists; name another folder",
    ),
    "evaluate another version": (
        lambda w, t: ("evaluate", w.model, "--plan", other_plan(w, t)),
        r"has format 99, written by eigenlens 0\.2\.0, and eigenlens 0\.2\.0 reads format 1",
    ),
    "compare somehow": (
        lambda w, t: ("compare", w.study, w.study, "--centring", "off"),
        "no centring 'off'",
    ),
}


def command_of(case, world, tmp_path):
    """The arguments of a case; a study that names no place gets one that is not there."""
    args = BAD[case][0](world, tmp_path)
    if args[0] == "plan" and "-o" not in args:
        args = (*args, "-o", tmp_path / "out")
    if args[0] == "study":
        place = () if "-o" in args else ("-o", tmp_path / "out")
        args = (*args, *place, *(() if "--max-length" in args else SMALL))
    return args
