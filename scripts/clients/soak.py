"""Many clients for a while: unique markers, reused prefixes, random cancels. No answer may differ from its lone run.

    soak.py BASE_URL MODEL PID [--seconds 120] [--clients 64]

Prints one line of figures. Exits with 1 when an answer differs, when a block is in use at idle, when something is still
queued at idle, or when the process grew after the first half.
"""

import argparse
import asyncio
import json
import random
import time
import urllib.request

import openai

parser = argparse.ArgumentParser()
parser.add_argument("base_url")
parser.add_argument("model")
parser.add_argument("pid", type=int)
parser.add_argument("--seconds", type=float, default=120)
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--requests", type=int, default=48)
args = parser.parse_args()

PREFIXES = [
    "You are a careful librarian who knows every book. " * 6,
    "You are a cook. Recipes are short and plain. " * 10,
    "You keep the log of a lighthouse. " * 3,
    "",
]


def request(n):
    system = PREFIXES[n % len(PREFIXES)]
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": f"My marker is {n * 7919 % 9973:04d}. " + "Repeat it and go on. " * (1 + n % 5)})
    return {
        "model": args.model,
        "messages": messages,
        "temperature": 0 if n % 2 else 0.9,
        "seed": n,
        "max_completion_tokens": 8 + n % 25,
        "logprobs": True,
        "top_logprobs": 1,
    }


def resident():
    with open(f"/proc/{args.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def running():
    root = args.base_url.rstrip("/")
    with urllib.request.urlopen(f"{root}/models/running") as answer:
        return json.load(answer)["data"]


async def ask(client, n, cancel_after=None):
    """The answer with its log-probabilities; `None` when it was cancelled."""
    text, reason, tokens = "", None, []
    stream = await client.chat.completions.create(**request(n), stream=True)
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            if choice.logprobs:
                tokens += [(t.token, t.logprob) for t in choice.logprobs.content]
        if cancel_after is not None and len(tokens) >= cancel_after:
            await stream.close()
            return None
    return text, reason, tokens


async def client_loop(client, number, end, lone, counts):
    dice = random.Random(number)
    while time.monotonic() < end:
        n = dice.randrange(args.requests)
        fate = dice.random()
        if fate < 0.1:
            # Gone before the first token, perhaps while queued or in prefill.
            task = asyncio.create_task(ask(client, n))
            await asyncio.sleep(dice.random() * 0.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            counts["dropped"] += 1
            continue
        answer = await ask(client, n, dice.randrange(1, 6) if fate < 0.25 else None)
        if answer is None:
            counts["cancelled"] += 1
        elif answer == lone[n]:
            counts["equal"] += 1
        else:
            counts["different"] += 1
            print(f"DIFFERENT {n}:\n  {answer}\n  {lone[n]}")


async def main():
    client = openai.AsyncOpenAI(base_url=args.base_url, api_key="any", max_retries=0, timeout=600)
    lone = [await ask(client, n) for n in range(args.requests)]
    counts = dict.fromkeys(["equal", "different", "cancelled", "dropped"], 0)
    begin = time.monotonic()
    end = begin + args.seconds
    clients = [asyncio.create_task(client_loop(client, i, end, lone, counts)) for i in range(args.clients)]
    await asyncio.sleep(args.seconds / 2)
    half = resident()
    await asyncio.gather(*clients)
    full = resident()
    await asyncio.sleep(1)
    idle = running()
    print(json.dumps({**counts, "rss_mib_half": round(half), "rss_mib_end": round(full), "idle": idle}))
    grown = full - half
    busy = [m for m in idle if m["kv_blocks_used"] or m["running_requests"] or m["waiting_requests"]]
    # A short run ends before the cache has been filled once.
    grew = args.seconds >= 60 and grown > max(16, half * 0.02)
    if counts["different"] or busy or grew or not counts["equal"]:
        raise SystemExit(f"FAILED: different {counts['different']}, busy {busy}, grown by {grown:.0f} MiB")
    print("ok")


asyncio.run(main())
