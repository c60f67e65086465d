"""The parts of training, each against what it should be by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Decoder
from draftwise.core.drafts import Signals
from draftwise.errors import UserError
from draftwise.models.heads.eagle import Eagle3, new_eagle
from draftwise.models.heads.medusa import new_medusa
from draftwise.models.load import load_model, load_tokenizer
from draftwise.policies.classifiers.stopping import features
from draftwise.train import classifier, steps, teacher, texts
from draftwise.train.classifier import DiscoTask, weighted
from draftwise.train.drafter import Distillation, _smaller
from draftwise.train.eagle import EagleTask, frequent, redrafted, start_from_target
from draftwise.train.folder import Material
from draftwise.train.medusa import MedusaTask
from draftwise.train.settings import ClassifierRun, DrafterRun, EagleRun, MedusaRun
from draftwise.train.teacher import Teacher, make_teacher
from draftwise.train.texts import Answer
from tests.tiny import VOCAB, model
from tests.train.world import Options, silent

ANSWERS = [
    Answer((3, 9, 4), (7, 8, 12, 5, 6)),
    Answer((4, 11, 3, 5, 17), (9, 3)),
    Answer((6, 6), (10, 19, 4, 4, 4, 8, 3)),
]


DOUBLE = {"remember": 0.0, "precision": "float32"}  # no cast: tiny targets are in float64, and remain so


def gradient(module: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Of all weights, one after the other; 0 where the loss does not depend on them."""
    weights = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    pairs = zip(weights, found, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def material(target: Any, file: Path = Path()) -> Material:
    return Material(target, None, file, ANSWERS, ANSWERS, [], {}, {})


# -- steps ---------------------------------------------------------------------------------------------


def test_every_example_comes_once_a_round_in_an_order_of_its_own() -> None:
    rounds = []
    for turn in range(3):
        seen = [i for s in range(4) for i in steps.examples(11, 3, 5, turn * 4 + s)]
        assert sorted(seen) == list(range(11))
        rounds.append(seen)
    assert rounds[0] != rounds[1] != rounds[2] and rounds[0] != sorted(rounds[0])
    assert steps.examples(2, 8, 0, 3) in ([0, 1], [1, 0])
    assert steps.examples(11, 3, 6, 0) != steps.examples(11, 3, 5, 0)


def test_the_rate_rises_and_falls() -> None:
    rates = [steps.schedule(s, 100, 0.1) for s in range(100)]
    assert rates[:10] == pytest.approx([(s + 1) / 11 for s in range(10)])
    assert rates[10] == 1.0 and rates[10:] == sorted(rates[10:], reverse=True) and 0 < rates[-1] < 0.001
    assert steps.schedule(0, 5, 0.0) == 1.0


def test_a_batch_in_pieces_has_the_same_loss(options: Options) -> None:
    parts = steps.pieces(ANSWERS, [2, 0, 1], 2)
    assert [part for _, part in parts] == [[1, 0], [2]] or [part for _, part in parts] == [[0, 1], [2]]
    assert [share for share, _ in parts] == pytest.approx([0.5, 0.5])  # seven tokens each
    assert steps.pieces(ANSWERS, [2, 0, 1], 1) == [(1.0, [2, 0, 1])]
    run = DrafterRun(**options(remember=0.0))
    task = Distillation(run, model("llama", seed=1), material(model("llama", seed=0)), silent)
    rng = torch.Generator()
    whole = float(task.loss([2, 0, 1], rng).detach())
    assert sum(share * float(task.loss(part, rng).detach()) for share, part in parts) == pytest.approx(whole)


# -- losses ----------------------------------------------------------------------------------------------


def test_distances_by_hand() -> None:
    q = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
    p = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]).log() + 3.0  # logits know no constant
    tokens = torch.tensor([1, 2])
    kl = (0.25 * np.log(0.5) + 0.5 * np.log(2) + 0.4 * np.log(2) + 0.6 * np.log(0.75)) / 2
    assert float(teacher.distance("kl", q, p, tokens)) == pytest.approx(kl, abs=1e-6)
    assert float(teacher.distance("tv", q, p, tokens)) == pytest.approx((0.25 + 0.2) / 2)
    assert float(teacher.distance("ce", q, p, tokens)) == pytest.approx(-(np.log(0.25) + np.log(0.8)) / 2)
    overlap, same = teacher.agreement(q, p)
    assert overlap.tolist() == pytest.approx([0.75, 0.8]) and same.tolist() == [0.0, 1.0]


