"""The command that asks which tokens decide: explain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import EigenlensError
from .app import app
from .options import (
    MEASURE,
    MEMORY,
    Command,
    Device,
    Json,
    ModelName,
    Overwrite,
    example,
    folder_option,
)
from .output_folder import choose_output_dir
from .terminal import show


class TextLast(Command):
    """A command whose text may begin with -.

    Where it was taken for options, the error says how to give it.
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


@app.command(cls=TextLast, epilog=example('eigenlens explain smollm2 "The capital of France is"'))
def explain(
    model: ModelName,
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
                " position:class, or output (default: what the model finds likeliest)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help=(
                "A second text or picture: explain how alike an embedding model finds the two"
                " (default: none)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods by name, with commas (default: all).", rich_help_panel=MEASURE),
    ] = None,
    deletion: Annotated[
        bool,
        typer.Option(
            "--deletion/--no-deletion",
            help="Measure the target again while tokens are taken away.",
            rich_help_panel=MEASURE,
        ),
    ] = True,
    output_dir: Annotated[
        Path | None, folder_option("explanation", "The folder of the explanation")
    ] = None,
    overwrite: Overwrite = False,
    max_memory: Annotated[
        float,
        typer.Option(
            help=(
                "Most gigabytes for attention patterns and their gradients; a text that takes more"
                " is refused."
            ),
            rich_help_panel=MEMORY,
        ),
    ] = 8.0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Explain which tokens decide what a model makes of a text.

    Every method scores every token of a text, or every patch of a picture.
    """
    from ..explanations import explain as make
    from ..reports import report as write
    from ..run.progress import progress_bar

    output_dir = choose_output_dir(
        output_dir, "explanation", ["explanation.json"], overwrite=overwrite
    )
    given = _standard_input() if text == "-" else text
    with progress_bar() as progress:
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
    show(made, folder=output_dir)
    print(f"\nEverything is in {output_dir}. Look at the page: {page}")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").replace("\r\n", "\n").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise EigenlensError(f"standard input is no text in UTF-8: {error}") from error
