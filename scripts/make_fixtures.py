#!/usr/bin/env python3
"""Writes the small random checkpoints under tests/fixtures/models with the reference's logits. Same seed, same weights.

    python3 -m venv .venv && .venv/bin/pip install torch transformers tokenizers safetensors gguf ml_dtypes numpy
    .venv/bin/python scripts/make_fixtures.py [--out tests/fixtures/models] [--only GLOB]

The layout is described in tests/fixtures/models/README.md, the table of cases is scripts/fixtures/cases.py.
"""

import argparse
import fnmatch
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from fixtures import containers, experts, latent, reference, weights
from fixtures.cases import CASES, SAFETENSORS
from fixtures.vocabulary import Vocabulary

SEED = 20
NUM_SEEDS = 5           # tried in turn until no greedy token of the case is a near-tie
CLEAR_MARGIN = 0.05     # beyond what an F16 cache or F32 sums in another order move
STEADY = 0.05           # an F16 cache moves logits less than this, unless it turns a choice of experts over


def prompts_of(case, vocabulary, seed):
    """Random ids of the asked lengths; families that start with a start token do so."""
    rng = weights.generator(seed, "prompts")
    allowed = [i for i in range(len(vocabulary.tokens)) if i not in vocabulary.special_ids]
    prompts = [[int(i) for i in rng.choice(allowed, length)] for length in case.lengths]
    if vocabulary.bos is not None:
        prompts = [[vocabulary.bos, *prompt[1:]] for prompt in prompts]
    return prompts


def tolerance(rounding, packed):
    """What an engine may differ by: `exact` computes in F32 from the file's weights, `int8` rounds activations as well.

    Each limit is a multiple of what that lawful rounding does to the reference on these very prompts. Twins of a rounding have
    nearly equal root mean squares (factor 1.5) but scattered extremes (2, and 4 for the divergence, which is a square). What
    F32 sums in another order do is far less than an F16 cache does; 3 and 9 cover both, the constants caches that round well.
    A greedy token may differ where the best two are closer than `near_tie`: what it takes when both move by the measured extreme.
    """
    def profile(drift, extreme, mean):
        limits = {"max_abs": extreme * drift["max_abs"] + 1e-3, "rms": mean * drift["rms"] + 1e-4, "max_kl": extreme ** 2 * drift["max_kl"] + 1e-6}
        return {name: float(f"{limit:.3g}") for name, limit in {**limits, "near_tie": limits["max_abs"]}.items()}
    out = {"exact": profile(rounding["kv_f16"], 3, 3)}
    if packed:
        out["int8"] = profile(rounding["int8_activations"], 2, 1.5)
    return out


def tensors_of(case, config, vocabulary, seed):
    """(as the file holds them, as the reference reads them), by Hugging Face name."""
    stored, meaning = {}, {}
    for name, shape in weights.shapes(config).items():
        values = weights.dense(seed, name, shape, config, len(vocabulary.tokens))
        kind = case.dtype
        if experts.is_matrix(name):
            kind = containers.matrix_type(case, "ffn_down_exps.weight" if name.endswith("down_proj") else "ffn_gate_up_exps.weight")
            if kind not in containers.NUMPY:
                data, rows = weights.packed(seed, name, experts.rows_first(case.family, values), kind)
                stored[name], meaning[name] = (data, kind), experts.rows_first(case.family, rows)
                continue
        elif latent.is_split(case, name):
            parts = []
            for own, part in zip(latent.part_names(name), latent.split(config, values)):
                kind = containers.matrix_type(case, containers.gguf_name(own, case.family))
                data, rows = weights.packed(seed, own, part, kind)
                stored[own] = (data, kind)
                parts.append(rows)
            meaning[name] = latent.join(*parts)
            continue
        elif case.container == "gguf":
            small = len(shape) == 1 or experts.is_small(name)
            kind = "F32" if small else containers.matrix_type(case, containers.gguf_name(name, case.family))
        if kind in containers.NUMPY:
            stored[name] = meaning[name] = weights.rounded(values, kind)
        else:
            data, meaning[name] = weights.packed(seed, name, values, kind)
            stored[name] = (data, kind)
    return stored, meaning


def reference_config(case, vocabulary):
    """The config as the reference understands it, without weights."""
    from transformers import AutoConfig
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(containers.config_json(case, vocabulary, case.dtype, plain=True), encoding="utf-8")
        return AutoConfig.from_pretrained(folder)


