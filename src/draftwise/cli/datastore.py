"""`draftwise datastore`: the corpus of the retrieval drafter."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .command import Group, add
from .complete import model_name
from .options import AsJson
from .progress import progress

if TYPE_CHECKING:
    from draftwise.drafters.lookup.datastore import Header

app = typer.Typer(cls=Group, help="Build a datastore for the drafter retrieval:PATH.")


@app.callback(invoke_without_command=True)
def datastore(context: typer.Context) -> None:
    """Build a datastore for the drafter retrieval:PATH."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build(
    corpus: Annotated[
        list[Path],
        typer.Argument(help="Text files: .txt, .jsonl (prompt and completion, or text), or folders of them."),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            help="The target model: zoo:NAME, a folder or a Hugging Face id.", autocompletion=model_name
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code in the model's folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a datastore from a text corpus, with the tokenizer of one target.

    Examples:
    draftwise datastore build notes code.jsonl --tokenizer zoo:target --out my-datastore
    """
    from draftwise.drafters.lookup.datastore import build as build_datastore
    from draftwise.drafters.lookup.datastore import tokenizer_fingerprint
    from draftwise.models.load import load_tokenizer

    start = perf_counter()
    spoken = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    vocab = spoken.get_vocab()

    with progress("reading the corpus") as tell:
        header = build_datastore(
            corpus,
            out,
            encode=lambda text: spoken(text, add_special_tokens=False, verbose=False)["input_ids"],
            vocab_size=max(vocab.values()) + 1,
            fingerprint=tokenizer_fingerprint(vocab),
            progress=tell,
        )
    _report(header, out, perf_counter() - start, as_json=as_json)


add(app, build)


def _report(header: Header, out: Path, seconds: float, *, as_json: bool) -> None:
    size = sum(f.stat().st_size for f in out.iterdir())
    if as_json:
        made = {"path": str(out), "documents": header.documents, "tokens": header.tokens}
        vocabulary = {"vocab_size": header.vocab_size, "fingerprint": header.fingerprint}
        show.dump({**made, **vocabulary, "bytes": size, "seconds": seconds})
        return
    print(
        f"{header.tokens:,} tokens of {header.documents:,} documents, {size / 1e6:,.1f} MB, "
        f"in {seconds:.1f} s; draft from it with retrieval:{out}"
    )
