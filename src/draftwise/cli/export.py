"""`draftwise export`: a model in another engine's file format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwise.errors import UserError

from . import show
from .complete import model_name
from .options import AsJson
from .progress import progress

if TYPE_CHECKING:
    from draftwise.models.gguf.export import Exported

FORMATS = ("gguf",)


def export(
    format: Annotated[str, typer.Argument(help="The format: gguf, which llama.cpp reads.")],
    model: Annotated[
        str,
        typer.Argument(help="The model: zoo:NAME, a folder or a Hugging Face id.", autocompletion=model_name),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    type: Annotated[
        str, typer.Option(help="The type of the matrices: f32, f16, bf16, q8_0 or q4_k.")
    ] = "f16",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code in the model's folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a model with its tokenizer and chat template for llama.cpp.

    Examples:
    draftwise export gguf zoo:target -o target.gguf
    draftwise export gguf zoo:target -o small.gguf --type q8_0
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: choose from {', '.join(FORMATS)}")
    from draftwise.models.gguf.export import export_gguf

    with progress(f"loading {model}") as tell:
        made = export_gguf(model, out, type=type, trust_remote_code=trust_remote_code, tell=tell)
    _report(made, as_json=as_json)


def _report(made: Exported, *, as_json: bool) -> None:
    if as_json:
        show.dump(made.as_dict())
        return
    print(
        f"{made.path}: {made.architecture}, {made.type}, {made.bytes / 1e6:,.1f} MB, in {made.seconds:.1f} s"
    )
    print(f"tensors: {_counted(made.tensors)}")
    if made.fallbacks:
        count = sum(made.fallbacks.values())
        print(
            f"{count} of them have rows that are not whole blocks of {made.block}, as {made.type} needs, and "
            f"are of another type: {_counted(made.fallbacks)}"
        )
    print(f"tokenizer: {made.pre}, which gives Transformers' ids and texts for {made.compared:,} texts")
    for note in made.notes:
        print(note)


def _counted(types: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in types.items())
