"""Train a drafter: the target answers prompts, and a small model learns to guess the answers.

Shows `draftwise train drafter` from Python, far too short to be useful: 12 prompts, 20 steps. Takes some 30
seconds on a CPU. A real run takes thousands of prompts; see docs/how-to/train.md.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from draftwise import Decoder
from draftwise.data import spec_bench
from draftwise.train.drafter import train
from draftwise.train.settings import DrafterRun


def main() -> None:
    with TemporaryDirectory() as folder:
        data, out = Path(folder) / "prompts.jsonl", Path(folder) / "drafter"
        prompts = [prompt.text for prompt in spec_bench() if len(prompt.text) < 200][:12]
        data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))

        run = DrafterRun(
            data=(str(data),),
            held_out=4,
            temperatures=(0.0,),
            start="zoo:general",
            max_new_tokens=24,
            steps=20,
            batch=4,
        )
        results = train(run, out, lambda what, done, total, left=None: None)
        print("before:", results["before"])
        print("after: ", results["after"])

        decoder = Decoder.from_pretrained("zoo:target", drafters=[str(out)], policy="static-2")
        stats = decoder.generate(prompts[0], max_new_tokens=24).stats
        print(f"{stats.accepted} of {stats.drafted} drafted tokens accepted")


if __name__ == "__main__":
    main()
