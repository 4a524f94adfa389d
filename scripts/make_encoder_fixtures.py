#!/usr/bin/env python3
"""Writes the small random embedding models and rerankers under tests/fixtures/encoders with the reference's vectors and scores.

    python3 -m venv .venv && .venv/bin/pip install torch transformers tokenizers safetensors sentence-transformers numpy
    .venv/bin/python scripts/make_encoder_fixtures.py [--out tests/fixtures/encoders]

Same seed, same weights. Where a folder has a `modules.json`, and for rerankers, the reference is sentence-transformers; else it is the
class in transformers. tests/fixtures/encoders/README.md says what each of them is for.
"""

import argparse
import json
import shutil
import string
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = "the keeper counted ships that came home before a storm find where is boat water and stone light house old bridge".split()
TEXTS = [
    "The keeper counted the ships.",
    "storm",
    "Where is the boat? It came home before the storm, and the light of the old house was seen from the bridge.",
    "Über 12 Brücken, 東京!",
    "",
    "stone and water [SEP] and </s> light",
]
PAIRS = [
    ("where is the boat", "The boat came home before the storm."),
    ("where is the boat", "The old bridge is made of stone."),
    ("stone", ""),
    ("light and water [SEP]", "12345 </s> ships"),
]
SIZES = dict(num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=160, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
FAST = transformers.PreTrainedTokenizerFast


def word_piece():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *string.digits, *".,!?:;'\"-()[]/", *("##" + c for c in string.ascii_lowercase + string.digits)]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys([*pieces, *WORDS]))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return FAST(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
                model_input_names=["input_ids", "token_type_ids", "attention_mask"]), len(vocab)


def byte_level(special, frame, extra):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*special, *letters])}
    merges = []
    for word in WORDS[:8]:
        whole = "Ġ"
        for letter in word:
            merges.append((whole, letter))
            whole += letter
            vocab.setdefault(whole, len(vocab))
    merges = list(dict.fromkeys(merges))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = frame(vocab)
    return FAST(tokenizer_object=tokenizer, **extra), len(vocab)


def roberta_bpe():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    frame = lambda v: processors.RobertaProcessing(("</s>", v["</s>"]), ("<s>", v["<s>"]), add_prefix_space=False)
    return byte_level(special, frame, dict(bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>",
                                            model_input_names=["input_ids", "attention_mask"]))


def qwen_bpe():
    special = ["<|endoftext|>", "<|im_end|>"]
    frame = lambda v: processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A $B:1 <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    return byte_level(special, frame, dict(eos_token="<|im_end|>", pad_token="<|endoftext|>"))


