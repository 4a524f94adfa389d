#!/usr/bin/env python3
"""Whether speed depends on a family's name: every dense softmax family at the same shapes, beside our Llama and beside llama.cpp.

The files have random weights of one format and one vocabulary (make_model.py, family-*). Each round runs all families, both programs in
turns; rates are medians in tokens per second, higher is better. "of our Llama" and "of llama.cpp" are medians of the ratios within a
round, so that a machine that slows down between rounds does not count. Run by bench-vs-llamacpp.sh --families.
"""

import argparse
from pathlib import Path
from statistics import median

from compare import Models, Peers
from make_model import FAMILIES


def accepted(peers, files):
    """The families that both programs run, and a line about each of the others."""
    usable, refused = [], []
    for family, file in files.items():
        try:
            peers.ours(file, prompt=8, gen=2)
        except RuntimeError as error:
            refused.append(f"{family}: oxydllm: {str(error).splitlines()[-1]}")
            continue
        try:
            peers.llama(file, prompt=8)
            usable.append(family)
        except RuntimeError as error:
            refused.append(f"{family}: llama.cpp: {str(error).splitlines()[-1]}")
    return usable, refused


def measure(peers, file):
    """(ours, theirs) of a prefill and of a decode."""
    ours = peers.ours(file, prompt=peers.a.prompt, gen=peers.a.gen)
    return (
        (ours["prefill_tok_s"], peers.llama(file, prompt=peers.a.prompt)),
        (ours["decode"][0]["tok_s"], peers.llama(file, gen=peers.a.gen)),
    )


def cells(rounds, family, work):
    """Our median rate and its ratios to our Llama and to llama.cpp; `work`: 0 prefill, 1 decode."""
    found = [(one[family][work], one["llama"][work]) for one in rounds]
    rate = median(ours for (ours, _), _ in found)
    of_llama = median(ours / reference for (ours, _), (reference, _) in found)
    of_theirs = median(ours / theirs for (ours, theirs), _ in found)
    return f"{rate:.1f} | {of_llama:.2f} | {of_theirs:.2f}x"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=Path, required=True)
    p.add_argument("--llama", type=Path, required=True)
    p.add_argument("--cache", type=Path, required=True)
    p.add_argument("--repeat", type=int, default=5, help="rounds over all families")
    p.add_argument("--threads", type=int)
    p.add_argument("--prompt", type=int, default=256, help="tokens of a prefill")
    p.add_argument("--gen", type=int, default=32, help="tokens of a decode")
    p.add_argument("--quant", default="Q4_0", help="format of the matrices")
    p.add_argument("--only", nargs="*", choices=FAMILIES, default=list(FAMILIES), help="these families; Llama is always among them")
    p.add_argument("--check", action="store_true", help="only make the files and say which both programs accept")
    a = p.parse_args()
    peers, models = Peers(a), Models(a.cache, "bench-models/families")
    families = dict.fromkeys(["llama", *a.only])
    usable, refused = accepted(peers, {family: models.random(f"family-{family}", a.quant) for family in families})
    print(f"Run by both: {', '.join(usable)}. Left out: {'; '.join(refused) or 'none'}.\n", flush=True)
    if a.check:
        return
    if "llama" not in usable:
        raise SystemExit("nothing to compare with: Llama itself does not run")
    rounds = [{family: measure(peers, models.random(f"family-{family}", a.quant)) for family in usable} for _ in range(a.repeat)]
    print(f"{a.quant}, {peers.threads} threads; prompts of {a.prompt} tokens, {a.gen} generated; {a.repeat} rounds.\n")
    print("| family | prefill | of our Llama | of llama.cpp | decode | of our Llama | of llama.cpp |\n|---|---|---|---|---|---|---|")
    for family in usable:
        print(f"| {family} | {cells(rounds, family, 0)} | {cells(rounds, family, 1)} |")


if __name__ == "__main__":
    main()
