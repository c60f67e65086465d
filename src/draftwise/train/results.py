"""What every training has in common, and what it leaves behind: acceptance, speed, curves, model card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Generic

import torch

from ..core.sampling import Sampling
from ..generation.decoder import Decoder
from ..state.cached import OFF
from .folder import Folder, Material, Prepare, gather
from .settings import Run, Training, as_plain
from .steps import LENGTH, Log, T, Task, settled, take
from .texts import Tell

LOOKUPS = ["ngram", "suffix"]
TIMED, TIMED_TOKENS = 8, 64  # prompts that speeds are measured on, and the longest texts there
BATCH = 8  # batch size, which does not affect acceptance
TAGS = ["speculative-decoding", "draftwise"]
WHAT = {
    "drafter": "A drafter: a small language model that drafts tokens for the target.",
    "eagle": "An EAGLE head: it drafts tokens from the target's own hidden states.",
    "medusa": "Medusa heads: each drafts one later token from the target's last hidden state.",
    "disco": "A classifier that stops drafts, as in DISCO (arXiv 2405.04304).",
    "specdecpp": "A classifier that stops drafts, as in SpecDec++ (arXiv 2405.19715).",
    "router": "A router: it chooses a drafter from the prompt.",
}
USE = {
    "drafter": "{out}",
    "eagle": "eagle:{out}",
    "medusa": "medusa:{out}",
    "disco": "{drafter} --policy 'disco?model={out}/model.safetensors'",
    "specdecpp": "{drafter} --policy 'specdecpp?model={out}/model.safetensors'",
    "router": "{drafter} --policy router:{out}",
}
MEASURES = {
    "mean_accepted": "accepted tokens a round",
    "acceptance_rate": "acceptance rate (accepted / drafted)",
    "f1": "F1 of 'the token is accepted'",
    "accuracy": "accuracy",
    "accuracy_reworded": "accuracy on reworded prompts",
}
BEFORE = {
    "drafter": "Greedy, 5 tokens a draft; before: the model that training started from.",
    "eagle": "Greedy, 5 tokens a draft; before: the head that training started from, if any.",
    "medusa": "Greedy, 5 tokens a draft.",
    "classifier": "Greedy; before: 5 tokens a draft, every token classified as accepted.",
}
LIMITS = """- Made for `{target}`: with another target it is refused, or its acceptance rate is low.
- It changes the speed of the target, never its text; its figures do not measure the target's quality.
- Measured on text like the training data; the acceptance rate may be lower on other text."""


@dataclass(frozen=True, slots=True)
class Session(Generic[T]):
    """One training under way: its verb, options, folder and material, and what shows its progress."""

    verb: str
    run: T
    folder: Folder
    material: Material
    tell: Tell

    def take_steps(self, task: Task) -> Log:
        """Take all steps of a task; returns the log."""
        return take(task, self.run, self.folder.checkpoints, self.tell, self.material.budget)

    def measure(self, drafter: Any, policy: str = f"static-{LENGTH}") -> dict[str, float]:
        """Return the `acceptance` of a drafter on held-out prompts."""
        given, limit = self.material, self.run.max_new_tokens
        return acceptance(
            given.target,
            given.tokenizer,
            drafter,
            given.measuring,
            max_new_tokens=limit,
            policy=policy,
            tell=self.tell,
        )

    def measure_drafter(self, drafter: Any) -> dict[str, Any]:
        """Return the acceptance and the speeds of a drafter, as results."""
        return {"after": self.measure(drafter), "speed": speeds(self.material, drafter, self.tell)}

    def deliver(
        self,
        log: Log,
        *,
        title: str,
        save: Callable[[Path], None],
        measure: Callable[[Path], Mapping[str, Any]],
        before: Mapping[str, float] | None = None,
        kind: str = "",
    ) -> dict[str, Any]:
        """Store what was trained, measure it, draw its curves and write its model card; returns the results.

        `save` writes it to a folder, and `measure` returns more results once it is there. `before` was
        measured on what training started from.
        """
        results: dict[str, Any] = {"train": self.verb, "steps": log[-1]["step"], "log": log}
        results |= ({"kind": kind} if kind else {}) | ({"before": dict(before)} if before else {})
        name = self.folder.name

        def write(part: Path) -> None:
            save(part)
            results.update(measure(part))
            curves(log, part / "curves.png", f"{name}: {title}")
            write_card(part, kind or self.verb, name, self.run, results, self.material)

        return self.folder.deliver(write, results)

    def deliver_head(self, head: Any, log: Log, before: Mapping[str, float] | None = None) -> dict[str, Any]:
        """`deliver` a head in the published format."""
        run: Any = self.run

        def save(part: Path) -> None:
            head.eval().to(getattr(torch, run.dtype)).save(part)
            head.float()

        def measure(part: Path) -> dict[str, Any]:
            return self.measure_drafter(f"{self.verb}:{part}")

        title = f"{self.verb} for {run.target}"
        return self.deliver(log, title=title, save=save, measure=measure, before=before)


Trained = Callable[[Session[T]], dict[str, Any]]


def prepare_nothing(run: Training, target: Any, tokenizer: Any) -> None:
    """Leave all to the training itself."""


def training(
    verb: str, prepare: Prepare = prepare_nothing
) -> Callable[[Trained[T]], Callable[[T, Path, Tell], dict[str, Any]]]:
    """Make a training of what is to be done in a session: `train(run, out, tell)`.

    It claims the folder `out`, settles the precision and gathers the material, with what `prepare` returns.
    Called again, it resumes an interrupted run. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or model.
    """

    def make(train: Trained[T]) -> Callable[[T, Path, Tell], dict[str, Any]]:
        def run_training(run: T, out: Path, tell: Tell) -> dict[str, Any]:
            folder = Folder(out)
            if done := folder.claim(verb, run):
                return done
            with folder.guarded(), settled(run, folder.numerics) as run:
                return train(Session(verb, run, folder, gather(run, folder, tell, prepare), tell))

        run_training.__doc__ = train.__doc__
        return run_training

    return make


def acceptance(
    target: Any,
    tokenizer: Any,
    drafter: Any,
    encoded: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    policy: str = f"static-{LENGTH}",
    tell: Tell | None = None,
) -> dict[str, float]:
    """Greedy decoding of some prompts by one policy, five draft tokens per round unless it sets a length.

    `mean_accepted` counts accepted tokens per round without the target's own; `acceptance_rate` is accepted /
    drafted.
    """
    decoder = Decoder.from_pretrained(
        target, tokenizer=tokenizer, drafters=[drafter], policy=policy, state=OFF
    )
    sampling = Sampling(max_new_tokens=max_new_tokens, eos=decoder.eos)
    accepted = drafted = rounds = ended = 0
    if tell is not None:
        tell("Measuring", 0, len(encoded))
    for round in decoder.loop.run(encoded, sampling, batch=BATCH):
        accepted, drafted, rounds = accepted + round.accepted, drafted + round.drafted, rounds + 1
        ended += round.done
        if tell is not None and round.done:
            tell("Measuring", ended, len(encoded))
    return {
        "mean_accepted": accepted / max(rounds, 1),
        "acceptance_rate": accepted / max(drafted, 1),
        "rounds": rounds,
    }


def speeds(material: Material, drafter: Any, tell: Tell) -> dict[str, float]:
    """Tokens per second on some held-out prompts: plain, with lookups, and with lookups and this drafter.

    `auto` decides in the last two. The three take turns with each prompt, after one that is not counted.
    """
    names = {"plain": [], "lookups": LOOKUPS, "trained": [*LOOKUPS, drafter]}
    decoders = {
        name: Decoder.from_pretrained(material.target, tokenizer=material.tokenizer, drafters=team, state=OFF)
        for name, team in names.items()
    }
    tokens, seconds = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    prompts = material.measuring[:TIMED]
    for number, ids in enumerate([prompts[0], *prompts]):
        tell("Measuring speed", number, len(prompts) + 1)
        for name in list(names)[number % 3 :] + list(names)[: number % 3]:
            sampling = Sampling(max_new_tokens=TIMED_TOKENS, eos=decoders[name].eos)
            start = perf_counter()
            written = sum(len(round.tokens) for round in decoders[name].loop.run([ids], sampling))
            if number:
                tokens[name], seconds[name] = tokens[name] + written, seconds[name] + perf_counter() - start
    return {name: tokens[name] / seconds[name] for name in names}


def verdict(speed: Mapping[str, float]) -> str:
    """Return in one line whether a trained drafter pays, from `speeds`."""
    over = speed["trained"] / speed["lookups"]
    what = "faster than" if over > 1.02 else "slower than" if over < 0.98 else "as fast as"
    return (
        f"{speed['trained']:.1f} tokens/s with it, {speed['lookups']:.1f} with lookups alone, "
        f"{speed['plain']:.1f} plain: {what} lookups alone ({over:.2f}); `draftwise bench` measures more"
    )


def curves(log: Log, path: Path, title: str) -> None:
    """Plot the log's loss on the left, and the measurements on held-out text on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=11)
    names = sorted({name for row in log for name in row} - {"step", "loss"})
    colours = ("#2f855a", "#b7791f", "#6b46c1", "#c53030") * len(names)
    lines = [(left, "loss", "#2b6cb0"), *((right, name, colours[i]) for i, name in enumerate(names))]
    for axes, name, colour in lines:
        if points := [(row["step"], row[name]) for row in log if name in row]:
            axes.plot(*zip(*points, strict=True), color=colour, label=name, lw=1.6)
    for axes, label in ((left, "loss on the training text"), (right, "on text held out")):
        axes.set(xlabel="step", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    if names:
        right.legend(frameon=False)
    figure.savefig(path, dpi=144)


def write_card(
    folder: Path, kind: str, out: str, run: Run, results: Mapping[str, Any], material: Material | None = None
) -> None:
    """Write README.md: training data, licence and measured quality, with Hugging Face's front matter."""
    import yaml

    options = as_plain(run)
    options["data"] = ["/".join(Path(name).parts[-2:]) for name in run.data]  # no folders of this machine
    options.pop("answers", None)
    drafter = options.get("drafter") or ",".join(results.get("drafters", ()))
    use = USE[kind].format(out=out, drafter=drafter)
    head = {"library_name": "transformers" if kind == "drafter" else "draftwise", "license": "other"}
    head |= {"license_name": run.licence or "as the data"}
    front = yaml.safe_dump(head | {"tags": TAGS}, sort_keys=False)
    parts = [
        f"---\n{front}---\n",
        f"# {out}\n",
        f"{WHAT[kind]} Made for `{run.target}` with Draftwise.\n",
        f"## Use\n\n```sh\ndraftwise generate PROMPT --target {run.target} --drafters {use}\n```\n",
        f"## Measured\n\n{_measured(results)}\n",
        f"## Data\n\n{_data(run, material, options['data'])}\n",
        f"## Training\n\n```yaml\n{yaml.safe_dump(options, sort_keys=False)}```\n",
        f"## Limits\n\n{LIMITS.format(target=run.target)}\n",
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _measured(results: Mapping[str, Any]) -> str:
    before, after = results.get("before") or {}, results["after"]
    lines = [f"On held-out prompts. {BEFORE.get(results['train'], '')}".strip() + "\n"]
    lines += ["| | before | after |", "|---|---|---|"] if before else ["| | |", "|---|---|"]
    for name in [name for name in MEASURES if name in after]:
        old = f" {before[name]:.3f} |" if before else ""
        lines.append(f"| {MEASURES[name]} |{old} {after[name]:.3f} |")
    return "\n".join(lines)


def _data(run: Run, material: Material | None, files: Sequence[str]) -> str:
    lines = [f"Licence of the data: {run.licence or 'not stated: see the sources'}.\n"]
    if material is not None:
        learned, apart = len(material.answers), len(material.held_out)
        lines += [f"{learned} answers of the target, and {apart} held out, to prompts of these files:\n"]
    lines += [f"- {name}" for name in files]
    if material is not None:
        for title, counts in (("source", material.sources), ("domain", material.domains)):
            lines += ["", f"| {title} | prompts |", "|---|---|"]
            lines += [f"| {name} | {count} |" for name, count in counts.items()]
    return "\n".join(lines)
