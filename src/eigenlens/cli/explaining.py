"""The command that asks which tokens decide: explain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import EigenlensError
from .app import Device, Json, app
from .places import place_for
from .terminal import show


class TextLast(TyperCommand):
    """A command whose text may begin with -; where it was taken for options, the error says how to
    give it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            message: Any = error
            kind, hint = (
                type(error).__name__,
                f"a text that begins with - comes last, behind --: {HOW}",
            )
            if kind == "NoSuchOption":
                message.message = f"{message.message}; {hint}."
            elif kind == "MissingParameter" and any(x.startswith("-") and " " in x for x in given):
                message.message = f"{hint.capitalize()}."
            raise


HOW = 'eigenlens explain MODEL --against "…" -- "-5 degrees"'


@app.command(cls=TextLast)
def explain(
    model: Annotated[str, typer.Argument(help="A catalogue name, a folder, or a hub id.")],
    text: Annotated[
        str,
        typer.Argument(
            help="The text, - for standard input, a picture for vision, a .wav file for speech."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help=(
                "What is explained: a token, as text or id:NUMBER, a class by number or name,"
                " position:class, or output "
                "(default: the likeliest)."
            )
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A second text or picture: explain how alike an embedding model finds the two."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods by name, with commas (default: all).")
    ] = None,
    deletion: Annotated[
        bool,
        typer.Option(
            "--deletion/--no-deletion",
            help="Measure what becomes of the target when tokens are taken away.",
        ),
    ] = True,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help=(
                "The folder of the explanation (default: explanation, or explanation-2, … where"
                " that is taken)."
            ),
        ),
    ] = None,
    max_memory: Annotated[
        float,
        typer.Option(
            help=(
                "Most memory for attention patterns and their gradients; a text that takes more is"
                " refused."
            )
        ),
    ] = 8.0,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing explanation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say which tokens of a text, or patches of a picture, decide what a model makes of it, by
    every method.
    """
    from ..explanations import explain as make
    from ..reports import report as write
    from ..run.progress import bar

    output_dir = place_for(output_dir, "explanation", ["explanation.json"], force=overwrite)
    given = _standard_input() if text == "-" else text
    with bar() as progress:
        made = make(
            model,
            given,
            target=target,
            against=against,
            methods=methods,
            deletion=deletion,
            output_dir=output_dir,
            overwrite=overwrite,
            max_memory=max_memory,
            device=device,
            progress=progress,
        )
        page = write(
            made, output=output_dir / "explanation.html", overwrite=overwrite, progress=progress
        )
    if as_json:
        print(json.dumps({**made.record(), "page": str(page)}))
        return
    show(made)
    print(f"\nEverything is in {output_dir}; look at the page: {page}")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").replace("\r\n", "\n").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise EigenlensError(f"standard input is no text in UTF-8: {error}") from error
