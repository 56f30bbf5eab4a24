// What the pages of the site do beside what the theme does. Everything works from a disk, without a server.
"use strict";

{
  const root = new URL(document.documentElement.dataset.content_root, location.href);

  // A page on a disk cannot read the others, from which a search takes its excerpts.
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";

  // Screen readers need the level of a heading, which the theme leaves out.
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = 2;

  // Whoever has no mouse can scroll only what can have the focus.
  const reach = () => {
    for (const box of document.querySelectorAll("pre, .table-wrapper")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("load", reach);
  addEventListener("resize", reach);

  // The list lies beside the versions and not in them, so that an old one offers those that came later.
  const list = document.createElement("script");
  list.src = new URL("../versions.js", root);
  list.addEventListener("load", () => {
    const here = location.href.slice(root.href.length).split(/[?#]/)[0];
    const items = EDITIONS.map((edition) => {
      const page = edition.pages.includes(here) ? here : "index.html";
      const link = document.createElement("a");
      link.href = new URL(`../${edition.name}/${page}`, root);
      link.textContent = edition.title;
      if (edition.name === DOCUMENTATION_OPTIONS.VERSION) link.setAttribute("aria-current", "true");
      const item = document.createElement("li");
      item.append(link);
      return item;
    });
    document.getElementById("editions").prepend(...items);
  });
  document.head.append(list);
}
