// The openai package. Each export is a test: it gets the server's URL and throws what does not hold.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = (url) => new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0, timeout: 20_000 });
const messages = [{ role: "user", content: "hi" }];
const tool = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
  },
};

export async function answers(url) {
  const answer = await client(url).chat.completions.create({ model: "any", messages });
  assert.equal(answer.choices[0].message.content, "Hello there");
  assert.equal(answer.choices[0].message.reasoning_content, "Hm.");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  const stream = await client(url).chat.completions.create({
    model: "any",
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "Hello there");
  assert.equal(usage.completion_tokens, answer.usage.completion_tokens);
}

export async function accumulates(url) {
  const stream = client(url).chat.completions.stream({ model: "any", messages });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, "Hello there");
}

export async function runs_tools(url) {
  const asked = [];
  const runner = client(url).chat.completions.runTools({
    model: "any",
    messages,
    stream: true,
    tools: [
      {
        type: "function",
        function: {
          ...tool.function,
          parse: JSON.parse,
          function: (input) => {
            asked.push(input);
            return "rain";
          },
        },
      },
    ],
  });
  assert.equal(await runner.finalContent(), "It rains.");
  assert.deepEqual(asked, [{ city: "Oslo", days: 2 }]);
}

export async function responses(url) {
  const whole = await client(url).responses.create({ model: "any", input: "hi", store: false });
  assert.equal(whole.output_text, "Hello there");
  assert.equal(whole.status, "completed");
  const stream = client(url).responses.stream({ model: "any", input: "hi" });
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.equal((await stream.finalResponse()).output_text, "Hello there");
  assert.equal(types.at(-1), "response.completed");
}

export async function errors(url) {
  const bad = client(url).chat.completions.create({ model: "any", messages: [], temperature: 9 });
  await assert.rejects(bad, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  const absent = client(url).embeddings.create({ model: "any", input: "hi" });
  await assert.rejects(absent, (error) => error instanceof OpenAI.InternalServerError && error.status === 501);
  assert.equal((await client(url).models.list()).data.length, 1);
}

export async function leaves(url) {
  const stream = await client(url).chat.completions.create({ model: "any", messages, stream: true });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
}