def test_padding_is_on_the_right_and_never_learnt_from() -> None:
    ids, predicted, first = teacher.padded(ANSWERS, torch.device("cpu"))
    assert ids.shape == (3, 9) and first == 1 and predicted.shape == (3, 7)
    for row, one in enumerate(ANSWERS):
        assert ids[row, : len(one.text)].tolist() == list(one.text)
        assert ids[row, first + 1 :][predicted[row]].tolist() == list(one.tokens)


def test_weighted_cross_entropy_by_hand() -> None:
    z, accepted = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.25])
    a = 1 / (1 + np.exp(-z.numpy()))
    lost = -np.log(a[0]) - 0.25 * np.log(a[1]) - 6 * 0.75 * np.log(1 - a[1])
    assert float(weighted(z, accepted, 6.0)) == pytest.approx(lost / (1 + 0.25 + 4.5), rel=1e-5)


# -- the teacher -----------------------------------------------------------------------------------------


def kept(target: Any, folder: Path, layers: tuple[int, ...] = ()) -> Teacher:
    made = Teacher(target, layers)
    made.keep(ANSWERS, folder / "a.states.safetensors", silent)
    return made


@pytest.mark.parametrize("layers", [(), (-1,), (0, 1, 2)])
def test_what_is_kept_is_what_a_pass_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    target = model("llama", seed=0)
    fresh, known = Teacher(target, layers), kept(target, tmp_path, layers)
    some = [ANSWERS[2], ANSWERS[0]]
    a, b = fresh.read(some), known.read(some)
    assert torch.equal(a.ids, b.ids) and torch.equal(a.predicted, b.predicted)
    assert torch.allclose(a.features, b.features) and torch.allclose(a.states, b.states)
    assert torch.allclose(fresh.logits(some), known.logits(some))
    monkeypatch.setattr(type(target), "forward", lambda *_, **__: pytest.fail("the target was asked again"))
    known.logits([ANSWERS[1]])
    again = kept(target, tmp_path, layers)  # from the file
    again._plain = True
    assert torch.equal(again.read(some).states, b.states)


def test_a_file_of_other_states_is_written_anew(tmp_path: Path) -> None:
    kept(model("llama", seed=1), tmp_path)
    target = model("llama", seed=0)
    assert torch.allclose(kept(target, tmp_path).read(ANSWERS).states, Teacher(target).read(ANSWERS).states)
    (tmp_path / "a.states.safetensors").write_bytes(b"no tensors")
    assert torch.allclose(kept(target, tmp_path).read(ANSWERS).states, Teacher(target).read(ANSWERS).states)


