// Calls each route by the client that was generated into `customers`, and prints what came back.
// What it reads of an answer must have the type that the OpenAPI document says, or it won't compile.

import * as api from "./customers/sdk.gen";
import { createClient } from "./customers/client";

declare const process: { env: Record<string, string | undefined> };

const client = createClient({
  baseUrl: process.env.SLUICEGATE_URL ?? "http://127.0.0.1:8080",
  auth: () => process.env.SLUICEGATE_KEY,
});

async function main(): Promise<void> {
  const options = { client, throwOnError: true } as const;
  const models = await api.listModels(options);
  const model = await api.getModel({ ...options, path: { model: "sentiment" } });
  const labels = await api.classify({
    ...options,
    body: { model: "sentiment", input: ["a gorgeous, witty movie", ""], on_error: "continue" },
  });
  const topics = await api.zeroShot({
    ...options,
    body: { model: "topics", input: "The striker scored.", labels: ["sport", "tax"] },
  });
  const chosen = await api.choose({
    ...options,
    body: { model: "topics", input: { prompt: "The striker scored.", choices: ["tax", "sport"] } },
  });
  const ranked = await api.rerank({
    ...options,
    body: { model: "minilm", query: "the PIN", documents: ["a PIN", "a tax"], top_n: 1 },
  });
  const named = await api.entities({
    ...options,
    body: { model: "entities-demo", input: "Angela Merkel visited Paris." },
  });
  const vectors = await api.embed({
    ...options,
    headers: { "X-Request-Timeout": 5 },
    body: { model: "minilm", input: "a sentence", dimensions: 8 },
  });
  const review = await api.infer({
    ...options,
    path: { model: "reviewer" },
    body: { inputs: ["My card was charged twice."] },
  });
  const usage = await api.getUsage({ ...options, query: { group_by: ["model", "day"] } });
  const ready = await api.isReady({ client });
  const refused = await api.classify({ client, body: { model: "x", input: "a" } });

  const results = labels.data.results.map((one) =>
    "labels" in one ? one.labels[0].label : one.error.code,
  );
  const [topic] = topics.data.results;
  const [choice] = chosen.data.results;
  const [best] = ranked.data.results;
  const [entities] = named.data.results;
  const [vector] = vectors.data.results;
  console.log(
    JSON.stringify({
      models: models.data?.data.map((one) => one.name),
      max_tokens: model.data?.max_tokens,
      labels: results,
      items: labels.data.usage.items,
      topic: "labels" in topic ? topic.labels[0].label : topic.error.code,
      choice: "choice" in choice ? choice.choice : choice.error.code,
      best: "score" in best ? best.index : best.error.code,
      entities: "entities" in entities ? entities.entities.length : entities.error.code,
      dimensions: "embedding" in vector ? vector.embedding.length : vector.error.code,
      review: review.data.results.length,
      usage: usage.data.data.length,
      ready: ready.data?.ready,
      problem: refused.error && "code" in refused.error ? refused.error.code : null,
    }),
  );
}

void main();
