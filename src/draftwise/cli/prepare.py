"""`draftwise train`, `datastore`, `compile`, `export` and `merge`: files that other verbs start with."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from draftwise.errors import UserError
from draftwise.train.settings import (
    ClassifierRun,
    DrafterRun,
    EagleRun,
    MedusaRun,
    RouterRun,
    Run,
    list_defaults,
    read_options,
)

from .command import Group, add
from .options import LoadingOptions, TrustRemoteCode, complete, drafters_of
from .progress import progress, resumable, stages
from .show import Result, table

if TYPE_CHECKING:
    from draftwise.models.gguf.export import Exported

datastore = typer.Typer(cls=Group, help="Build a datastore for the drafter retrieval:PATH.")


def build(
    corpus: Annotated[
        list[Path],
        typer.Argument(help="Text files: .txt, .jsonl (prompt and completion, or text), or folders of them."),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            help="The target model: zoo:NAME, a folder or a Hugging Face id.", autocompletion=complete("zoo")
        ),
    ],
    out: Annotated[Path, "The folder to write."],
    trust_remote_code: TrustRemoteCode = False,
) -> Result:
    """Build a datastore from a text corpus, with the tokenizer of one target.

    Examples:
    draftwise datastore build notes code.jsonl --tokenizer zoo:target --out my-datastore
    """
    from draftwise.drafters.lookup.datastore import build as build_datastore
    from draftwise.drafters.lookup.datastore import tokenizer_fingerprint
    from draftwise.measure.writing import check_reachable
    from draftwise.models.load import load_tokenizer

    check_reachable(out)
    start = perf_counter()
    with progress("loading the tokenizer") as tell:
        spoken = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        vocab = spoken.get_vocab()
        header = build_datastore(
            corpus,
            out,
            encode=lambda text: spoken(text, add_special_tokens=False, verbose=False)["input_ids"],
            vocab_size=max(vocab.values()) + 1,
            fingerprint=tokenizer_fingerprint(vocab),
            progress=tell,
        )
    seconds, size = perf_counter() - start, sum(f.stat().st_size for f in out.iterdir())
    counts = {"path": str(out), "documents": header.documents, "tokens": header.tokens}
    vocabulary = {"vocab_size": header.vocab_size, "fingerprint": header.fingerprint}
    summary = (
        f"{header.tokens:,} tokens of {header.documents:,} document{'s' * (header.documents > 1)}, "
        f"{size / 1e6:,.1f} MB, "
        f"in {seconds:.1f} s; draft from it with retrieval:{out}"
    )
    return Result({**counts, **vocabulary, "bytes": size, "seconds": seconds}, partial(print, summary))


add(datastore, build)


def compile_(models: LoadingOptions) -> Result:
    """Compile the passes of a target and its drafters; later runs on this machine start with them.

    Examples:
    draftwise compile
    draftwise compile --target Qwen/Qwen3-0.6B --drafters ngram,suffix --dtype float32
    """
    with stages(f"compiling {models.target}"):
        from draftwise import Decoder

        options = asdict(models) | {"drafters": drafters_of(models.target, models.drafters), "compile": "on"}
        decoder = Decoder.from_pretrained(options.pop("target"), **options)
    rows = [[name, state] for name, state in decoder.compiled.items()]
    text = partial(table, None, rows, prose=True) if rows else partial(print, NOTHING_TO_COMPILE)
    return Result(decoder.compiled, text)


NOTHING_TO_COMPILE = "nothing to compile: PyTorch runs none of these models"
FORMATS = ("gguf", "safetensors")


def export(
    format: Annotated[
        str, typer.Argument(help="The format: gguf, which llama.cpp reads, or safetensors, for a GGUF file.")
    ],
    model: Annotated[
        str,
        typer.Argument(
            help="The model: zoo:NAME, a folder, a Hugging Face id or a GGUF file.",
            autocompletion=complete("zoo"),
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, or the folder, to write.")],
    type: Annotated[str, "The type of a GGUF file's matrices: f32, f16, bf16, q8_0 or q4_k."] = "f16",
    trust_remote_code: TrustRemoteCode = False,
) -> Result:
    """Convert a model with its tokenizer and chat template for llama.cpp, or from its format.

    Examples:
    draftwise export gguf zoo:target -o target.gguf
    draftwise export gguf zoo:target -o small.gguf --type q8_0
    draftwise export safetensors model.gguf -o folder
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: choose from {', '.join(FORMATS)}")
    if format == "safetensors":
        if type != "f16":
            raise UserError(f"--type {type}: is of GGUF files alone; a folder has the values of the file")
        with progress(f"reading {model}") as tell:
            from draftwise.models.gguf.folder import export_folder

            folder = export_folder(model, out, tell=tell)
        size = sum(file.stat().st_size for file in folder.iterdir())
        return Result({"path": str(folder), "bytes": size}, partial(print, f"{folder}: {size / 1e6:,.1f} MB"))
    with progress(f"loading {model}") as tell:
        from draftwise.models.gguf.export import export_gguf

        result = export_gguf(model, out, type=type, trust_remote_code=trust_remote_code, tell=tell)
    return Result(result.as_dict(), partial(_exported, result))


