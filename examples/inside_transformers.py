"""Inside Transformers: `model.generate` with one more argument writes the same tokens, with drafts.

Shows `custom_generate` on a batch of two prompts. Takes some 10 seconds on a CPU.
"""

from transformers import AutoModelForCausalLM, AutoTokenizer

import draftwise
from draftwise.models.load import resolve

PROMPTS = ["Write a Python function that adds two numbers.", "What is 12 plus 30?"]


def main() -> None:
    path = resolve("zoo:target")  # a folder; any name that Transformers knows works as well
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)

    adaptive = draftwise.transformers_generate(drafters=["zoo:general", "ngram"])
    drafted = model.generate(**inputs, max_new_tokens=48, do_sample=False, custom_generate=adaptive)
    plain = model.generate(**inputs, max_new_tokens=48, do_sample=False)

    for row in drafted[:, inputs["input_ids"].shape[1] :]:
        print(repr(tokenizer.decode(row, skip_special_tokens=True)))
    print("same tokens as model.generate alone:", bool((drafted == plain).all()))


if __name__ == "__main__":
    main()