def evaluate(case, meaning, vocabulary, seed, folder):
    """Everything the reference says about one seed's weights."""
    containers.write_safetensors(folder, case, meaning, vocabulary, "F32" if case.container == "gguf" else case.dtype)
    model = reference.load(folder)
    if case.layer_types:
        assert list(model.config.layer_types) == case.layer_types, f"{case.name}: {model.config.layer_types}"
    prompts = prompts_of(case, vocabulary, seed)
    exact = [reference.logits(model, ids) for ids in prompts]
    answers = [reference.greedy(model, ids) for ids in prompts]
    assert all(token < len(vocabulary.tokens) for tokens, _ in answers for token in tokens), f"{case.name}: a greedy token without text"
    return {"seed": seed, "prompts": prompts, "logits": exact, "greedy": answers, "rounding": reference.rounding(model, prompts, exact),
            "margin": min(min(margins) for _, margins in answers)}


def write_expected(folder, case, types, vocabulary, found):
    """expected.json and, unless the case is a twin, expected.safetensors."""
    packed = any(kind not in containers.NUMPY for kind in types)
    expected = {"format_version": 1, "name": case.name, "kind": "causal-lm", "architecture": (case.outer or containers.CLASS[case.family])[0], "notes": case.notes,
                "reference": reference.version(), "model": "model.gguf" if case.container == "gguf" else ".", "container": case.container, "types": types}
    if case.twin_of:
        expected["twin_of"] = case.twin_of
    else:
        expected.update(seed=found["seed"], rounding=found["rounding"])
        expected["tolerance"] = tolerance(found["rounding"], packed)
        expected["prompts"] = [{"ids": ids, "logits": f"logits.{i}", "greedy": tokens, "greedy_margins": margins}
                               for i, (ids, (tokens, margins)) in enumerate(zip(found["prompts"], found["greedy"]))]
        save_file({f"logits.{i}": np.ascontiguousarray(rows) for i, rows in enumerate(found["logits"])}, folder / "expected.safetensors")
    expected["tokenizer_cases"] = vocabulary.cases()
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def choose_seed(case, config, vocabulary):
    """The first seed whose choices of experts are steady and whose greedy answers are clear, else the clearest: (stored tensors, what the
    reference says)."""
    best = None
    for seed in range(SEED, SEED + NUM_SEEDS):
        stored, meaning = tensors_of(case, config, vocabulary, seed)
        with tempfile.TemporaryDirectory() as folder:
            found = evaluate(case, meaning, vocabulary, seed, Path(folder))
        steady = found["rounding"]["kv_f16"]["max_abs"] < STEADY
        if best is None or (steady, found["margin"]) > best[0]:
            best = ((steady, found["margin"]), stored, found)
        if steady and found["margin"] >= CLEAR_MARGIN:
            break
    return best[1:]


def make(case, out, made):
    """One folder. `made` remembers the weights for the twins that follow."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    vocabulary = Vocabulary(case.family)
    if case.twin_of:
        config, stored, found = *made[case.twin_of], None
    else:
        config = reference_config(case, vocabulary)
        stored, found = choose_seed(case, config, vocabulary)
        made[case.name] = (config, stored)
    if case.container == "gguf":
        types = containers.write_gguf(folder / "model.gguf", case, stored, vocabulary, config)
    else:
        beyond = latent.predicting_layer(config) if case.predicts else {}
        containers.write_safetensors(folder, case, stored | beyond, vocabulary, case.dtype)
        if case.outer:
            containers.nest(folder, case.outer)
        packed = [kind for _, kind in (values for values in stored.values() if isinstance(values, tuple))]
        types = {case.dtype: len(stored) - len(packed), **{kind: packed.count(kind) for kind in packed}}
    write_expected(folder, case, types, vocabulary, found)
    size = sum(file.stat().st_size for file in folder.iterdir())
    said = "" if found is None else f"smallest margin {found['margin']:.3f}, " + ", ".join(
        f"{name} {drift['max_abs']:.2g} rms {drift['rms']:.2g} KL {drift['max_kl']:.2g}" for name, drift in found["rounding"].items())
    print(f"{case.name:24} {size / 1e3:7.0f} kB  {types}  {said}", flush=True)


def main():
    """Writes what --only selects; twins bring their originals along."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests/fixtures/models")
    parser.add_argument("--only", default="*", help="glob over the names of the cases")
    args = parser.parse_args()
    chosen = [case for case in CASES if fnmatch.fnmatch(case.name, args.only)]
    originals = {case.twin_of for case in chosen}
    chosen = [case for case in SAFETENSORS if case.name in originals and case not in chosen] + chosen
    made = {}
    for case in chosen:
        make(case, args.out, made)
    total = sum(file.stat().st_size for file in args.out.rglob("*") if file.is_file())
    print(f"{len(chosen)} folders written, {total / 1e6:.2f} MB in {args.out}")


if __name__ == "__main__":
    main()