def test_a_file_that_has_some_states_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another training of the same target: what is there is neither computed again nor lost."""
    target, file = model("llama", seed=0), tmp_path / "a.states.safetensors"
    first = Teacher(target)
    first.keep(ANSWERS[:1], file, silent)
    before = first.read(ANSWERS[:1]).states
    second, asked = Teacher(target), list[Answer]()
    forward = second._pass

    def watched(some: list[Answer]) -> list[torch.Tensor]:
        asked.extend(some)
        return forward(some)

    monkeypatch.setattr(second, "_pass", watched)
    second.keep(ANSWERS[1:], file, silent)
    assert asked == sorted(ANSWERS[1:], key=lambda one: len(one.text))
    third = Teacher(target)
    monkeypatch.setattr(third, "_pass", lambda some: pytest.fail("the target was asked again"))
    third.keep(ANSWERS, file, silent)
    assert torch.equal(third.read(ANSWERS[:1]).states, before)
    whole, true = third.read(ANSWERS), Teacher(target).read(ANSWERS)
    assert torch.allclose(whole.states, true.states)
    half = Teacher(target, dtype=torch.bfloat16)
    half.keep(ANSWERS[:1], file, silent)  # other numbers: the file is written anew
    assert half.read(ANSWERS[:1]).states.dtype == torch.bfloat16


def test_a_file_of_states_stays_within_its_limit(tmp_path: Path) -> None:
    """What this training does not need makes room; what it needs is there."""
    target, file = model("llama", seed=0), tmp_path / "a.states.safetensors"
    Teacher(target).keep(ANSWERS[:2], file, silent)
    second = Teacher(target)
    second.keep(ANSWERS[1:], file, silent, most=second.size(ANSWERS[1:]))
    assert len(second._stored(file)) == 2
    assert torch.allclose(second.read(ANSWERS[1:]).states, Teacher(target).read(ANSWERS[1:]).states)


def test_states_that_cannot_be_written_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, path: Path, about: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("draftwise.train.teacher.save_file", full)
    with pytest.raises(UserError, match=r"states to .*No space left on device; make room, or train with"):
        kept(model("llama", seed=0), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_short_context_leaves_out_the_beginnings_of_prompts(tmp_path: Path) -> None:
    target = model("llama", seed=0)
    for one in (Teacher(target, (1,)), kept(target, tmp_path, (1,))):
        whole, short = one.read(ANSWERS), one.read(ANSWERS, 2)
        for i, a in enumerate(ANSWERS):
            first, n = max(0, len(a.prompt) - 2), len(a.text)
            assert short.ids[i, : n - first].tolist() == list(a.text[first:])
            assert torch.equal(short.features[i, : n - first], whole.features[i, first:n])
            assert torch.equal(short.states[i, : n - first], whole.states[i, first:n])
            assert short.predicted[i].sum() == len(a.tokens) and not short.states[i, n - first :].any()


def test_nothing_is_kept_without_room_or_need(options: Options, tmp_path: Path) -> None:
    target = model("llama", seed=0)
    given = material(target, tmp_path / "answers.jsonl")
    tokens, width = sum(len(one.text) for one in ANSWERS), target.config.hidden_size
    assert Teacher(target, (1,)).size([*ANSWERS, *ANSWERS]) == tokens * width * target.dtype.itemsize * 2
    assert not make_teacher(DrafterRun(**options(steps=1, batch=6)), given, silent).kept
    assert not make_teacher(DrafterRun(**options(steps=4, batch=2, remember=0.0)), given, silent).kept
    assert not list(tmp_path.iterdir())
    assert make_teacher(DrafterRun(**options(steps=4, batch=2)), given, silent).kept
    assert (tmp_path / "answers.states.safetensors").exists()


def test_a_target_that_bounds_its_logits_is_asked_itself(tmp_path: Path) -> None:
    target = model("llama", seed=0)
    plain = target.forward

    def bounded(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        out.logits = torch.tanh(out.logits)
        return out

    target.forward = bounded
    assert torch.allclose(kept(target, tmp_path).logits(ANSWERS), Teacher(target).logits(ANSWERS))


# -- what classifiers learn from --------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["agree", "chance", "overlap"])
def test_labels_are_those_of_each_text_read_alone(options: Options, labels: str) -> None:
    target, drafter = model("llama", seed=0), model("llama", seed=1)
    run = ClassifierRun(**options(labels=labels, batch=2, precision="float32"))
    found = classifier.drafted(run, ANSWERS, Teacher(target), drafter, 4, silent)
    for one, drafted in zip(ANSWERS, found, strict=True):
        ids, n = torch.tensor([one.text]), len(one.prompt)
        with torch.no_grad():
            q, p = (m(ids).logits[0, n - 1 : -1].float().softmax(-1) for m in (drafter, target))
        y = drafted.tokens
        each = torch.arange(len(y))
        wanted = {
            "agree": (q.argmax(-1) == p.argmax(-1)).float(),
            "chance": (p[each, y] / q[each, y]).clamp(max=1),
            "overlap": torch.minimum(p, q).sum(-1),
        }[labels]
        assert drafted.accepted.tolist() == pytest.approx(wanted.tolist(), abs=1e-4)
        if labels == "agree":
            assert y.tolist() == q.argmax(-1).tolist()
        for k, row in enumerate(q.double().numpy()):
            top = tuple(sorted(row.tolist(), reverse=True)[:10])
            known = Signals(top[0], top[1], 0.0, 0.0, k, top)
            assert drafted.features[k].tolist() == pytest.approx(features(known).tolist(), abs=1e-4)


def test_drawn_tokens_have_the_drafters_law() -> None:
    q = torch.tensor([0.1, 0.6, 0.0, 0.3]).expand(20000, 4)
    tokens, _ = classifier._labels("chance", q, q, torch.Generator().manual_seed(0))
    counts = torch.bincount(tokens, minlength=4) / 20000
    assert counts.tolist() == pytest.approx([0.1, 0.6, 0.0, 0.3], abs=0.015) and counts[2] == 0


@pytest.mark.parametrize("hidden", [0, 8])
def test_what_is_stored_is_what_was_trained(options: Options, hidden: int) -> None:
    target, drafter = model("llama", seed=0), model("llama", seed=1)
    run = ClassifierRun(**options(hidden=hidden, batch=2, precision="float32"))
    found = classifier.drafted(run, ANSWERS, Teacher(target), drafter, 4, silent)
    torch.manual_seed(1)
    task = DiscoTask(run, found, found)
    scorer = task.scorer("")
    with torch.no_grad():
        wanted = task._odds(found).sigmoid().tolist()
    rows = torch.cat([one.features for one in found])
    known = [Signals(r[0], r[1], 0.0, 0.0, int(r[11]), tuple(r[:10])) for r in rows.tolist()]
    assert [scorer.score(now) for now in known] == pytest.approx(wanted, abs=2e-3)


def test_yes_is_said_where_acceptance_is_as_likely_as_not() -> None:
    true = torch.tensor([1.0, 1.0, 0.0, 0.0])
    found = classifier.scores(torch.tensor([0.9, 0.4, 0.6, 0.1]), true)
    assert found == {"f1": pytest.approx(0.5), "accuracy": 0.5}
    found = classifier.scores(torch.tensor([0.9, 0.4, 0.2, 0.1]), true, weight=3.0)
    assert found == {"f1": 1.0, "accuracy": 1.0}


def test_a_new_drafter_may_have_more_layers_than_the_target(options: Options) -> None:
    """Where a config names the kind of each layer."""
    made = _smaller(DrafterRun(**options(layers=3, width=24)), model("qwen3"))
    assert len(made.model.layers) == 3 and made(torch.tensor([[3, 4]])).logits.shape == (1, 2, VOCAB)


# -- heads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eagle3", "drafted"), [(False, 0), (True, 0), (True, 9)])
def test_eagles_gradient_is_that_of_the_formula(options: Options, eagle3: bool, drafted: int) -> None:
    """EAGLE (arXiv 2401.15077, section 3.2), step by step and pair by pair: smooth L1 and `share` of KL."""
    target = model("llama", seed=0)
    torch.manual_seed(3)
    head = new_eagle(target, eagle3=eagle3, drafted=drafted)
    chosen = sorted(frequent(ANSWERS, drafted, VOCAB)) if drafted else list(range(VOCAB))
    if isinstance(head, Eagle3) and drafted:
        head.choose(chosen)
    given = {"depth": 3, "shallow": 0.0, "fading": 0.7, "share": 0.3, "noise": 0.0}
    run = EagleRun(**options(**DOUBLE, **given, kind="eagle3" if eagle3 else "eagle"))
    task = EagleTask(run, head, material(target), silent)
    loss = task.loss([0, 2], torch.Generator())
    found = gradient(head, loss)
    steps: list[list[torch.Tensor]] = [[], [], []]
    near: list[list[torch.Tensor]] = [[], [], []]
    for one in (ANSWERS[0], ANSWERS[2]):
        ids = torch.tensor([one.text])
        with torch.no_grad():
            out = target(ids, output_hidden_states=True)
        features = torch.cat([out.hidden_states[k] for k in head.layers_read], -1)
        for begin in range(len(one.text) - 2):  # the pair of feature `begin` and the token after it
            states = head.read(features)[:, : begin + 1]
            for depth in range(min(3, len(one.text) - begin - 1)):
                place = begin + depth + 1
                states = torch.cat((states, head(ids[:, 1 : place + 1], states)[:, -1:]), 1)
                if begin + 2 < len(one.prompt) or place + 1 >= len(one.text):
                    continue  # a draft counts where all of its tokens are the answer's
                p = out.logits[0, place, chosen].log_softmax(-1)
                q = head.logits(states[0, -1]).log_softmax(-1)
                steps[depth].append((p.exp() * (p - q)).sum())
                apart = (states[0, -1] - out.hidden_states[-1][0, place]).abs()
                near[depth].append(torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean())
    kl, l1 = ([torch.stack(each).mean() for each in some] for some in (steps, near))
    both = kl if eagle3 else [b + 0.3 * a for a, b in zip(kl, l1, strict=True)]
    total = (both[0] + 0.7 * both[1] + 0.49 * both[2]) / 2.19
    assert float(loss.detach()) == pytest.approx(float(total.detach()), rel=1e-5)
    wanted = gradient(head, total)
    assert float((found - wanted).norm()) < 1e-5 * float(wanted.norm())  # the loss is taken in float32


def test_medusas_gradient_is_that_of_the_formula(options: Options) -> None:
    """Medusa (arXiv 2401.10774, section 2.2.1): each head weighs a share of the one before."""
    target = model("llama", seed=0)
    torch.manual_seed(3)
    heads = new_medusa(target, heads=2)
    for p in heads.parameters():
        torch.nn.init.normal_(p, std=0.3)  # as they begin, their blocks are zero
    given = MedusaRun(**options(**DOUBLE, heads=2, fading=0.7))
    task = MedusaTask(given, heads, material(target), silent)
    found = gradient(heads, task.loss([0, 1], torch.Generator()))
    apart: list[list[torch.Tensor]] = [[], []]
    for one in ANSWERS[:2]:
        with torch.no_grad():
            out = target(torch.tensor([one.text]), output_hidden_states=True)
        for place in range(len(one.prompt), len(one.text)):
            p = out.logits[0, place - 1].log_softmax(-1)
            for k in range(min(2, place - 1)):
                q = heads(out.hidden_states[-1][0, place - 2 - k])[k].log_softmax(-1)
                apart[k].append((p.exp() * (p - q)).sum())
    kl = [torch.stack(each).mean() for each in apart]
    wanted = gradient(heads, (kl[0] + 0.7 * kl[1]) / 1.7)
    assert float((found - wanted).norm()) < 1e-5 * float(wanted.norm())  # the loss is taken in float32


def test_a_training_begins_with_one_draft_step(options: Options) -> None:
    target = model("llama", seed=0)
    torch.manual_seed(3)
    head = new_eagle(target, eagle3=True)

    def loss(progress: float, **changes: Any) -> float:
        given = options(**DOUBLE, noise=0.0, kind="eagle3", **changes)
        task = EagleTask(EagleRun(**given), head, material(target), silent)
        task.progress = progress
        return float(task.loss([0, 2], torch.Generator()).detach())

    one, three = loss(1.0, depth=1), loss(1.0, depth=3)
    assert one != three
    assert [loss(p, depth=3, shallow=0.5) for p in (0.0, 0.49, 0.5, 0.9)] == [one, one, three, three]


def test_answers_too_short_for_a_draft_step_leave_it_out(options: Options) -> None:
    target = model("llama", seed=0)
    torch.manual_seed(3)
    head, short = new_eagle(target, eagle3=True), [Answer((3, 9, 4), (7, 8)), Answer((5, 6), (2,))]
    given = replace(material(target), answers=short, held_out=short)
    found = []
    for depth in (2, 9):
        task = EagleTask(EagleRun(**options(**DOUBLE, depth=depth, shallow=0.0)), head, given, silent)
        found.append((float(task.loss([0, 1], torch.Generator()).detach()), task.measure()))
    assert found[0] == found[1] and found[0][0] > 0.0 and len(found[0][1]) == 2


def test_a_new_eagle3_head_begins_as_the_targets_last_layer() -> None:
    target = model("llama", seed=0)
    torch.manual_seed(3)
    head = new_eagle(target, eagle3=True, drafted=9)
    first, last = target.model.layers[0], target.model.layers[-1]
    assert isinstance(head, Eagle3)
    head.choose(range(3, 12))
    for norm in (target.model.norm, first.input_layernorm, last.input_layernorm):
        torch.nn.init.normal_(norm.weight)  # in a new model all are 1
    random, width = head.midlayer.self_attn.q_proj.weight.clone(), target.config.hidden_size
    start_from_target(head, target)
    own = head.midlayer
    assert torch.equal(own.mlp.up_proj.weight, last.mlp.up_proj.weight)
    assert torch.equal(own.self_attn.o_proj.weight, last.self_attn.o_proj.weight)
    assert torch.equal(own.self_attn.q_proj.weight[:, width:], last.self_attn.q_proj.weight)
    assert torch.equal(own.self_attn.q_proj.weight[:, :width], random[:, :width] / 2)
    assert torch.equal(own.hidden_norm.weight, last.input_layernorm.weight)
    assert torch.equal(own.input_layernorm.weight, first.input_layernorm.weight)
    assert torch.equal(head.norm.weight, target.model.norm.weight)
    assert torch.equal(head.lm_head.weight, target.get_output_embeddings().weight[3:12])
    features = torch.randn(1, 3 * width, dtype=head.fc.weight.dtype)
    assert float((head.read(features) - features[:, -width:]).detach().abs().mean()) < 0.2


def test_a_norm_that_computes_otherwise_is_not_copied() -> None:
    class AddsOne(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((16,), 0.5))

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)

    target = model("llama", seed=0)
    target.model.norm, own = AddsOne(), target.model.norm
    torch.nn.init.normal_(own.weight)
    for norm, copied in ((target.model.norm, False), (own, True)):
        target.model.norm = norm
        head = new_eagle(target, eagle3=True)
        assert isinstance(head, Eagle3)
        start_from_target(head, target)
        assert torch.equal(head.norm.weight, norm.weight) is copied
        assert copied or torch.equal(head.norm.weight, torch.ones_like(own.weight))


def test_a_target_of_one_layer_has_heads_too() -> None:
    target = model("llama", seed=0)
    del target.model.layers[1:]
    target.config.num_hidden_layers = 1
    head = new_eagle(target, eagle3=True)
    assert isinstance(head, Eagle3)
    start_from_target(head, target)
    assert torch.equal(head.midlayer.mlp.up_proj.weight, target.model.layers[0].mlp.up_proj.weight)


def test_a_head_may_draft_from_all_tokens_again() -> None:
    target = model("llama", seed=0)
    head = new_eagle(target, eagle3=True, drafted=9).float()
    assert isinstance(head, Eagle3)
    made = redrafted(head, target, range(VOCAB))
    assert made.ids is None and head.ids is not None
    assert torch.equal(made.lm_head.weight[head.ids], head.lm_head.weight)


def test_a_target_of_another_shape_leaves_a_new_head_as_it_is() -> None:
    target = model("gpt2", seed=0)
    head = new_eagle(target, eagle3=True)
    assert isinstance(head, Eagle3)
    before = head.midlayer.mlp.up_proj.weight.clone()
    start_from_target(head, target)
    assert torch.equal(head.midlayer.mlp.up_proj.weight, before)
    assert torch.equal(head.lm_head.weight, target.get_output_embeddings().weight)


def test_a_head_that_drafts_from_other_tokens_keeps_what_it_knows_of_them() -> None:
    """Logits of tokens that both have are the same; those of new tokens come from the target's own rows."""
    target = model("llama", seed=0)
    torch.manual_seed(3)
    head = new_eagle(target, eagle3=True, drafted=9).float()
    assert isinstance(head, Eagle3)
    head.choose([0, 2, 3, 5, 7, 8, 11, 12, 13])
    made = redrafted(head, target, [12, 4, 5, 2])
    assert made.ids is not None and made.ids.tolist() == [2, 4, 5, 12]
    tokens, states = torch.tensor([[3, 8, 4]]), torch.randn(1, 3, head.config.hidden_size)
    with torch.no_grad():
        old, new = (some.logits(some(tokens, states)) for some in (head, made))
        normed = made.norm(made(tokens, states))
    assert torch.allclose(new[..., [0, 2, 3]], old[..., [1, 3, 7]], atol=1e-6)
    own = normed @ target.get_output_embeddings().weight[4].to(normed)
    assert torch.allclose(new[..., 1], own, atol=1e-5)


