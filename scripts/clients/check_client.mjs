// The official Node client against a running server: streamed and not, alone and in company, errors.
//
//     node check_client.mjs BASE_URL MODEL
//
// Exits with 1 at the first difference.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0, timeout: 600_000 });

const request = (n, more = {}) => ({
  model,
  messages: [{ role: "user", content: `Marker ${n}. Name ${1 + (n % 4)} things that are blue.` }],
  temperature: n % 3 ? 0.8 : 0,
  seed: n,
  max_completion_tokens: 10 + (n % 9),
  logprobs: true,
  top_logprobs: 2,
  ...more,
});

async function whole(n, more) {
  const answer = await client.chat.completions.create(request(n, more));
  const { message, finish_reason, logprobs } = answer.choices[0];
  return { text: message.content, reason: finish_reason, tokens: logprobs.content };
}

async function streamed(n, more) {
  const answer = { text: "", reason: null, tokens: [] };
  for await (const chunk of await client.chat.completions.create({ ...request(n, more), stream: true })) {
    const [choice] = chunk.choices;
    answer.text += choice.delta.content ?? "";
    answer.reason = choice.finish_reason ?? answer.reason;
    answer.tokens.push(...(choice.logprobs?.content ?? []));
  }
  return answer;
}

const ids = [];
for await (const found of client.models.list()) ids.push(found.id);
assert(ids.includes(model));

const lone = [];
for (let n = 0; n < 8; n++) lone.push(await whole(n));
for (let n = 0; n < 8; n++) assert.deepEqual(await streamed(n), lone[n]);
console.log("ok: a stream equals its whole twin");
for (const ask of [whole, streamed]) {
  const answers = await Promise.all(lone.map((_, n) => ask(n)));
  answers.forEach((answer, n) => assert.deepEqual(answer, lone[n]));
}
console.log("ok: 8 at once equal their lone runs");

await assert.rejects(client.chat.completions.create(request(1, { model: "no/such" })), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
await assert.rejects(client.chat.completions.create(request(1, { top_p: 2 })), (error) => error instanceof OpenAI.BadRequestError && error.param === "top_p");
console.log("ok: errors are the client's own classes");
