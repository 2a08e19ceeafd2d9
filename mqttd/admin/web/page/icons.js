/* Pictures of one line's width, drawn on 24 by 24; those who cannot see them miss nothing. */
const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z",
  clients: "M7 3h10v14H7zM11 20h2M5 21h14",
  subscriptions: "M4 5h10M4 12h16M4 19h7M17 3l3 2-3 2zM14 17l3 2-3 2z",
  topics: "M5 4v12a3 3 0 0 0 3 3h4M5 9h7M16 7h4v4h-4zM16 17h4v4h-4z",
  retained: "M6 3h12v18l-6-4-6 4z",
  alarms: "M18 9a6 6 0 0 0-12 0c0 6-2 7-2 7h16s-2-1-2-7M10 20h4",
  log: "M5 4h14v16H5zM8 8h8M8 12h8M8 16h5",
  why: "M4 12a8 8 0 1 0 16 0 8 8 0 1 0-16 0M10 10a2 2 0 1 1 2.6 1.9c-.4.2-.6.5-.6 1.1M12 16h.01",
  access: "M12 3l8 3v6c0 5-4 8-8 9-4-1-8-4-8-9V6zM9 12l2 2 4-4",
  bans: "M4 12a8 8 0 1 0 16 0 8 8 0 1 0-16 0M6.5 6.5l11 11",
  users: "M8 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7M2 20c0-4 3-6 6-6s6 2 6 6M16 5a3 3 0 0 1 0 6M22 19c0-3-2-5-4-5",
  listeners: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01",
  roles: "M4 4h7v6H4zM13 14h7v6h-7zM7.5 10v7H13M11 7h5.5v7",
  drain: "M4 4h16l-6 8v7l-4-3v-4z",
  plugins: "M9 3v5M15 3v5M6 8h12v4a6 6 0 0 1-12 0zM12 18v3",
  memory: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  spark: "M13 2L5 14h6l-1 8 8-12h-6z",
  config: "M4 7h9M17 7h3M4 17h3M11 17h9M13 5v4h4V5zM7 15v4h4v-4z",
  audit: "M4 4h12l4 4v12H4zM8 13l3 3 5-6",
  api: "M8 7l-5 5 5 5M16 7l5 5-5 5M13 5l-2 14",
  metrics: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
  nodes: "M4 4h6v6H4zM14 4h6v6h-6zM9 14h6v6H9zM7 10v2h10v-2M12 12v2",
  menu: "M4 6h16M4 12h16M4 18h16",
  leave: "M10 4H5v16h5M14 8l4 4-4 4M8 12h10",
  sun: "M8 12a4 4 0 1 0 8 0 4 4 0 1 0-8 0M12 3v2M12 19v2M3 12h2M19 12h2M6 6l1 1M17 17l1 1M18 6l-1 1M7 17l-1 1",
  moon: "M20 14A8 8 0 1 1 10 4a6.5 6.5 0 0 0 10 10z",
};

export function icon(name) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("viewBox", "0 0 24 24");
  made.setAttribute("class", "icon");
  made.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name] || PATHS.topics);
  made.append(path);
  return made;
}