def _exported(result: Exported) -> None:
    print(
        f"{result.path}: {result.architecture}, {result.type}, {result.bytes / 1e6:,.1f} MB, "
        f"in {result.seconds:.1f} s"
    )
    print(f"tensors: {_counted(result.tensors)}")
    if result.fallbacks:
        count = sum(result.fallbacks.values())
        print(
            f"{count} of them have rows that are not whole blocks of {result.block}, as {result.type} "
            f"needs, and are of another type: {_counted(result.fallbacks)}"
        )
    print(f"tokenizer: {result.pre}, which gives Transformers' ids and texts for {result.compared:,} texts")
    for note in result.notes:
        print(note)


def _counted(types: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in types.items())


def merge(
    files: Annotated[list[Path], typer.Argument(help="State files of the same policy, target and drafters.")],
    out: Annotated[Path, "The file to write; it may be one of the inputs."],
) -> Result:
    """Merge the state files of several replicas into one.

    Examples:
    draftwise merge replica-1.json replica-2.json --out learned.json
    """
    from draftwise.policies.catalogue import method
    from draftwise.state.file import merge as merge_files

    report = merge_files(files, out, new_policy=lambda name, drafters: method(name, drafters).policy)
    return Result(report, partial(print, f"{report['policy']}: {len(files)} files merged into {out}"))


# -- drafters, heads, classifiers and routers, trained on the target's own text -----------------------------


training = typer.Typer(
    cls=Group, help="Train drafters, heads, classifiers and routers on the target's own text."
)
OUT = Annotated[Path, "The folder to write; an interrupted training there is resumed."]
CONFIG = Annotated[Path | None, "A YAML file of options; options on the command line override it."]


def _verb(name: str, kind: type[Run], help: str) -> None:
    """One command whose options are the fields of `kind`, which the YAML file may also have."""

    def command(out: Path, config: Path | None, **options: Any) -> Result:
        run = read_options(kind, config, options)
        with resumable("training", out), progress("loading models") as tell:
            learn = import_module(f"draftwise.train.{name}").train
            results = learn(run, out, tell)
        return Result({"path": str(out), **results}, partial(_report, results, out))

    parameters = [
        Parameter("out", Parameter.KEYWORD_ONLY, annotation=OUT),
        Parameter("config", Parameter.KEYWORD_ONLY, annotation=CONFIG, default=None),
    ]
    hints = get_type_hints(kind)
    for option, (default, text) in list_defaults(kind).items():
        parameters.append(_parameter(option, hints[option], default, text))
    command.__name__, command.__doc__ = name, help
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": Result}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    add(training, command, name=name)


def _parameter(name: str, kind: Any, default: Any, text: str) -> Parameter:
    """An option that is None unless given, so that the YAML file can set it."""
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    if kind is bool:
        option = typer.Option(f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}", help=text)
        annotation: Any = bool | None
    else:
        option = typer.Option(help=f"{text} Default: {shown}." if shown else text)
        annotation = (kind if kind in (int, float) else str) | None
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, option], default=None)


_verb(
    "drafter",
    DrafterRun,
    """Train a small draft model by self-distillation, for one domain or all of them.

    Examples:
    draftwise train drafter --data prompts.jsonl --out my-drafter
    draftwise train drafter --data prompts.jsonl --target zoo:target --steps 500 --out my-drafter
    """,
)
_verb(
    "eagle",
    EagleRun,
    """Train an EAGLE or EAGLE-3 head on the target's hidden states.

    Examples:
    draftwise train eagle --data prompts.jsonl --out my-head
    """,
)
_verb(
    "medusa",
    MedusaRun,
    """Train Medusa heads on the target's last hidden state.

    Examples:
    draftwise train medusa --data prompts.jsonl --out my-heads
    """,
)
_verb(
    "classifier",
    ClassifierRun,
    """Train a classifier that stops drafts: DISCO's or SpecDec++'s.

    Examples:
    draftwise train classifier --data prompts.jsonl --drafter zoo:general --out my-classifier
    """,
)
_verb(
    "router",
    RouterRun,
    """Train a text classifier that chooses a drafter from the prompt.

    Examples:
    draftwise train router --data prompts.jsonl --routes code=zoo:code,sql=zoo:sql --out my-router
    """,
)


def _report(results: dict[str, Any], out: Path) -> None:
    after = results["after"]
    before = results.get("before", {})
    rows = [[name, _shown(before[name]) if name in before else "", _shown(after[name])] for name in after]
    header = ["held out", "before", "after"]
    if not before:  # as of a new head
        header, rows = header[::2], [row[::2] for row in rows]
    table(header, rows)
    if "speed" in results:
        from draftwise.train.results import verdict

        print(verdict(results["speed"]))
    print("written:", out)


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.3f}"
