"use strict";
const SHOWN = 10;
const byId = (id) => document.getElementById(id);
const short = (id) => id.slice(0, 8);
const breakable = (type) => type.replace(".", ".\u200b");
const json = async (url, options) => (await fetch(url, options)).json();
const mine = { id: null };
const heard = new Set();
const streamed = [];

function row(id, values, state) {
  const made = document.createElement("tr");
  for (const value of values) made.insertCell().textContent = value;
  for (const cell of made.cells) if (cell.textContent === state) cell.className = state;
  if (id === mine.id) made.className = "mine";
  return made;
}

function story(now) {
  const { broker, relay, counts, duplicates } = now;
  if (broker.broken) return `The broker does not answer. Requests go on; ${counts.pending} events wait, and none has lost a try.`;
  if (!relay.alive) return "The relay was killed after it had published and before it could say so. The next one sends that event again.";
  if (counts.failed) return `${counts.failed} failed and wait for a person: repair everything, or look into the outbox.`;
  if (counts.retrying) return `${counts.retrying} wait for another try, and only what comes behind them in their own messages waits too.`;
  if (duplicates) return `All is well. ${duplicates} came twice and took effect once.`;
  return "All is well.";
}

function path(now) {
  const { counts, broker, relay } = now;
  const values = { recorded: counts.recorded, pending: counts.pending, failed: counts.failed, published: counts.published,
    handled: now.handled, duplicates: now.duplicates, starts: relay.starts, database: now.database, relay: relay.alive ? "works" : "is dead",
    broker: broker.broken ? "does not answer" : broker.name };
  for (const [id, value] of Object.entries(values)) byId(id).textContent = value;
  byId("at-outbox").className = counts.failed ? "bad" : counts.pending > 2 ? "wait" : "";
  byId("at-relay").className = relay.alive ? "" : "bad";
  byId("at-broker").className = broker.broken ? "bad" : "";
}

function described(message) {
  if (message.total_recipients === undefined) return `${message.recurrence_rule.includes("DAILY") ? "every day" : "on some days"}, ${message.timezone}`;
  return `to ${message.total_recipients} recipients`;
}

function travelled(step) {
  if (mine.id === null || mine[step]) return;
  mine[step] = performance.now();
  const after = (name) => (mine[name] ? `${((mine[name] - mine.sent) / 1000).toFixed(1)} s` : "…");
  byId("travel").hidden = false;
  byId("travel").textContent = `Your message ${short(mine.id)}: committed with its event ${after("recorded")} → `
    + `accepted by the broker ${after("accepted")} → handled once ${after("handled")}`;
}

async function look() {
  try {
    const lists = ["/state", `/api/group-messages?limit=${SHOWN}`, `/api/scheduled-messages?limit=${SHOWN}`];
    const [now, groups, scheduled] = await Promise.all(lists.map((url) => json(url)));
    const latest = [...groups, ...scheduled].sort((a, b) => b.created_at.localeCompare(a.created_at)).slice(0, SHOWN);
    byId("story").textContent = story(now);
    path(now);
    byId("messages").replaceChildren(...latest.map((m) => row(m.id, [short(m.id), described(m), m.status], m.status)));
    byId("outbox").replaceChildren(...now.outbox.map((e) => row(e.aggregate_id, [breakable(e.event_type), short(e.aggregate_id), e.status, e.retry_count], e.status)));
    byId("effects").replaceChildren(...now.effects.map((n) => row(n.message_id, [n.number, breakable(n.event_type), short(n.message_id)])));
    if (now.effects.some((n) => n.message_id === mine.id)) travelled("handled");
    now.poisons.forEach(hear);
  } catch {
    byId("story").textContent = "The demo has ended.";
  }
}

function drawStream() {
  byId("stream").replaceChildren(...streamed.map((e) => row(e.subject, [e.at.toLocaleTimeString(), breakable(e.type), short(e.subject)])));
  if (streamed.some((e) => e.subject === mine.id)) travelled("accepted");
}

function show(message) {
  streamed.unshift({ ...JSON.parse(message.data), at: new Date() });
  streamed.splice(SHOWN);
  drawStream();
}

const stream = new EventSource("/events");
stream.addEventListener("open", () => { byId("first").disabled = false; });
function hear(type) {
  if (!heard.has(type)) stream.addEventListener(type, show);
  heard.add(type);
}
for (const name of ["created", "queued", "cancelled"]) hear(`group_message.${name}`);
for (const name of ["created", "updated", "paused", "resumed", "cancelled"]) hear(`scheduled_message.${name}`);

for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", async () => {
    await fetch(`/do/${button.dataset.do}`, { method: "POST" });
    await look();
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
  travelled("recorded");
  drawStream(); // it may have come before the answer
  await look();
});

setInterval(look, 600);
look();