def test_the_most_frequent_tokens() -> None:
    assert frequent(ANSWERS, 3, VOCAB) == [4, 3, 8]
    assert len(set(frequent(ANSWERS, 20, VOCAB))) == 20


# -- texts -----------------------------------------------------------------------------------------------


@pytest.fixture
def writer(world: Path) -> texts.Writer:
    return texts.Writer(load_model(str(world / "target")), load_tokenizer(str(world / "target")))


def test_answers_are_the_targets_own(writer: texts.Writer, tmp_path: Path, options: Options) -> None:
    run = DrafterRun(**options(temperatures=(0.0, 1.0)))
    to_learn, held = texts.prompts(run)
    assert len(held) == 6 and len(to_learn) == 18
    assert not {p.text for p in held} & {p.text for p in to_learn}
    encoded = texts.encoded(run, to_learn[:5], writer)
    found = texts.answers(run, encoded, writer, tmp_path / "a.jsonl", silent)
    decoder = Decoder.from_pretrained(writer.target, tokenizer=writer.tokenizer, policy="none")
    for one, ids in zip(found[::2], sorted(encoded, key=len), strict=True):
        assert one.prompt == tuple(ids)
        assert list(one.tokens) == decoder.generate(ids, max_new_tokens=12).token_ids
    assert any(a.tokens != b.tokens for a, b in zip(found[::2], found[1::2], strict=True))
    lines = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(lines[:-7])  # as a killed run leaves it
    again = texts.answers(run, encoded, writer, tmp_path / "a.jsonl", silent)
    assert again == found and (tmp_path / "a.jsonl").read_bytes() == lines


