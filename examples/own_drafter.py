"""A drafter of your own: phrases that you know the model likes to write.

Shows two methods of a drafter. Wrong guesses cost time and never change the text. Takes some 10 seconds.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from draftwise import Decoder
from draftwise.plugins import Draft, Drafter, Job, Request

PROMPT = "Write a Python function that adds two numbers."


class Phrases(Drafter):
    """Where the text ends with the first token of a phrase, drafts the rest of it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, phrases: Sequence[str]) -> None:
        tokens = [tokenizer(phrase, add_special_tokens=False)["input_ids"] for phrase in phrases]
        self.rest = {phrase[0]: phrase[1:] for phrase in tokens}

    def hint(self, request: Request) -> float:
        """How many tokens it could draft now; policies may read it."""
        return float(len(self.rest.get(request.tokens[-1], ())))

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One draft for each request of the batch that chose this drafter, of `job.length` tokens at most."""
        return [Draft.chain(self.rest.get(job.request.tokens[-1], ())[: job.length]) for job in jobs]


def main() -> None:
    plain = Decoder.from_pretrained("zoo:target", policy="none")
    expected = plain.generate(PROMPT, max_new_tokens=48)
    mine = Phrases(plain.tokenizer, [expected.text[i : i + 16] for i in range(0, len(expected.text), 16)])
    decoder = Decoder.from_pretrained("zoo:target", drafters=[mine], policy="static-6")
    out = decoder.generate(PROMPT, max_new_tokens=48)
    stats = out.stats
    print(f"{stats.accepted} of {stats.drafted} drafted tokens accepted, in {stats.rounds} rounds")
    print("same tokens as plain decoding:", out.token_ids == expected.token_ids)


if __name__ == "__main__":
    main()
