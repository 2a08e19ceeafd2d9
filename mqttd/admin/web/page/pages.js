/* Which pages there are, and where they stand at the side; [word behind #, name, role]. */
import { access } from "./pages/access.js";
import { alarms } from "./pages/alarms.js";
import { api } from "./pages/api.js";
import { audit } from "./pages/audit.js";
import { bans } from "./pages/bans.js";
import { clients } from "./pages/clients.js";
import { config } from "./pages/config.js";
import { drain } from "./pages/drain.js";
import { listeners } from "./pages/listeners.js";
import { log } from "./pages/log.js";
import { memory } from "./pages/memory.js";
import { metrics } from "./pages/metrics.js";
import { nodes } from "./pages/nodes.js";
import { overview } from "./pages/overview.js";
import { plugins } from "./pages/plugins.js";
import { retained } from "./pages/retained.js";
import { roles } from "./pages/roles.js";
import { spark } from "./pages/spark.js";
import { subscriptions } from "./pages/subscriptions.js";
import { topics } from "./pages/topics.js";
import { users } from "./pages/users.js";
import { why } from "./pages/why.js";

/* Each fills the element it is given, and may return what ends it. */
export const pages = { access, alarms, api, audit, bans, clients, config, drain, listeners, log, memory, metrics,
  nodes, overview, plugins, retained, roles, spark, subscriptions, topics, users, why };

const LIST = [
  ["", [["overview", "Overview"], ["clients", "Clients"], ["subscriptions", "Subscriptions"], ["topics", "Topics"],
    ["retained", "Retained"]]],
  ["Watch", [["alarms", "Alarms"], ["why", "Message lookup"], ["log", "Log"], ["memory", "Memory"], ["metrics", "Metrics"], ["spark", "Spark"]]],
  ["Access", [["access", "Rules"], ["roles", "Roles"], ["users", "Users"], ["bans", "Bans"]]],
  ["System", [["nodes", "Nodes"], ["listeners", "Listeners"], ["plugins", "Plugins"], ["config", "Configuration"],
    ["drain", "Drain"], ["audit", "Audit", "administrator"], ["api", "HTTP interface"]]],
];
export const GROUPS = LIST.map(([title, list]) => [title, list.filter(([key]) => Object.hasOwn(pages, key))]);
