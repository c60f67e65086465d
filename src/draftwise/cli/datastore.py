"""`draftwise datastore`: what the retrieval drafter looks things up in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .options import AsJson

if TYPE_CHECKING:
    from draftwise.drafters.lookup.datastore import Header

PATIENCE_SECONDS = 2.0  # a shorter build shows no progress
REDRAW_SECONDS = 0.1

app = typer.Typer(help="Build a datastore for the drafter retrieval:PATH.")


@app.callback(invoke_without_command=True)
def datastore(context: typer.Context) -> None:
    """Build a datastore for the drafter retrieval:PATH."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def build(
    corpus: Annotated[
        list[Path],
        typer.Argument(help="Text: .txt, .jsonl (prompt and completion, or text), or folders of them."),
    ],
    tokenizer: Annotated[str, typer.Option(help="The target: zoo:NAME, a folder or a Hugging Face id.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code in the model's folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a datastore from a text corpus, in the vocabulary of one target."""
    from draftwise.drafters.lookup.datastore import build as build_datastore
    from draftwise.drafters.lookup.datastore import tokenizer_fingerprint
    from draftwise.models.load import load_tokenizer

    start = perf_counter()
    spoken = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    vocab = spoken.get_vocab()

    with _progress() as progress:
        header = build_datastore(
            corpus,
            out,
            encode=lambda text: spoken(text, add_special_tokens=False, verbose=False)["input_ids"],
            vocab_size=max(vocab.values()) + 1,
            fingerprint=tokenizer_fingerprint(vocab),
            progress=progress,
        )
    _report(header, out, perf_counter() - start, as_json=as_json)


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


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on stderr, once a build has taken long; nothing where stderr is not a terminal."""
    from rich.progress import Progress, TaskID

    console = show.console(stderr=True)
    bars = Progress(console=console, auto_refresh=False, transient=True)
    tasks: dict[str, TaskID] = {}
    drawn = perf_counter() + PATIENCE_SECONDS - REDRAW_SECONDS

    def report(what: str, done: int, total: int) -> None:
        nonlocal drawn
        if not console.is_terminal or perf_counter() - drawn < REDRAW_SECONDS:
            return
        bars.start()
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total, refresh=True)
        drawn = perf_counter()

    try:
        yield report
    finally:
        if tasks:
            bars.stop()
