/* One stream of events for the whole page: who wants which kind; the figures of the last minutes.
 *
 *   on(kind, call) --> one stream of all kinds that are wanted --> call(what was told)
 *
 * The broker may go and come back meanwhile: that is said, and tried again. */
import { events, who } from "./api.js";

const KEPT = 600;
const SILENT = 12000;
const opening = new Set();
const wanted = new Map([["counters", new Set()], ["alarms", new Set()]]);
export const readings = [];
let source = null;
let opened = "";
let state = "";
let beat = 0;
let again = 0;
let running = false;

function tell(name) {
  if (name === state) return;
  const before = state;
  state = name;
  window.dispatchEvent(new CustomEvent("live-state", { detail: { state, before } }));
}

const kinds = () => [...wanted].filter(([kind, calls]) => calls.size || kind === "counters" || kind === "alarms")
  .map(([kind]) => kind).sort().join(",");

function heard({ event: kind, data }) {
  clearTimeout(beat);
  beat = setTimeout(lost, SILENT);
  let told;
  try { told = JSON.parse(data); } catch { return; }
  if (kind === "counters") {
    readings.push(told);
    if (readings.length > KEPT) readings.shift();
  }
  for (const call of wanted.get(kind) || []) call(told);
}

function open() {
  close();
  opened = kinds();
  const mine = new AbortController();
  source = mine;
  const over = () => { if (source === mine) lost(); };
  events({ kinds: opened }, mine.signal, () => {
    tell("live");
    // What came before it was open was told to nobody: whoever shows it looks again.
    for (const call of opening) call();
  }, (told) => { if (source === mine) heard(told); }).then(over, over);
}

function close() {
  clearTimeout(again);
  clearTimeout(beat);
  if (source) source.abort();
  source = null;
}

function lost() {
  if (!running) return;
  close();
  tell("lost");
  again = setTimeout(() => who().then(open, (error) => {
    if (error.status === 401) window.dispatchEvent(new Event("logged-out"));
    else lost();
  }), 1000);
}

export function begin() {
  running = true;
  state = "";
  readings.length = 0;
  open();
}

export function end() {
  running = false;
  close();
}

/* Be told of events of a kind, and each time that some may have been missed, where there is `missed`;
 * returns what ends that. */
export function on(kind, call, missed = null) {
  if (!wanted.has(kind)) wanted.set(kind, new Set());
  wanted.get(kind).add(call);
  if (missed) opening.add(missed);
  if (running && source && kinds() !== opened) open();
  else if (missed) missed();
  return () => { wanted.get(kind).delete(call); opening.delete(missed); };
}

/* What a counter has grown by a second between each two readings; null over a gap. */
export function rates(...names) {
  return readings.map((now, at) => {
    const before = readings[at - 1];
    if (!before || now.at - before.at > 5 || now.at <= before.at) return null;
    const sum = (reading) => names.reduce((all, name) => all + (reading.counters[name] || 0), 0);
    return Math.max(0, (sum(now) - sum(before)) / (now.at - before.at));
  });
}

export const gauges = (name, of = 1) => readings.map((one) => (one.gauges[name] || 0) / of);
