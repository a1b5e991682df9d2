// Pages are whole without this script. It keeps them fresh, chooses all jobs of a page, and goes on with long actions.
"use strict";

const EVERY_MS = 3000;
const main = document.getElementById("content");
const trouble = document.getElementById("trouble");
const live = document.getElementById("live");

// -- live ------------------------------------------------------------------------------

/** Whoever asked for less motion gets a page that stands still until they want it otherwise. */
function wantsLive() {
  const chosen = sessionStorage.getItem("reliq-live");
  if (chosen !== null) return chosen === "on";
  return !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Nothing is replaced under somebody's hands: text being selected or typed, boxes that are checked. */
function isInUse() {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) return true;
  if (main.querySelector("input[type=checkbox]:checked")) return true;
  const active = document.activeElement;
  return active !== null && main.contains(active) && active.matches("input, button, summary, pre");
}

/** What the next version of the page must keep: which details were opened, which link has the focus. */
function keepPlace(fresh) {
  const open = [...main.querySelectorAll("details")].map((each) => each.open);
  fresh.querySelectorAll("details").forEach((each, n) => {
    if (n < open.length) each.open = open[n];
  });
  const active = document.activeElement;
  if (!active || !main.contains(active) || !active.matches("a[href]")) return () => {};
  const href = active.getAttribute("href");
  const same = (root) => [...root.querySelectorAll("a[href]")].filter((each) => each.getAttribute("href") === href);
  const at = same(main).indexOf(active);
  return () => same(main)[at]?.focus({ preventScroll: true });
}

async function refresh() {
  if (document.hidden || isInUse()) return;
  const address = location.href.split("#")[0];
  const response = await fetch(address, { credentials: "same-origin", cache: "no-store" });
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.getElementById("content");
  if (!fresh || isInUse()) return;
  // What was told once stays as it is: a reader would say it again with each round.
  fresh.querySelector("#told")?.replaceWith(main.querySelector("#told").cloneNode(true));
  const restore = keepPlace(fresh);
  if (fresh.innerHTML !== main.innerHTML) {
    const told = main.querySelector("#told");
    fresh.querySelector("#told")?.remove();
    [...main.children].forEach((each) => each !== told && each.remove());
    main.append(...fresh.children);
    arm();
    restore();
  }
}

let timer = 0;

async function round() {
  try {
    await refresh();
    if (trouble.textContent) trouble.textContent = "";
  } catch (error) {
    const text = `Not up to date: ${error.message}`;
    if (trouble.textContent !== text) trouble.textContent = text;
  }
  if (live.getAttribute("aria-pressed") === "true") timer = setTimeout(round, EVERY_MS);
}

function setLive(isOn) {
  clearTimeout(timer);
  live.setAttribute("aria-pressed", String(isOn));
  if (isOn) timer = setTimeout(round, EVERY_MS);
}

// -- choosing jobs ---------------------------------------------------------------------

function arm() {
  const all = document.getElementById("all");
  if (!all) return;
  const boxes = [...document.querySelectorAll("input[name=id][type=checkbox]")];
  all.parentElement.hidden = false;
  const show = () => {
    const count = boxes.filter((box) => box.checked).length;
    all.checked = count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
  };
  all.addEventListener("change", () => boxes.forEach((box) => (box.checked = all.checked)));
  boxes.forEach((box) => box.addEventListener("change", show));
  show();
}

arm();
if (live) {
  live.hidden = false;
  live.addEventListener("click", () => {
    const isOn = live.getAttribute("aria-pressed") !== "true";
    sessionStorage.setItem("reliq-live", isOn ? "on" : "off");
    setLive(isOn);
  });
  setLive(wantsLive());
}

// A long action goes on by itself; its page is told anew with each step.
document.querySelector("form[data-continue]")?.requestSubmit();
