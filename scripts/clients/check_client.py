"""The official Python client against a running server: streamed and not, alone and in company, errors.

    check_client.py BASE_URL MODEL

Every check compares with something: a stream with its whole twin, an answer in company with the same request alone, an
error with the class that the client makes of it. Exits with 1 at the first difference.
"""

import asyncio
import sys

import openai

BASE_URL, MODEL = sys.argv[1], sys.argv[2]


def request(n, /, **more):
    """A request of its own kind: prompt, sampling and length depend on `n`."""
    words = ["river", "stone", "cloud", "lamp", "garden", "winter", "bridge", "violin"]
    about = " and ".join(words[(n + i) % len(words)] for i in range(1 + n % 4))
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant." if n % 2 else "You answer briefly."},
            {"role": "user", "content": f"Marker {n:04d}. Write a line about {about}."},
        ],
        "temperature": 0 if n % 3 == 0 else 0.8,
        "top_p": 0.95 if n % 2 else 1,
        "seed": n,
        "max_completion_tokens": 12 + n % 13,
        "logprobs": True,
        "top_logprobs": 3,
        **more,
    }


def essence(choice):
    """What must be equal: text, reason, every log-probability."""
    tokens = [
        (t.token, t.logprob, t.bytes, [(u.token, u.logprob) for u in t.top_logprobs]) for t in choice.logprobs.content
    ]
    return choice.message.content, choice.finish_reason, tokens


async def whole(client, n, /, **more):
    answer = await client.chat.completions.create(**request(n, **more))
    return [essence(choice) for choice in answer.choices], answer.usage


async def streamed(client, n, /, **more):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    content, reason, tokens, usage = {}, {}, {}, None
    async for chunk in await client.chat.completions.create(**request(n, **more), **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            i = choice.index
            content[i] = content.get(i, "") + (choice.delta.content or "")
            reason[i] = choice.finish_reason or reason.get(i)
            if choice.logprobs:
                tokens.setdefault(i, []).extend(
                    (t.token, t.logprob, t.bytes, [(u.token, u.logprob) for u in t.top_logprobs])
                    for t in choice.logprobs.content
                )
    return [(content[i], reason[i], tokens.get(i, [])) for i in sorted(content)], usage


def equal(what, a, b):
    if a != b:
        sys.exit(f"FAILED {what}:\n  {a!r}\n  {b!r}")


async def expect(error, what, call, **facts):
    try:
        await call
    except error as found:
        for name, value in facts.items():
            equal(f"{what}: {name}", getattr(found, name), value)
        return
    sys.exit(f"FAILED {what}: no error")


async def main():
    client = openai.AsyncOpenAI(base_url=BASE_URL, api_key="any", max_retries=0, timeout=600)
    models = [model.id async for model in client.models.list()]
    equal("the model is listed", MODEL in models, True)
    equal("the model is found", (await client.models.retrieve(MODEL)).id, MODEL)

    lone = {}
    for n in range(32):
        lone[n], usage = await whole(client, n)
        tokens = lone[n][0][2]
        equal(f"usage of {n}", usage.completion_tokens, len(tokens))
        equal(f"total of {n}", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        equal(f"tokens of {n} make its text", b"".join(bytes(t[2]) for t in tokens), lone[n][0][0].encode())
    print("ok: 32 answers alone")

    for n in range(8):
        got, usage = await streamed(client, n)
        equal(f"stream of {n}", got, lone[n])
        equal(f"usage in the stream of {n}", usage.completion_tokens, len(lone[n][0][2]))
    print("ok: a stream equals its whole twin")

    for count in (8, 32):
        for ask in (whole, streamed):
            answers = await asyncio.gather(*(ask(client, n) for n in range(count)))
            for n, (got, _) in enumerate(answers):
                equal(f"{n} beside {count - 1} others, {ask.__name__}", got, lone[n])
        print(f"ok: {count} at once equal their lone runs, bit for bit in log-probabilities")

    first, usage = await whole(client, 40, n=3, temperature=0.9)
    equal("three choices", len(first), 3)
    equal("choices differ", len({choice[0] for choice in first}) > 1, True)
    equal("the choices are repeatable", (await streamed(client, 40, n=3, temperature=0.9))[0], first)
    (text, _, _) = lone[3][0]
    stop = text[len(text) // 2 :][:3]
    got, _ = await whole(client, 3, stop=[stop])
    equal("a stop text ends the answer", (got[0][0], got[0][1]), (text[: text.index(stop)], "stop"))
    again, usage = await whole(client, 3)
    equal("from the cache", again, lone[3])
    equal("cached tokens are reported", usage.prompt_tokens_details.cached_tokens > 0, True)
    print("ok: n, stop, seed, cached tokens")

    create = client.chat.completions.create
    long = [{"role": "user", "content": "far " * 50000}]
    await expect(openai.NotFoundError, "unknown model", create(**request(1) | {"model": "no/such"}), code="model_not_found", param="model")
    await expect(openai.BadRequestError, "too long", create(**request(1) | {"messages": long}), code="context_length_exceeded")
    await expect(openai.BadRequestError, "temperature", create(**request(1) | {"temperature": 2.5}), param="temperature")
    await expect(openai.BadRequestError, "unknown field", create(**request(1), extra_body={"temprature": 0}), param="temprature")
    await expect(openai.BadRequestError, "no messages", create(**request(1) | {"messages": []}), param="messages")
    print("ok: errors are the client's own classes, with code and param")


asyncio.run(main())
