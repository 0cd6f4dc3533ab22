"use strict";
const MAX_ROWS = 10;
const byId = (id) => document.getElementById(id);
const short = (id) => id.slice(0, 8);
const breakable = (type) => type.replace(".", ".\u200b");
const json = async (url, options) => (await fetch(url, options)).json();
const mine = { id: null };
const subscribed = new Set();
const streamed = [];

function row(id, values, status) {
  const element = document.createElement("tr");
  for (const value of values) element.insertCell().textContent = value;
  for (const cell of element.cells) if (cell.textContent === status) cell.className = status;
  if (id === mine.id) element.className = "mine";
  return element;
}

function story(now) {
  const { broker, relay, counts, duplicates } = now;
  if (broker.broken) return `The broker does not answer. Requests still succeed. ${counts.pending} events are pending, and none has lost an attempt.`;
  if (!relay.alive) return "The relay crashed after it published an event and before it settled it. The next relay process publishes that event again.";
  if (counts.failed) return `${counts.failed} failed, and a person must decide: repair everything, or open the dashboard.`;
  if (counts.retrying) return `${counts.retrying} wait for a retry. Only later events of the same messages wait behind them.`;
  if (duplicates) return `All is well. ${duplicates} events arrived twice and took effect once.`;
  return "All is well.";
}

function path(now) {
  const { counts, broker, relay } = now;
  const values = { recorded: counts.recorded, pending: counts.pending, failed: counts.failed, published: counts.published,
    handled: now.handled, duplicates: now.duplicates, starts: relay.starts, database: now.database, relay: relay.alive ? "running" : "crashed",
    broker: broker.broken ? "does not answer" : broker.name };
  for (const [id, value] of Object.entries(values)) byId(id).textContent = value;
  byId("at-outbox").className = counts.failed ? "bad" : counts.pending > 2 ? "wait" : "";
  byId("at-relay").className = relay.alive ? "" : "bad";
  byId("at-broker").className = broker.broken ? "bad" : "";
}

function details(message) {
  if (message.total_recipients === undefined) return `${message.recurrence_rule.includes("DAILY") ? "every day" : "on some days"}, ${message.timezone}`;
  return `to ${message.total_recipients} recipients`;
}

function reached(step) {
  if (mine.id === null || mine[step]) return;
  mine[step] = performance.now();
  const after = (name) => (mine[name] ? `${((mine[name] - mine.sent) / 1000).toFixed(1)} s` : "…");
  byId("travel").hidden = false;
  byId("travel").textContent = `Your message ${short(mine.id)}: committed with its event ${after("recorded")} → `
    + `accepted by the broker ${after("accepted")} → handled once ${after("handled")}`;
}

async function refresh() {
  try {
    const lists = ["/state", `/api/group-messages?limit=${MAX_ROWS}`, `/api/scheduled-messages?limit=${MAX_ROWS}`];
    const [now, groups, scheduled] = await Promise.all(lists.map((url) => json(url)));
    const latest = [...groups, ...scheduled].sort((a, b) => b.created_at.localeCompare(a.created_at)).slice(0, MAX_ROWS);
    byId("story").textContent = story(now);
    path(now);
    byId("messages").replaceChildren(...latest.map((m) => row(m.id, [short(m.id), details(m), m.status], m.status)));
    byId("outbox").replaceChildren(...now.outbox.map((e) => row(e.aggregate_id, [breakable(e.event_type), short(e.aggregate_id), e.status, e.retry_count], e.status)));
    byId("effects").replaceChildren(...now.effects.map((n) => row(n.message_id, [n.number, breakable(n.event_type), short(n.message_id)])));
    if (now.effects.some((n) => n.message_id === mine.id)) reached("handled");
    now.poisons.forEach(subscribe);
  } catch {
    byId("story").textContent = "The demo has ended.";
  }
}

function drawStream() {
  byId("stream").replaceChildren(...streamed.map((e) => row(e.subject, [e.at.toLocaleTimeString(), breakable(e.type), short(e.subject)])));
  if (streamed.some((e) => e.subject === mine.id)) reached("accepted");
}

function show(message) {
  streamed.unshift({ ...JSON.parse(message.data), at: new Date() });
  streamed.splice(MAX_ROWS);
  drawStream();
}

const stream = new EventSource("/events");
stream.addEventListener("open", () => { byId("first").disabled = false; });
function subscribe(type) {
  if (!subscribed.has(type)) stream.addEventListener(type, show);
  subscribed.add(type);
}
for (const name of ["created", "queued", "cancelled"]) subscribe(`group_message.${name}`);
for (const name of ["created", "updated", "paused", "resumed", "cancelled"]) subscribe(`scheduled_message.${name}`);

for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", async () => {
    await fetch(`/do/${button.dataset.do}`, { method: "POST" });
    await refresh();
  });
}

byId("send").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const [user, account, channel, template, group] = Array.from({ length: 5 }, () => crypto.randomUUID());
  const message = { account_id: account, channel_id: channel, template_id: template, contact_group_ids: [group],
    total_recipients: Number(byId("recipients").value) };
  const sent = performance.now();
  const headers = { "Content-Type": "application/json", "X-User-ID": user };
  const { id } = await json("/api/group-messages", { method: "POST", headers, body: JSON.stringify(message) });
  Object.assign(mine, { id, sent, recorded: null, accepted: null, handled: null });
  reached("recorded");
  drawStream(); // its event may have arrived before the response
  await refresh();
});

setInterval(refresh, 600);
refresh();
