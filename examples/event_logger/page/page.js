// Events as they arrive, newest first. What was shown is kept for this tab, with the number of the
// last one, so that a reload goes on from there.
"use strict";

const KEPT = 200;
const log = JSON.parse(sessionStorage.getItem("log") ?? "[]");

function show({ channel, text, event_id }) {
  const line = document.createElement("li");
  for (const [tag, value] of [["b", channel], ["span", text], ["small", event_id]]) {
    // Text, never HTML: anybody may have written it.
    line.appendChild(document.createElement(tag)).textContent = value;
  }
  const list = document.getElementById("events");
  list.prepend(line);
  if (list.children.length > KEPT) list.lastChild.remove();
}

function keep(number, shown) {
  log.push({ number, ...shown });
  log.splice(0, log.length - KEPT);
  sessionStorage.setItem("log", JSON.stringify(log));
  show(shown);
}

function listen() {
  // After a lost connection the browser comes again by itself, with Last-Event-ID.
  const last = log.at(-1)?.number;
  const events = new EventSource(`/events?${last ? `last_event_id=${last}` : "from=start"}`);
  const state = document.getElementById("state");
  events.onopen = () => (state.textContent = "live");
  events.addEventListener("message.sent", (event) => {
    const { channel, text, event_id } = JSON.parse(event.data).data;
    keep(event.lastEventId, { channel, text, event_id });
  });
  events.addEventListener("outrider.gap", (event) => {
    keep(event.lastEventId, { channel: "…", text: "events are missing here", event_id: "" });
  });
  events.onerror = () => {
    state.textContent = "away, trying again";
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}

document.getElementById("send").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify(Object.fromEntries(new FormData(form)));
  const answer = await fetch("/messages", { method: "POST", headers, body }).catch(() => null);
  const problem = answer?.ok ? "" : `not sent: ${answer ? answer.status : "no connection"}`;
  document.getElementById("problem").textContent = problem;
  if (answer?.ok) form.text.value = "";
});

log.forEach(show);
listen();
