// The @anthropic-ai/sdk package. Each export is a test: it gets the server's URL and throws what does not hold.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = (url) => new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 20_000 });
const messages = [{ role: "user", content: "hi" }];
const tools = [{ name: "weather", input_schema: { type: "object", properties: { city: { type: "string" } } } }];
const thinking = { type: "enabled", budget_tokens: 1024 };

export async function answers(url) {
  const whole = await client(url).messages.create({ model: "any", max_tokens: 2048, messages, thinking });
  assert.deepEqual(whole.content.map((block) => block.type), ["thinking", "text"]);
  assert.equal(whole.content[1].text, "Hello there");
  assert.equal(whole.stop_reason, "end_turn");
  const stream = client(url).messages.stream({ model: "any", max_tokens: 2048, messages, thinking });
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  assert.equal(text, "Hello there");
  assert.deepEqual(final.content.map((block) => block.type), ["thinking", "text"]);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
}

export async function calls(url) {
  const stream = client(url).messages.stream({ model: "any", max_tokens: 2048, messages, tools });
  const turn = await stream.finalMessage();
  assert.equal(turn.stop_reason, "tool_use");
  const call = turn.content.at(-1);
  assert.deepEqual(call.input, { city: "Oslo" });
  const result = { type: "tool_result", tool_use_id: call.id, content: [{ type: "text", text: "rain" }] };
  const more = [...messages, { role: "assistant", content: turn.content }, { role: "user", content: [result] }];
  const answer = await client(url).messages.create({ model: "any", max_tokens: 2048, messages: more, tools });
  assert.equal(answer.content[0].text, "It rains.");
}

export async function counts_and_lists(url) {
  const count = await client(url).messages.countTokens({ model: "any", messages });
  assert.ok(count.input_tokens > 0);
  const names = [];
  for await (const model of client(url).models.list()) names.push(model.id);
  assert.equal(names.length, 1);
}

export async function errors(url) {
  const bad = client(url).messages.create({ model: "any", max_tokens: 0, messages });
  await assert.rejects(bad, (error) => error instanceof Anthropic.BadRequestError && /max_tokens/.test(error.message));
}
