"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const shown = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = shown() === "dark" ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = shown() === "dark" ? "light" : "dark"; label(); });
  dark.addEventListener("change", label);
  label();

  const opened = [];
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details:not([open])")) { each.open = true; opened.push(each); }
  });
  addEventListener("afterprint", () => { while (opened.length) opened.pop().open = false; });

  for (const key of document.querySelectorAll(".key[data-key]")) {
    const find = `.series[data-key="${key.dataset.key}"]`;
    if (!key.ownerSVGElement.querySelector(find)) continue;
    key.setAttribute("tabindex", "0");
    key.setAttribute("role", "button");
    key.setAttribute("aria-pressed", "true");
    const toggle = () => {
      const off = key.classList.toggle("off");
      key.setAttribute("aria-pressed", String(!off));
      for (const each of key.ownerSVGElement.querySelectorAll(find)) each.classList.toggle("off", off);
    };
    key.addEventListener("click", toggle);
    key.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
    });
  }

  const tip = document.getElementById("tip");
  const words = new WeakMap();
  for (const title of document.querySelectorAll("figure svg g > title, figure svg rect > title")) {
    words.set(title.parentNode, title.textContent);
    title.remove();
  }
  const over = (node) => {
    while (node) {
      if (words.has(node)) return words.get(node);
      if (node.nodeName === "figure" || node.nodeName === "FIGURE") return null;
      node = node.parentNode;
    }
    return null;
  };
  document.addEventListener("pointermove", (event) => {
    const said = over(event.target);
    tip.hidden = !said;
    if (!said) return;
    tip.textContent = said;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 16, innerHeight - box.height - 8)) + "px";
  });

  for (const table of document.querySelectorAll("table.sort")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      const press = document.createElement("button");
      press.type = "button";
      press.textContent = head.textContent;
      head.replaceChildren(press);
      press.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
        const compare = (one, other) => {
          const a = value(one), b = value(other), numbers = [Number(a), Number(b)];
          return numbers.some(Number.isNaN) ? a.localeCompare(b) : numbers[0] - numbers[1];
        };
        const rows = [...body.rows].sort(compare);
        body.append(...(up ? rows : rows.reverse()));
      });
    });
  }
})();
