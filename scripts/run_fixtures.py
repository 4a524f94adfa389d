#!/usr/bin/env python3
"""Runs `oxydllm eval` on every fixture and compares logits of all positions and greedy tokens with the reference's.

    scripts/run_fixtures.py --bin target/release/oxydllm [--set tests/fixtures/models] [--only GLOB] [--reference] [--verbose]

Exit status: 0 all right, 1 something differs or failed, 2 nothing to run.
Tolerances stand in each expected.json; how they come about is told in tests/fixtures/models/README.md.
"""

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from fixtures.compare import Fixture, compare_greedy, compare_logits

TIMEOUT_SECONDS = 120


def evaluate(binary, fixture, reference, folder):
    """(logits by name, greedy answers) as `oxydllm eval` gives them."""
    tokens, logits = folder / "tokens.json", folder / "logits.safetensors"
    tokens.write_text(json.dumps({"prompts": [prompt["ids"] for prompt in fixture.prompts]}), encoding="utf-8")
    count = max(len(prompt["greedy"]) for prompt in fixture.prompts)
    command = [binary, "eval", str(fixture.model), "--tokens", str(tokens), "--logits", str(logits), "--greedy", str(count)]
    done = subprocess.run([*command, *(["--reference"] if reference else [])], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: " + " / ".join(done.stderr.strip().splitlines()[-3:]))
    return load_file(logits), json.loads(done.stdout)["prompts"]


def check(binary, fixture, reference):
    """(lines that say what is wrong, a summary)."""
    profile = fixture.profile(reference)
    limits = fixture.tolerances[profile]
    try:
        with tempfile.TemporaryDirectory() as folder:
            logits, answers = evaluate(binary, fixture, reference, Path(folder))
        wrong, extreme = compare_logits(fixture.prompts, fixture.logits, logits, limits)
        greedy_wrong, compared = compare_greedy(fixture.prompts, answers, limits)
    except (RuntimeError, OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        return [f"{type(error).__name__}: {error}"], profile
    total = sum(len(prompt["greedy"]) for prompt in fixture.prompts)
    return wrong + greedy_wrong, f"{profile}, largest difference {extreme:.3g} of {limits['max_abs']}, {compared} of {total} greedy tokens"


def main():
    """Runs what --only selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the oxydllm executable")
    parser.add_argument("--set", type=Path, default=Path(__file__).parent.parent / "tests/fixtures/models")
    parser.add_argument("--only", default="*", help="glob over the folders' names")
    parser.add_argument("--reference", action="store_true", help="the reference path: decoded weights, F32 activations")
    parser.add_argument("--verbose", action="store_true", help="a line for each fixture, not for failures only")
    args = parser.parse_args()
    folders = [file.parent for file in sorted(args.set.glob("*/expected.json")) if fnmatch.fnmatch(file.parent.name, args.only)]
    if not folders:
        print(f"no fixture in `{args.set}` matches `{args.only}`", file=sys.stderr)
        return 2
    failed = 0
    for folder in folders:
        fixture = Fixture(folder)
        wrong, summary = check(args.bin, fixture, args.reference)
        failed += bool(wrong)
        if wrong or args.verbose:
            print(f"{'FAIL' if wrong else 'ok  '} {fixture.name}: {summary}")
        for line in wrong:
            print(f"     {line}")
    path = "reference path" if args.reference else "fast path"
    print(f"fixtures, {path}: {len(folders) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
