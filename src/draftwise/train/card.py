"""The model card: training data, licence, and measured quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .folder import Material
from .reading import plain
from .settings import Run

WHAT = {
    "drafter": "A drafter: a small language model that drafts tokens for the target.",
    "eagle": "An EAGLE head: it drafts tokens from the target's own hidden states.",
    "medusa": "Medusa heads: each drafts one later token from the target's last hidden state.",
    "disco": "A classifier that stops drafts, as in DISCO (arXiv 2405.04304).",
    "specdecpp": "A classifier that stops drafts, as in SpecDec++ (arXiv 2405.19715).",
    "router": "A router: it chooses a drafter from the prompt.",
}
USE = {
    "drafter": "draftwise generate PROMPT --target {target} --drafters {out}",
    "eagle": "draftwise generate PROMPT --target {target} --drafters eagle:{out}",
    "medusa": "draftwise generate PROMPT --target {target} --drafters medusa:{out}",
    "disco": "draftwise generate PROMPT --target {target} --drafters {drafter} "
    "--policy 'disco?model={out}/model.safetensors'",
    "specdecpp": "draftwise generate PROMPT --target {target} --drafters {drafter} "
    "--policy 'specdecpp?model={out}/model.safetensors'",
    "router": "draftwise generate PROMPT --target {target} --drafters {drafter} --policy router:{out}",
}
MEASURES = {
    "mean_accepted": "accepted tokens a round",
    "acceptance_rate": "acceptance rate (accepted / drafted)",
    "f1": "F1 of 'the token is accepted'",
    "accuracy": "accuracy",
    "accuracy_reworded": "accuracy on reworded prompts",
}


def card(kind: str, out: str, run: Run, results: Mapping[str, Any], material: Material | None) -> str:
    """The text of README.md, with Hugging Face's metadata as front matter."""
    import yaml

    options = plain(run)
    options["data"] = ["/".join(Path(name).parts[-2:]) for name in run.data]  # no folders of this machine
    options.pop("answers", None)
    drafter = options.get("drafter") or ",".join(results.get("drafters", ()))
    use = USE[kind].format(target=run.target, out=out, drafter=drafter)
    head = {"library_name": "transformers" if kind == "drafter" else "draftwise", "license": "other"}
    head |= {"license_name": run.licence or "as the data"}
    said = yaml.safe_dump(head | {"tags": TAGS}, sort_keys=False)
    return "\n".join(
        [
            f"---\n{said}---\n",
            f"# {out}\n",
            f"{WHAT[kind]} Made for `{run.target}` with Draftwise.\n",
            f"## Use\n\n```sh\n{use}\n```\n",
            f"## Measured\n\n{_measured(results)}\n",
            f"## Data\n\n{_data(run, material, options['data'])}\n",
            f"## Training\n\n```yaml\n{yaml.safe_dump(options, sort_keys=False)}```\n",
            f"## Limits\n\n{LIMITS.format(target=run.target)}\n",
        ]
    )


LIMITS = """- Made for `{target}`: with another target it is refused, or its acceptance rate is low.
- It changes the speed of the target, never its text; its figures do not measure the target's quality.
- Measured on text like the training data; the acceptance rate may be lower on other text."""
BEFORE = {
    "drafter": "Greedy, 5 tokens a draft; before: the model that training started from.",
    "eagle": "Greedy, 5 tokens a draft; before: the head that training started from, if any.",
    "medusa": "Greedy, 5 tokens a draft.",
    "classifier": "Greedy; before: 5 tokens a draft, every token classified as accepted.",
}
TAGS = ["speculative-decoding", "draftwise"]


def _measured(results: Mapping[str, Any]) -> str:
    """Measurements on held-out prompts, and before training if there was a model."""
    before, after = results.get("before") or {}, results["after"]
    lines = [f"On held-out prompts. {BEFORE.get(results['train'], '')}".strip() + "\n"]
    lines += ["| | before | after |", "|---|---|---|"] if before else ["| | |", "|---|---|"]
    for name in [name for name in MEASURES if name in after]:
        old = f" {before[name]:.3f} |" if before else ""
        lines.append(f"| {MEASURES[name]} |{old} {after[name]:.3f} |")
    return "\n".join(lines)


def _data(run: Run, material: Material | None, files: Sequence[str]) -> str:
    """Files, sources and domains, with their numbers of prompts."""
    licence = run.licence or "not stated: see the sources"
    lines = [f"Licence of the data: {licence}.\n"]
    if material is not None:
        lines += [f"{len(material.answers)} answers of the target to prompts of these files:\n"]
    lines += [f"- {name}" for name in files]
    if material is not None:
        lines += ["", "| source | prompts |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in material.sources.items()]
        lines += ["", "| domain | prompts |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in material.domains.items()]
    return "\n".join(lines)
