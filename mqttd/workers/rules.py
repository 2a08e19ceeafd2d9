"""Who answers each request to the HTTP interface where a broker has several workers.

    here     the supervisor itself: who may log in, the audit, the log
    one      any worker: all would answer the same, or tell the others
    owner    the worker of the client that the request is about
    in_turn  worker 1, whose answer it is; then the others, unless it is a refusal
    all      every worker has to do it; the answer is that of the first
    else     a view of `mqttd.workers.views`, which puts their answers together

What is not here is refused with 501, because the answer of one worker would pass for the broker's.
"""

from __future__ import annotations

from typing import Final

from mqttd.admin.http.route import Route

__all__ = ["RULES", "rule_of"]

#: By method and path below /api/v1; of the paths at the top by `//`.
RULES: Final[dict[str, str]] = {
    "GET //health/live": "here",
    "GET //health/ready": "ready",
    "GET //metrics": "exposition",
    "GET /openapi.json": "here",
    "GET /workers": "here",
    "GET /status": "status",
    "GET /nodes": "nodes",
    # A broker with workers is no node of a cluster, and says so as one process does.
    "GET /cluster": "one",
    "GET /cluster/routes": "one",
    "POST /cluster/leave": "one",
    "POST /cluster/nodes/{node}/drain": "one",
    "POST /cluster/nodes/{node}/force-leave": "one",
    "POST /cluster/join": "one",
    "GET /metrics": "metrics",
    "GET /events": "events",
    # Who asks.
    "GET /session": "here",
    "POST /session": "here",
    "POST /session/first": "here",
    "DELETE /session": "here",
    "GET /api-users": "here",
    "POST /api-users": "here",
    "DELETE /api-users/{name}": "here",
    "GET /audit": "here",
    # Clients.
    "GET /clients": "clients",
    "GET /clients/{client_id}": "owner",
    "DELETE /clients/{client_id}": "owner",
    "GET /sessions": "clients",
    "GET /sessions/{client_id}": "owner",
    "DELETE /sessions/{client_id}": "owner",
    "GET /subscriptions": "subscriptions",
    "POST /subscriptions": "owner",
    "DELETE /subscriptions": "owner",
    "GET /topics": "topics",
    "GET /routes": "routes",
    "GET /memory": "memory",
    "GET /slow": "slow",
    # Messages.
    "GET /retained": "one",
    "GET /retained/{topic}": "one",
    "DELETE /retained": "one",
    "POST /publish": "one",
    "POST /publish/batch": "one",
    "GET /topic-metrics": "topic_metrics",
    "POST /topic-metrics": "topic_metrics",
    "DELETE /topic-metrics": "topic_metrics",
    "GET /topics/busiest": "busiest",
    "GET /why": "why",
    "GET /why/{message_id}": "life",
    "GET /trace": "one",
    "POST /trace": "all",
    "DELETE /trace": "any_of",
    # Listeners.
    "GET /listeners": "listeners",
    "GET /listeners/{name}": "listener",
    "POST /listeners/{name}/start": "listener",
    "POST /listeners/{name}/stop": "listener",
    "POST /listeners/{name}/restart": "listener",
    "POST /listeners/reload": "all",
    "POST /listeners/certificates/reload": "all",
    # Who may do what.
    "GET /bans": "one",
    "POST /bans": "one",
    "DELETE /bans": "one",
    "GET /auth": "one",
    "POST /auth/reload": "all",
    "GET /users": "one",
    "POST /users": "users",
    "DELETE /users/{username}": "users",
    "GET /acl/rules": "acl_rules",
    "GET /acl/explain": "explain",
    "GET /acl/who": "acl_who",
    "GET /acl/lint": "one",
    "POST /acl/lint": "one",
    "POST /acl/diff": "acl_diff",
    "POST /acl/reload": "all",
    "POST /acl/promote": "promote",
    "GET /acl/shadow": "acl_shadow",
    "GET /roles": "one",
    "GET /roles/{role}": "one",
    "POST /roles": "in_turn",
    "DELETE /roles/{role}": "in_turn",
    "POST /roles/import": "in_turn",
    "GET /groups": "one",
    "POST /groups": "in_turn",
    "DELETE /groups/{group}": "in_turn",
    "GET /members": "one",
    "GET /members/{username}": "one",
    "POST /members": "in_turn",
    "DELETE /members/{username}": "in_turn",
    # The process.
    "GET /drain": "drain",
    "POST /drain": "drain",
    "DELETE /drain": "drain",
    "GET /alarms": "alarms",
    "DELETE /alarms/{alarm}": "any_of",
    "GET /log": "here",
    "GET /log/lines": "here",
    "POST /log/level": "level",
    "GET /store": "store",
    "POST /store/backup": "backup",
    "POST /store/compact": "compact",
    "GET /config": "config",
    "POST /config/validate": "one",
    "POST /config/plan": "plan",
    "POST /config/apply": "apply",
    "GET /hooks": "hooks",
    "GET /plugins": "one",
    "GET /plugins/{name}": "one",
    "POST /plugins/{name}/load": "all",
    "POST /plugins/{name}/unload": "all",
    "POST /plugins/{name}/reload": "all",
    "GET /plugins/{name}/settings": "one",
    "POST /plugins/{name}/settings": "one",
    "POST /plugins/{name}/commands/{command}": "command",
}


def rule_of(route: Route) -> str | None:
    """Who answers a route; None for one that is refused."""
    return RULES.get(f"{route.method} {'/' if route.root else ''}{route.path}")