def unigram():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [*special, "▁", *("▁" + w for w in WORDS), *string.ascii_letters, *string.digits, *".,!?[]/<>"]
    pieces = list(dict.fromkeys(pieces))
    tokenizer = Tokenizer(models.Unigram([(p, 0.0 if p in special else -3.0 - 0.01 * i) for i, p in enumerate(pieces)], unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = dict(bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>")
    return FAST(tokenizer_object=tokenizer, **names, model_input_names=["input_ids", "attention_mask"]), len(pieces)


def randomise(model, seed):
    """Weights that make texts differ, biases and norms that are not what they begin as."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if parameter.dim() == 2:
                parameter.copy_(noise * (0.5 if "embeddings" in name else 1.6 / parameter.shape[1] ** 0.5))
            else:
                parameter.copy_(noise * 0.2 + (1.0 if name.endswith("norm.weight") or name.endswith("LayerNorm.weight") else 0.0))
    return model.eval()


def write_modules(folder, width, pooling, dense=None, normalize=True, prompts=None, default=None):
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": width, **pooling}, indent=2))
    if dense:
        name = f"{len(kinds)}_Dense"
        kinds.append((name, "Dense"))
        (folder / name).mkdir()
        generator = torch.Generator().manual_seed(77)
        config = {"in_features": dense[0], "out_features": dense[1], "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
        (folder / name / "config.json").write_text(json.dumps(config, indent=2))
        save_file({"linear.weight": torch.randn(dense[1], dense[0], generator=generator) * 0.4, "linear.bias": torch.randn(dense[1], generator=generator) * 0.2},
                  folder / name / "model.safetensors")
    if normalize:
        name = f"{len(kinds)}_Normalize"
        kinds.append((name, "Normalize"))
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}, "default_prompt_name": default}, indent=2))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 150, "do_lower_case": False}))


def save(folder, model, tokenizer, dtype, rename=lambda name: name, drop=(), extra=None, shards=1):
    """Configuration, tokenizer and weights under the names that real files have."""
    folder.mkdir(parents=True)
    config = model.config.to_dict()
    config.update(architectures=[type(model).__name__], torch_dtype=str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps({k: v for k, v in sorted(config.items()) if v is not None and not k.startswith("_")}, indent=1, default=str))
    tokenizer.save_pretrained(folder)
    tensors = {rename(name): value.to(dtype).contiguous() for name, value in model.state_dict().items() if not name.startswith(tuple(drop) or ("\0",))}
    tensors.update(extra or {})
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = names[shard::shards]
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in own})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1))


def rounded(model, dtype):
    """The weights as the file will have them."""
    return model.to(dtype).to(torch.float32)


def set_trap(folder):
    """Some real files cut and fill up texts to a fixed length; neither must have an effect."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def plain_ids(tokenizer, *texts):
    """Ids of texts in which control tokens are quoted: what is spelled in a text stays text."""
    tokenizer.backend_tokenizer.encode_special_tokens = True
    encoded = tokenizer.backend_tokenizer.encode(*texts)
    return encoded.ids, encoded.type_ids


def vectors(folder, tokenizer, cases):
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"torch_dtype": torch.float32})
    model.tokenizer.split_special_tokens = True
    out = []
    for text, prompt_name in cases:
        prompt = model.prompts.get(prompt_name or model.default_prompt_name or "", "")
        vector = model.encode(text, prompt_name=prompt_name)
        out.append({"text": text, "prompt_name": prompt_name, "ids": plain_ids(tokenizer, prompt + text)[0], "vector": [float(x) for x in vector]})
    return out


def write_expected(folder, kind, entries, notes):
    expected = {"kind": kind, "notes": notes, "reference": f"transformers {transformers.__version__}", "cases": entries}
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def bert_dense(out):
    tokenizer, size = word_piece()
    config = transformers.BertConfig(vocab_size=size, hidden_size=24, intermediate_size=40, type_vocab_size=2, **SIZES)
    model = randomise(transformers.BertModel(config, add_pooling_layer=True), 1)
    folder = out / "bert_dense"
    save(folder, model, tokenizer, torch.float32, extra={"embeddings.position_ids": torch.arange(160).unsqueeze(0)},
         rename=lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta") if "layer.0" in n else n)
    write_modules(folder, 24, {"pooling_mode_mean_tokens": True, "include_prompt": False}, dense=(24, 10), prompts={"query": "find: ", "document": ""})
    # transformers renames gamma and beta itself; 5.x no longer does for this class, so the reference reads the plain names.
    plain = out / "plain"
    shutil.copytree(folder, plain)
    save_file({n: v.contiguous() for n, v in model.state_dict().items()}, plain / "model.safetensors", metadata={"format": "pt"})
    cases = [(text, None) for text in TEXTS] + [(TEXTS[0], "query"), ("", "query")]
    write_expected(folder, "embedding", vectors(plain, tokenizer, cases), "mean pooling without the prompt, dense, normalize; gamma and beta; position_ids; a pooler that is not used")
    shutil.rmtree(plain)
    set_trap(folder)


def roberta_cls(out):
    tokenizer, size = roberta_bpe()
    config = transformers.RobertaConfig(vocab_size=size, hidden_size=20, intermediate_size=36, type_vocab_size=1, pad_token_id=1, hidden_act="gelu_new",
                                        layer_norm_eps=1e-5, bos_token_id=0, eos_token_id=2, **SIZES)
    model = rounded(randomise(transformers.RobertaModel(config, add_pooling_layer=False), 2), torch.float16).eval()
    folder = out / "roberta_cls"
    save(folder, model, tokenizer, torch.float16, rename=lambda n: "roberta." + n)
    entries = []
    with torch.no_grad():
        for text in TEXTS:
            ids, _ = plain_ids(tokenizer, text)
            vector = model(torch.tensor([ids])).last_hidden_state[0, 0].numpy()
            entries.append({"text": text, "prompt_name": None, "ids": ids, "vector": [float(x) for x in vector / np.linalg.norm(vector)]})
    write_expected(folder, "embedding", entries, "no modules.json: the first token, unit length; F16; heads of 10; names with `roberta.`; gelu_new")


def roberta_modes(out):
    tokenizer, size = roberta_bpe()
    config = transformers.RobertaConfig(vocab_size=size, hidden_size=16, intermediate_size=20, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, **SIZES)
    model = randomise(transformers.RobertaForMaskedLM(config), 3)
    folder = out / "roberta_modes"
    save(folder, model, tokenizer, torch.float32, drop=("lm_head.decoder",))
    pooling = {f"pooling_mode_{mode}": True for mode in ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")}
    write_modules(folder, 16, pooling, normalize=False)
    write_expected(folder, "embedding", vectors(folder, tokenizer, [(text, None) for text in TEXTS]), "a masked language model with modules; five modes joined; no unit length")


def qwen3_last(out):
    tokenizer, size = qwen_bpe()
    config = transformers.Qwen3Config(vocab_size=size + 3, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
                                      max_position_embeddings=160, tie_word_embeddings=True, rope_theta=1e6)
    model = rounded(randomise(transformers.Qwen3ForCausalLM(config), 4), torch.bfloat16).eval()
    folder = out / "qwen3_last"
    save(folder, model, tokenizer, torch.bfloat16, rename=lambda n: n.removeprefix("model."), drop=("lm_head",))
    write_modules(folder, 24, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, prompts={"query": "Query: ", "plain": ""}, default="query")
    plain = out / "plain"
    shutil.copytree(folder, plain)
    save_file({n: v.contiguous() for n, v in model.state_dict().items() if not n.startswith("lm_head")}, plain / "model.safetensors", metadata={"format": "pt"})
    cases = [(text, None) for text in TEXTS] + [(text, "plain") for text in TEXTS[:2]]
    write_expected(folder, "embedding", vectors(plain, tokenizer, cases), "a decoder: last token, names without `model.`, a default prompt; BF16")
    shutil.rmtree(plain)


def rerankers(out):
    from sentence_transformers import CrossEncoder
    tokenizer, size = word_piece()
    config = transformers.BertConfig(vocab_size=size, hidden_size=24, intermediate_size=40, type_vocab_size=2, num_labels=1, **SIZES)
    bert = randomise(transformers.BertForSequenceClassification(config), 5)
    tokenizer2, size2 = unigram()
    config2 = transformers.XLMRobertaConfig(vocab_size=size2, hidden_size=20, intermediate_size=28, type_vocab_size=1, num_labels=1, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                                            layer_norm_eps=1e-5, **SIZES)
    xlm = rounded(randomise(transformers.XLMRobertaForSequenceClassification(config2), 6), torch.bfloat16).eval()
    for name, model, own, dtype, shards, notes in [("bert_rerank", bert, tokenizer, torch.float32, 1, "pooler and classifier; token types"),
                                                   ("xlm_roberta_rerank", xlm, tokenizer2, torch.bfloat16, 2, "two layers of a classifier; two shards; BF16")]:
        folder = out / name
        save(folder, model, own, dtype, shards=shards)
        reference = CrossEncoder(str(folder), device="cpu", model_kwargs={"torch_dtype": torch.float32}, activation_fn=torch.nn.Identity())
        reference.tokenizer.split_special_tokens = True
        entries = []
        for query, document in PAIRS:
            ids, types = plain_ids(own, query, document)
            score = reference.predict([(query, document)])[0]
            entries.append({"query": query, "document": document, "ids": ids, "type_ids": types if name == "bert_rerank" else [], "score": float(score)})
        write_expected(folder, "reranker", entries, notes)
    set_trap(out / "bert_rerank")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/fixtures/encoders"))
    out = parser.parse_args().out
    for folder in out.glob("*/"):
        shutil.rmtree(folder)
    out.mkdir(parents=True, exist_ok=True)
    for make in (bert_dense, roberta_cls, roberta_modes, qwen3_last, rerankers):
        make(out)
    for folder in sorted(out.glob("*/")):
        print(folder.name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) // 1000, "kB")


if __name__ == "__main__":
    main()
