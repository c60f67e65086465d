"""Adaptive generation: three drafters, and `auto` decides in every round who drafts and how far.

Shows streaming, the statistics of a text, and that the text equals plain decoding. Takes some 10 seconds.
"""

from draftwise import Decoder

PROMPT = "Translate German to English: Der Hund läuft am Strand und die Kinder spielen im Sand."


def main() -> None:
    adaptive = Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram", "suffix"])
    for piece in adaptive.stream(PROMPT, max_new_tokens=64):
        print(piece.text, end="", flush=True)
    print("\n")

    out = adaptive.generate(PROMPT, max_new_tokens=64)
    print(f"{out.stats.tokens_per_s:.0f} tokens/s, {out.stats.mean_accepted:.2f} accepted tokens per round")
    print("tokens by drafter:", out.stats.by_drafter)

    plain = Decoder.from_pretrained("zoo:target", policy="none").generate(PROMPT, max_new_tokens=64)
    print("same tokens as plain decoding:", out.token_ids == plain.token_ids)


if __name__ == "__main__":
    main()
