"use strict";
const byId = (id) => document.getElementById(id);

function row(values, state) {
  const made = document.createElement("tr");
  for (const value of values) made.insertCell().textContent = value;
  if (state) made.cells[3].className = state;
  return made;
}

function story(now) {
  if (now.broker.broken) return `The broker is down. Orders go on; ${now.counts.pending} events wait, and none has lost an attempt.`;
  if (!now.relay.alive) return "The relay was killed between publishing and settling. Its lanes are taken over in two seconds.";
  if (now.counts.failed) return `${now.counts.failed} events failed and wait for a person: repair everything, or look into the outbox.`;
  if (now.counts.retrying) return "One event is refused; only its own order waits.";
  if (now.duplicates) return `All is well. ${now.duplicates} events came twice and were handled once.`;
  return "All is well.";
}

function number(name, value) {
  const item = document.createElement("li");
  const bold = document.createElement("b");
  bold.textContent = value;
  item.append(bold, name);
  return item;
}

async function look() {
  try {
    const now = await (await fetch("/state")).json();
    byId("story").textContent = story(now);
    byId("numbers").replaceChildren(
      number("events wait", now.counts.pending), number("failed", now.counts.failed),
      number("published", now.counts.published), number("messages at the broker", now.broker.messages),
      number("invoices written", now.handled), number("duplicates skipped", now.duplicates),
      number("relay started", now.relay.starts));
    byId("orders").replaceChildren(...now.orders.map((o) => row([o.id.slice(0, 8), o.customer, o.total, o.status], o.status)));
    byId("outbox").replaceChildren(...now.outbox.map((e) => row([e.position, e.event_type.slice(5), e.aggregate_id.slice(0, 8), e.status, e.retry_count], e.status)));
    byId("invoices").replaceChildren(...now.invoices.map((i) => row([i.number, i.order_id.slice(0, 8), i.total])));
  } catch {
    byId("story").textContent = "The demo has ended.";
  }
}

for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", async () => {
    await fetch(`/do/${button.dataset.do}`, { method: "POST" });
    await look();
  });
}

function show(message) {
  const event = JSON.parse(message.data);
  const item = document.createElement("li");
  item.textContent = `${event.type.slice(5)} ${event.subject.slice(0, 8)}`;
  byId("stream").prepend(item);
  while (byId("stream").children.length > 12) byId("stream").lastChild.remove();
}

const stream = new EventSource("/events?type=demo.order.*");
for (const type of ["demo.order.placed", "demo.order.shipped"]) stream.addEventListener(type, show);
setInterval(look, 500);
look();
