// Sends the requests of a plan, and prints a line for each answer:
// when it was sent (ms of the load), its latency (ms), status, template, tenant, place in the cache, retry.
import { SharedArray } from "k6/data";
import exec from "k6/execution";
import http from "k6/http";

const plan = JSON.parse(open(__ENV.LOAD_PLAN));
const keys = JSON.parse(__ENV.LOAD_KEYS);
const templates = plan.templates;
const texts = new SharedArray("texts", () => JSON.parse(open(__ENV.LOAD_WORKLOAD)).texts);
const requests = new SharedArray("requests", () => JSON.parse(open(__ENV.LOAD_WORKLOAD)).requests);
const headers = keys.map((key) => ({
  authorization: `Bearer ${key}`,
  "content-type": "application/json",
  "x-request-timeout": String(plan.deadline),
}));
const PLACE = /"@text"/g;

export const options = plan.options;

function textOf(number) {
  return `${texts[number % texts.length]} ${(plan.first_number + number).toString(36)}`;
}

function cached(status) {
  if (!status) return "";
  if (status.includes("stale")) return "s";
  if (status.includes("; hit")) return "h";
  return status.includes("fwd=partial") ? "p" : "m";
}

export default function () {
  const index = exec.scenario.iterationInTest;
  const sent = Date.now();
  const [kind, first, tenant] = requests[index % requests.length];
  let number = first;
  const body = templates[kind].body.replace(PLACE, () => JSON.stringify(textOf(number++)));
  const answer = http.post(plan.url + templates[kind].path, body, {
    headers: headers[tenant],
    timeout: plan.timeout,
  });
  const t = answer.timings;
  const latency = t.blocked + t.connecting + t.tls_handshaking + t.duration;
  const cache = cached(answer.headers["Cache-Status"]);
  const retry = answer.headers["Retry-After"] === undefined ? 0 : 1;
  console.log(`${sent - exec.scenario.startTime},${latency.toFixed(3)},${answer.status},${kind},${tenant},${cache},${retry}`);
}

export function handleSummary(data) {
  const dropped = data.metrics.dropped_iterations;
  return { [__ENV.LOAD_DROPPED]: String(dropped ? dropped.values.count : 0) };
}
