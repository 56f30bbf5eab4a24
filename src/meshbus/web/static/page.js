// The live page: reads documents from the node and fills tables, topology and chart. web/document.py has their fields.

import { bytes, count, names, rate, seconds, text, who, yesNo } from "./format.js";
import { Chart } from "./chart.js";
import { Table, make, setText } from "./table.js";
import { Topology } from "./topology.js";

const STALE_S = 15; // longer than the longest pause between two documents
const RETRY_MS = 5000;
const BAD = ["failed", "away", "silent"];

const at = (id) => document.getElementById(id);
const column = (title, value, write = text, more = {}) => ({ title, value, write, ...more });
const number = (title, value, write = count) => column(title, value, write, { number: true });
const remark = (title, value) => column(title, value, (found) => found ?? "", { wide: true });
const state = (title, value, mark) => column(title, value, text, { mark: (row) => `state ${mark(row)}` });

const TABLES = [
  {
    id: "peers",
    title: "Which peers are there, and how are they?",
    none: "This node has no peers, and none is configured.",
    key: (row) => row.node_id,
    columns: [
      column("name", (row) => who(row)),
      state("state", (row) => row.state, (row) => row.state),
      column("address", (row) => row.address),
      column("path", (row) => row.path, (value) => value ?? "none"),
      column("meshbus profile", (row) => row.profile, yesNo),
      column("dialect", (row) => row.dialect),
      number("failed tries", (row) => row.tries, (value) => (value === null ? "" : count(value))),
      column("next try", (row) => row.next_try_s, (value) => (value === null ? "" : seconds(value))),
      remark("last problem", (row) => row.problem),
      column("id", (row) => row.node_id),
    ],
  },
  {
    id: "channels",
    title: "What goes over which channel?",
    about: "Events per second are those of this node since the last update; totals are those since it was opened.",
    none: "This node knows no channel.",
    key: (row) => row.channel,
    columns: [
      column("channel", (row) => row.channel),
      number("published/s", (row) => row.published.events_per_s, rate),
      number("received/s", (row) => row.received.events_per_s, rate),
      number("published", (row) => row.published.events),
      number("received", (row) => row.received.events),
      number("bytes published", (row) => row.published.bytes, bytes),
      number("bytes received", (row) => row.received.bytes, bytes),
      number("subscribers here", (row) => row.subscribers),
      column("published here", (row) => row.publishes, yesNo),
      column("subscribed here", (row) => row.subscribed, yesNo),
      column("other publishers", (row) => names(row.publisher_names, row.publishers)),
    ],
  },
  {
    id: "losses",
    title: "What was dropped or denied, and why?",
    none: "Nothing was dropped or denied.",
    key: (row) => `${row.kind}.${row.why}`,
    columns: [
      column("what", (row) => row.kind),
      column("reason", (row) => row.why),
      number("count", (row) => row.count),
      number("per second", (row) => row.per_s, rate),
      column("meaning", (row) => row.sentence, text, { wide: true }),
    ],
  },
  {
    id: "logs",
    title: "What is in the logs?",
    none: "No log is open.",
    absent: "This node keeps no logs: log_dir is not set.",
    key: (row) => `${row.log}:${row.channel}`,
    columns: [
      column("channel", (row) => row.channel),
      column("events", (row) => row.log),
      number("appended/s", (row) => row.per_s, rate),
      number("retained", (row) => row.next_seq - row.first_seq),
      number("next sequence", (row) => row.next_seq),
      number("not on disk yet", (row) => row.unsynced),
      number("refused by the disk", (row) => row.refused),
      number("failed upkeep", (row) => row.failures),
      remark("waits for", (row) => row.waits),
    ],
  },
  {
    id: "replicas",
    title: "Are the replicated channels safe?",
    none: "This node has no replicated channel.",
    key: (row) => row.channel,
    columns: [
      column("channel", (row) => row.channel),
      state("state", (row) => (row.waits === null ? "available" : "unavailable"), (row) => (row.waits === null ? "alive" : "failed")),
      column("role here", (row) => row.role),
      column("leader", (row) => row.leader, who),
      number("epoch", (row) => row.epoch),
      number("on a majority", (row) => row.committed),
      number("not on a majority", (row) => Math.max(row.tail - row.committed, 0)),
      column("lag of members", (row) => row.members, (members) => members.map(member).join(", ")),
      column("not heard for", (row) => row.silence_s, seconds),
      remark("waits for", (row) => row.waits),
    ],
  },
  {
    id: "consumers",
    title: "Do Spark queries and other consumers keep up?",
    none: "No consumer has read a log of this node.",
    absent: "This node keeps no logs: log_dir is not set.",
    key: (row) => `${row.consumer}|${row.log}|${row.channel}`,
    columns: [
      column("consumer", (row) => row.consumer),
      column("channel", (row) => row.channel),
      column("events", (row) => row.log),
      number("events behind", (row) => row.lag),
      number("last progress", (row) => row.age_s, (value) => `${seconds(value)} ago`),
    ],
  },
  {
    id: "daemons",
    title: "Which daemons run here?",
    none: "No daemon is known here.",
    absent: "This node runs no daemons: daemons_dir is not set.",
    key: (row) => row.origin,
    columns: [
      column("daemon", (row) => row.name ?? row.origin),
      state("state", (row) => row.state, (row) => ({ running: "alive", failed: "failed", damaged: "failed", waiting: "suspected" })[row.state] ?? "heard"),
      column("runs on", (row) => row.node, who),
      number("processed/s", (row) => row.per_s, rate),
      number("processed here", (row) => row.processed),
      number("moves", (row) => row.moves),
      number("failures", (row) => row.errors),
      column("reads", (row) => row.inputs.join(", ")),
      column("publishes", (row) => row.output, (value) => value ?? ""),
      remark("problem", (row) => row.problem),
    ],
  },
];

