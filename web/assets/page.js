// Follows a run that goes on: appends entries and replaces the head, both rendered and escaped by the server.
"use strict";

(() => {
  const LIMIT = 2000; // entries kept on the page
  const list = document.getElementById("transcript");
  const state = document.getElementById("state");
  if (!list?.dataset.live) return;

  const tell = (text) => {
    if (state) state.textContent = text;
  };
  const atEnd = () => window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
  const source = new EventSource(list.dataset.live);

  source.onopen = () => tell("Live.");
  source.onerror = () =>
    tell(source.readyState === EventSource.CLOSED ? "The live view has ended; reload the page." : "Reconnecting …");

  source.addEventListener("entries", (event) => {
    const follow = atEnd();
    list.insertAdjacentHTML("beforeend", JSON.parse(event.data));
    while (list.children.length > LIMIT) list.firstElementChild.remove();
    document.getElementById("nothing")?.remove();
    if (follow) window.scrollTo(0, document.body.scrollHeight);
  });
  source.addEventListener("head", (event) => {
    document.getElementById("head").innerHTML = JSON.parse(event.data);
  });
  source.addEventListener("attempt", () => {
    source.close();
    if (new URL(location.href).searchParams.has("attempt")) tell("Another attempt has begun.");
    else location.reload();
  });
  source.addEventListener("end", () => {
    source.close();
    tell("The run has ended.");
  });
})();
