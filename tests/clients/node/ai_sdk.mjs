// The AI SDK over @ai-sdk/openai-compatible, as opencode uses it; it validates every chunk. Each export is a test.
import assert from "node:assert/strict";
import { generateText, isStepCount, stepCountIs, streamText, tool } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const model = (url) => createOpenAICompatible({ name: "lily", baseURL: url + "/v1", includeUsage: true }).chatModel("any");
const steps = isStepCount ?? stepCountIs;
const weather = (asked) =>
  tool({
    description: "The weather",
    inputSchema: z.object({ city: z.string(), days: z.number() }),
    execute: async (input) => {
      asked.push(input);
      return "rain";
    },
  });

export async function answers(url) {
  const { text, reasoningText, usage, finishReason } = await generateText({ model: model(url), prompt: "hi" });
  assert.deepEqual([text, reasoningText, finishReason], ["Hello there", "Hm.", "stop"]);
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
}

export async function streams(url) {
  const result = streamText({ model: model(url), prompt: "hi", onError: ({ error }) => assert.fail(error) });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  assert.equal(text, "Hello there");
  assert.equal(await result.reasoningText, "Hm.");
  assert.equal(await result.finishReason, "stop");
  assert.ok((await result.usage).outputTokens > 0);
}

export async function runs_tools(url) {
  const asked = [];
  const result = streamText({
    model: model(url),
    prompt: "hi",
    tools: { weather: weather(asked) },
    stopWhen: steps(3),
    onError: ({ error }) => assert.fail(error),
  });
  assert.equal(await result.text, "It rains.");
  assert.deepEqual(asked, [{ city: "Oslo", days: 2 }]);
}