function member(row) {
  return `${who(row)} ${row.lag === null ? (row.connected ? "unknown" : "away") : count(row.lag)}`;
}

const tables = TABLES.map((spec) => new Table(spec, at("main")));
const topology = new Topology(at("subnets"), at("topology").querySelector(".more"));
const chart = new Chart(at("chart"));
const totals = new Map();
let updated = performance.now();

for (const section of document.querySelectorAll("main > section"))
  make(make(at("sections"), "li"), "a", { href: `#${section.id}` }, section.querySelector("h2").textContent);

at("filter").addEventListener("input", () => {
  for (const table of tables) table.search(at("filter").value.trim().toLowerCase());
});

function show(page) {
  updated = performance.now();
  const { about } = page;
  const name = about.name ?? about.node_id;
  document.title = `${name} – meshbus`;
  setText(at("title"), name);
  setText(at("about"), `${about.node_id}, ${about.address}, subnet ${about.subnet}${about.gateway ? ", gateway" : ""}, open for ${seconds(Math.floor(page.uptime_s))}`);
  setText(at("health"), health(page));
  at("problems").replaceChildren(...page.problems.map((problem) => make(null, "li", {}, problem)));
  const lost = page.losses.reduce((sum, row) => sum + row.count, 0);
  const lostRate = page.losses.every((row) => row.per_s !== null) && page.sent.events_per_s !== null ? page.losses.reduce((sum, row) => sum + row.per_s, 0) : null;
  total("sent-per-s", "sent, events/s", rate(page.sent.events_per_s));
  total("received-per-s", "received, events/s", rate(page.received.events_per_s));
  total("forwarded-per-s", "forwarded, packets/s", rate(page.forwarded_per_s));
  total("sent", "sent, events", count(page.sent.events));
  total("received", "received, events", count(page.received.events));
  total("forwarded", "forwarded, packets", count(page.forwarded));
  total("lost", "dropped or denied", count(lost));
  chart.add(page.at_ms / 1000, page.sent.events_per_s, page.received.events_per_s, page.forwarded_per_s, lostRate);
  at("chart").setAttribute("aria-label", `Events per second over the last minutes. Now: ${rate(page.sent.events_per_s)} sent, ${rate(page.received.events_per_s)} received, ${rate(page.forwarded_per_s)} packets forwarded, ${rate(lostRate)} dropped or denied.`);
  topology.update(page.nodes, page.left_out.nodes);
  for (const table of tables) table.update(page[table.spec.id], page.left_out[table.spec.id]);
}

function total(id, title, value) {
  if (!totals.has(id)) {
    const group = make(at("totals"), "div");
    make(group, "dt", {}, title);
    totals.set(id, make(group, "dd", { id: `total-${id}` }));
  }
  setText(totals.get(id), value);
}

function health(page) {
  const others = Object.entries(page.states).filter(([one]) => one !== "here");
  const bad = others.filter(([one]) => BAD.includes(one)).reduce((sum, [, nodes]) => sum + nodes, 0);
  at("health").className = bad || page.problems.length ? "bad" : "good";
  const words = others.map(([one, nodes]) => `${nodes} ${one}`).join(", ");
  return words ? `Other nodes: ${words}.` : "No other node is known.";
}

function tell(sentence, good) {
  setText(at("connection"), sentence);
  at("connection").className = good ? "good" : "bad";
  document.body.classList.toggle("stale", !good);
}

function connect() {
  const source = new EventSource("events");
  source.addEventListener("message", (event) => {
    show(JSON.parse(event.data));
    tell("Live.", true);
  });
  source.addEventListener("error", async () => {
    tell("The node does not answer. What you see is old.", false);
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    const answer = await fetch("snapshot").catch(() => null);
    if (answer?.status === 401) location.replace("login");
    else if (answer?.ok) tell("Too many pages of this node are open. Close one.", false);
    setTimeout(connect, RETRY_MS);
  });
}

setInterval(() => {
  if (performance.now() - updated > STALE_S * 1000) tell("The node has sent nothing for a while. What you see is old.", false);
}, 1000);

connect();
