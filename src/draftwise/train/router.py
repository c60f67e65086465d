"""`draftwise train router`: a text classifier that picks a drafter from the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data import Prompt
from ..data.rewording import reword
from ..drafters.lookup.datastore import tokenizer_fingerprint
from ..errors import UserError
from ..generation.prompts import prompt_ids
from ..models.load import load_tokenizer
from ..policies.classifiers.routing import Router, runs, save
from .folder import Folder
from .results import write_card
from .settings import RouterRun
from .texts import Tell, prompts


def train(run: RouterRun, out: Path, tell: Tell) -> dict[str, Any]:
    """Train a router. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or tokenizer.
    """
    folder = Folder(out)
    if done := folder.claim("router", run):
        return done
    with folder.guarded():
        return _train(run, folder, tell)


def _train(run: RouterRun, folder: Folder, tell: Tell) -> dict[str, Any]:
    tokenizer = load_tokenizer(run.target, trust_remote_code=run.trust_remote_code)
    to_learn, held_out = labelled(run)
    names = sorted({name for _, name in to_learn})

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [prompt_ids(tokenizer, text, chat=not run.raw) for text in texts]

    tell("Training", 0, 2)
    router = fitted(
        run,
        encode([p.text for p, _ in to_learn]),
        [name for _, name in to_learn],
        tokenizer_fingerprint(tokenizer.get_vocab()),
    )
    tell("Training", 1, 2)
    results = {"train": "router", "drafters": names, "prompts": len(to_learn)}
    results["after"] = measured(router, held_out, encode)

    def write(part: Path) -> None:
        save(router, part)
        write_card(part, "router", folder.name, run, results)

    folder.deliver(write, results)
    tell("Training", 2, 2)
    return results


def labelled(run: RouterRun) -> tuple[list[tuple[Prompt, str]], list[tuple[Prompt, str]]]:
    """Training and held-out prompts, each with its drafter; prompts without one are left out.

    Raises:
        UserError: fewer than two drafters have prompts.
    """
    to_learn, held_out = (
        [(p, name) for p in some if (name := route(run.pairs, p.domain))] for some in prompts(run)
    )
    names = sorted({name for _, name in to_learn})
    if len(names) < 2 or not held_out:
        raise UserError(
            f"the data has prompts for {', '.join(names) or 'no drafter'}: name two or more as "
            "--routes DOMAIN=DRAFTER,..., by how the `domain` of the rows begins"
        )
    return to_learn, held_out


def fitted(run: RouterRun, texts: Sequence[Sequence[int]], names: Sequence[str], vocabulary: str) -> Router:
    """TF-IDF over token n-grams, and logistic regression, both from scikit-learn."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    # A term in only one prompt does not generalise; but few prompts share few terms.
    words = TfidfVectorizer(
        analyzer=lambda ids: runs(ids, run.longest),
        sublinear_tf=True,
        max_features=run.terms,
        min_df=2 if len(texts) > 100 else 1,
    )
    x = words.fit_transform(texts)
    classifier = LogisticRegression(C=run.strength, max_iter=1000, random_state=run.seed).fit(x, list(names))
    weight, bias = classifier.coef_, classifier.intercept_
    if len(classifier.classes_) == 2:  # scikit-learn keeps one row for two classes
        weight, bias = np.concatenate((-weight, weight)) / 2, np.concatenate((-bias, bias)) / 2
    terms = {tuple(map(int, run)): int(i) for run, i in words.vocabulary_.items()}
    return Router(tuple(map(str, classifier.classes_)), terms, words.idf_, weight, bias, vocabulary)


def measured(router: Router, held_out: Sequence[tuple[Prompt, str]], encode: Any) -> dict[str, float]:
    """Accuracy on held-out prompts, and on reworded copies of them."""
    right = _right(router, encode([p.text for p, _ in held_out]), [name for _, name in held_out])
    others = [(text, name) for p, name in held_out for text in reword(p.text)]
    accuracies = {"accuracy": sum(right) / len(right)}
    if others:
        right = _right(router, encode([text for text, _ in others]), [name for _, name in others])
        accuracies["accuracy_reworded"] = sum(right) / len(right)
    return accuracies


def route(pairs: dict[str, str], domain: str) -> str:
    """The drafter of a domain: that of the longest matching prefix; none if no prefix matches."""
    fitting = [name for name in pairs if domain.startswith(name)]
    return pairs[max(fitting, key=len)] if fitting else ""


def _right(router: Router, texts: Sequence[Sequence[int]], names: Sequence[str]) -> list[bool]:
    best = (max(zip(router.scores(ids), router.drafters, strict=True))[1] for ids in texts)
    return [drafter == name for drafter, name in zip(best, names, strict=True)]
