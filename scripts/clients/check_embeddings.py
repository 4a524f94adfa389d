"""Vectors of a running server against sentence-transformers: check_embeddings.py BASE_URL MODEL FOLDER."""

import random
import sys

import numpy as np
import openai
from sentence_transformers import SentenceTransformer

WORDS = (
    "the harbour quiet storm tokens list water bridge keeper stone régime naïve Übergröße 東京 こんにちは 안녕 привет мир 🚀 café ¿qué? don't e-mail "
    "foo@bar.com http://x.y/z?q=1 3.14159 1,000,000 <b>html</b> snake_case CamelCase λ∀x∃y ﬁne ＡＢＣ a\u0301ccent Straße İstanbul 你好，世界 مرحبا עברית हिन्दी ไทย"
).split(" ")
EDGES = ["", " ", "a", "Hello world", "\n\ttabs and\r\nlines\n", "UPPER CASE", "x" * 150, "!" * 60, "東京都は日本の首都です。", "🚀🚀🚀", "e\u0301 vs é", "\u0000 nul \ufffd"]


def texts(tokenizer, count, longest):
    """Texts of all lengths that the reference reads whole."""
    rng, found = random.Random(3), list(EDGES)
    while len(found) < count:
        text = rng.choice([" ", "  ", ", ", "\n"]).join(rng.choice(WORDS) for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 21, 34, 55])))
        if len(tokenizer(text)["input_ids"]) <= longest:
            found.append(text)
    return found


def main():
    base_url, model, folder = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    reference = SentenceTransformer(folder, device="cpu")
    inputs = texts(reference.tokenizer, 200, reference.max_seq_length)
    ids = [reference.tokenizer(text)["input_ids"] for text in inputs]
    wanted = reference.encode(inputs)

    answer = client.embeddings.create(model=model, input=inputs)  # the client asks for base64
    found = np.array([item.embedding for item in answer.data])
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    print(f"{len(inputs)} texts of {min(map(len, ids))} to {max(map(len, ids))} tokens: smallest cosine {cosines.min():.9f}")
    assert cosines.min() > 0.9999, inputs[int(cosines.argmin())]
    assert [item.index for item in answer.data] == list(range(len(inputs)))
    assert answer.usage.total_tokens == sum(map(len, ids)), "as many tokens as the reference"

    by_ids = client.embeddings.create(model=model, input=ids)
    assert all(a.embedding == b.embedding for a, b in zip(answer.data, by_ids.data)), "a text has another vector than its ids"
    floats = client.embeddings.create(model=model, input=inputs[:20], encoding_format="float")
    assert np.array_equal(np.float32([item.embedding for item in floats.data]), np.float32(found[:20])), "floats differ from base64"
    for text, item in list(zip(inputs, answer.data))[::9]:
        alone = client.embeddings.create(model=model, input=text)
        assert alone.data[0].embedding == item.embedding, f"{text!r} has another vector alone"
    short = client.embeddings.create(model=model, input=inputs[3], dimensions=64).data[0].embedding
    assert len(short) == 64 and abs(np.linalg.norm(short) - 1) < 1e-6
    try:
        client.embeddings.create(model=model, input="word " * 600)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error
    else:
        raise AssertionError("a text that is too long was read")
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    except openai.BadRequestError as error:
        assert error.code == "model_not_supported", error
    else:
        raise AssertionError("an embedding model chatted")
    print("token ids equal; batch, alone, ids, floats and base64: the same bits")


if __name__ == "__main__":
    main()