def test_answers_are_shared_by_trainings_on_other_prompts(
    writer: texts.Writer, tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = DrafterRun(**options(temperatures=(0.0, 1.0))), tmp_path / "a.jsonl"
    asked: list[int] = []
    decode = texts._decode

    def counting(run: Any, batch: Any, *rest: Any) -> Any:
        asked.append(len(batch))
        return decode(run, batch, *rest)

    monkeypatch.setattr(texts, "_decode", counting)
    first = texts.answers(run, [[3, 4, 5], [6, 7]], writer, path, silent)
    both = texts.answers(run, [[8, 9], [3, 4, 5]], writer, path, silent)
    assert sum(asked) == 6, "four answers, and two to the prompt that was new"
    assert both[2:] == first[2:] and both[0].prompt == (8, 9)
    assert texts.answers(run, [[6, 7]], writer, path, silent) == first[:2] and sum(asked) == 6


def test_answers_of_other_trainings_are_refused(
    writer: texts.Writer, tmp_path: Path, options: Options
) -> None:
    run = DrafterRun(**options())
    texts.answers(run, [[3, 4, 5]], writer, tmp_path / "a.jsonl", silent)
    for change in ({"max_new_tokens": 5}, {"seed": 3}):
        with pytest.raises(UserError, match=f"differ in {next(iter(change))}"):
            texts.answers(DrafterRun(**options(**change)), [[3, 4, 5]], writer, tmp_path / "a.jsonl", silent)
    for other in ("no json\n", '{"format": "draftwise-answers"}\n[[3, 4]]\n', "a\nno line end"):
        (tmp_path / "b.jsonl").write_text(other)
        with pytest.raises(UserError, match="no file of answers"):
            texts.answers(run, [[3]], writer, tmp_path / "b.jsonl", silent)
        assert (tmp_path / "b.jsonl").read_text() == other, "what is not ours is left as it is"


@pytest.mark.parametrize("together", [True, False])
def test_answers_are_written_in_bfloat16_if_batches_are_read_in_one_pass(
    writer: texts.Writer, together: bool
) -> None:
    def runner(decoder: Decoder) -> Any:
        of: Any = decoder.loop.target
        return of.runner

    target = writer.target
    assert runner(writer.decoder()).model is target
    writer = texts.Writer(target, writer.tokenizer, half=True)
    runner(writer.probed).together = together
    model = runner(writer.decoder()).model
    assert (model.dtype == torch.bfloat16, model is target) == (together, not together)
    assert target.dtype == torch.float32 and runner(writer.decoder()).model is model


def test_one_domain_or_all(options: Options) -> None:
    low, held = texts.prompts(DrafterRun(**options(domain="low")))
    assert {p.domain for p in low + held} == {"low"} and len(low + held) == 12
    few, held = texts.prompts(DrafterRun(**options(limit=9)))
    assert len(few + held) == 9
