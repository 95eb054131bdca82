// Follows an open run: appends entries and replaces the header. Keeps the list of runs up to date: replaces its rows.
// All of them are rendered and escaped by the server.
"use strict";

(() => {
  const MAX_ENTRIES = 2000; // on the page
  const list = document.getElementById("transcript");
  const state = document.getElementById("state");
  if (!list?.dataset.live) return;

  const showState = (text) => {
    if (state) state.textContent = text;
  };
  const atEnd = () => window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
  const source = new EventSource(list.dataset.live);

  source.onopen = () => showState("Live.");
  source.onerror = () =>
    showState(source.readyState === EventSource.CLOSED ? "The live view has ended; reload the page." : "Reconnecting …");

  source.addEventListener("entries", (event) => {
    const follow = atEnd();
    list.insertAdjacentHTML("beforeend", JSON.parse(event.data));
    while (list.children.length > MAX_ENTRIES) list.firstElementChild.remove();
    document.getElementById("nothing")?.remove();
    if (follow) window.scrollTo(0, document.body.scrollHeight);
  });
  source.addEventListener("header", (event) => {
    const header = document.getElementById("run-header");
    const open = header.querySelector("details")?.open;
    header.innerHTML = JSON.parse(event.data);
    if (open) header.querySelector("details").open = true;
  });
  source.addEventListener("attempt", () => {
    source.close();
    if (new URL(location.href).searchParams.has("attempt")) showState("A new attempt has started; reload the page to see it.");
    else location.reload();
  });
  source.addEventListener("end", () => {
    source.close();
    showState("The run has ended.");
  });
})();

(() => {
  const INTERVAL = 3000; // ms
  const list = document.getElementById("runs");
  const state = document.getElementById("state");
  if (!list?.dataset.live) return;

  const update = async () => {
    const response = await fetch(list.dataset.live, { headers: { Accept: "text/html" } });
    if (response.status === 401) {
      state.textContent = "Signed out: reload the page.";
      return false;
    }
    if (!response.ok) throw new Error(String(response.status));
    const focused = list.contains(document.activeElement) ? document.activeElement.id : "";
    list.innerHTML = await response.text();
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    state.textContent = `Live, as of ${new Date().toISOString().slice(11, 19)} UTC`;
    return true;
  };
  const next = () =>
    setTimeout(async () => {
      let goOn = true;
      if (!document.hidden)
        goOn = await update().catch(() => {
          state.textContent = "No answer, trying again …";
          return true;
        });
      if (goOn) next();
    }, INTERVAL);
  next();
})();
