// Follows an open run: appends entries and replaces the header, both rendered and escaped by the server.
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
