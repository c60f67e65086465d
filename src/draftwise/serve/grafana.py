"""The Grafana dashboard of `/metrics`: a table of its panels, and the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24  # of a board; panels fill its rows from the left
WRITTEN = "vllm:generation_tokens_total"
SHARE = "percentunit"
EACH_OVER_ALL = "/ on () group_left ()"  # a series for each label over the one of all


class Panel(NamedTuple):
    """A panel; its queries by their legends."""

    title: str
    description: str
    size: tuple[int, int]  # columns and rows
    queries: Mapping[str, str]
    kind: str = "timeseries"
    unit: str = "short"
    is_stacked: bool = False


def total(name: str, by: str = "", function: str = "", over: str = "$__rate_interval") -> str:
    """Return the sum of a metric, or of a function of it over some time, by labels if any are given."""
    metric = f'{name}{{model_name=~"$model"}}'
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}({f'{function}({metric}[{over}])' if function else metric})"


def rate(name: str, by: str = "") -> str:
    return total(name, by, "rate")


def speculation(kind: str, by: str = "") -> str:
    """Return the rate of drafts, of their tokens or of the accepted ones."""
    return rate(f"{'draftwise' if by else 'vllm'}:spec_decode_num_{kind}_total", by)


def quantiles(name: str) -> dict[str, str]:
    return {
        legend: f"histogram_quantile({part}, {rate(f'vllm:{name}_seconds_bucket', 'le')})"
        for legend, part in (("half of all", 0.5), ("90 %", 0.9), ("99 %", 0.99))
    }


ACCEPTED, DRAFTED, DRAFTS = (
    speculation(kind, "drafter") for kind in ("accepted_tokens", "draft_tokens", "drafts")
)
RUNNING, WAITING = (total(f"vllm:num_requests_{kind}") for kind in ("running", "waiting"))
PLACES = total("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", "increase", "$__range")
ALL_DRAFTS = total("vllm:spec_decode_num_drafts_total", "", "increase", "$__range")
PHASES = "draftwise:phase_seconds_total"
PANELS = (
    Panel(
        "Tokens per second",
        "Tokens written, all requests together.",
        (6, 4),
        {"tokens/s": rate(WRITTEN)},
        "stat",
    ),
    Panel("Running", "Texts that are decoded now.", (6, 4), {"running": RUNNING}, "stat"),
    Panel("Waiting", "Texts that wait for a place.", (6, 4), {"waiting": WAITING}, "stat"),
    Panel(
        "Drafted tokens accepted",
        "Of all tokens that were drafted.",
        (6, 4),
        {"accepted": f"{speculation('accepted_tokens')} / {speculation('draft_tokens')}"},
        "stat",
        SHARE,
    ),
    Panel(
        "Tokens per second",
        "Tokens written, and tokens of prompts read.",
        (12, 8),
        {"written": rate(WRITTEN), "of prompts": rate("vllm:prompt_tokens_total")},
    ),
    Panel(
        "Requests",
        "Texts that are decoded, and texts that wait for a place.",
        (12, 8),
        {"running": RUNNING, "waiting": WAITING},
    ),
    Panel(
        "Time to the first token",
        "From the arrival of a request.",
        (8, 8),
        quantiles("time_to_first_token"),
        unit="s",
    ),
    Panel(
        "Between two writings of a text",
        "One writing has all tokens that a round accepted.",
        (8, 8),
        quantiles("inter_token_latency"),
        unit="s",
    ),
    Panel("Whole request", "From arrival to the end.", (8, 8), quantiles("e2e_request_latency"), unit="s"),
    Panel(
        "Who writes",
        "Accepted tokens per second by drafter; the rest is the target's own.",
        (12, 8),
        {"{{drafter}}": ACCEPTED, "the target itself": f"{rate(WRITTEN)} - {speculation('accepted_tokens')}"},
        is_stacked=True,
    ),
    Panel(
        "Accepted by drafter",
        "Accepted tokens of drafted ones.",
        (12, 8),
        {"{{drafter}}": f"{ACCEPTED} / {DRAFTED}"},
        unit=SHARE,
    ),
    Panel(
        "Length of drafts",
        "Tokens of a draft, on average, and those of them that were accepted.",
        (12, 8),
        {"{{drafter}}, drafted": f"{DRAFTED} / {DRAFTS}", "{{drafter}}, accepted": f"{ACCEPTED} / {DRAFTS}"},
    ),
    Panel(
        "Accepted by place in the draft",
        "Share of drafts whose token at this place was accepted, over the shown time.",
        (12, 8),
        {"place {{position}}": f"{PLACES} {EACH_OVER_ALL} {ALL_DRAFTS}"},
        "bargauge",
        SHARE,
    ),
    Panel(
        "Arms played",
        "Rounds per second by arm; none is plain decoding. The twelve most played ones.",
        (12, 10),
        {"{{arm}}": f"topk(12, {speculation('rounds', 'arm')})"},
        is_stacked=True,
    ),
    Panel(
        "Where the time of rounds goes",
        "Share of each phase.",
        (12, 10),
        {"{{phase}}": f"{rate(PHASES, 'phase')} {EACH_OVER_ALL} {rate(PHASES)}"},
        unit=SHARE,
        is_stacked=True,
    ),
    Panel(
        "Texts ended",
        "By the reason of their end, per second.",
        (12, 7),
        {"{{finished_reason}}": rate("vllm:request_success_total", "finished_reason")},
    ),
    Panel(
        "Failures of drafters",
        "Since the start. A drafter that fails is left out; the texts stay right.",
        (12, 7),
        {"{{drafter}}": total("draftwise:spec_decode_num_faults", "drafter")},
    ),
    Panel(
        "Requests by their end",
        "Requests per second by route, status and reason: refusals are here.",
        (24, 7),
        {"{{status}} {{reason}} {{route}}": rate("draftwise:http_requests_total", "route, status, reason")},
    ),
)
OPTIONS: dict[str, Json] = {
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "timeseries": {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "mean"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "bargauge": {"displayMode": "basic", "orientation": "horizontal", "showUnfilled": True},
}
VARIABLE = {"regex": "", "hide": 0, "options": []}
MODELS = f"label_values({WRITTEN}, model_name)"


def make_dashboard() -> Json:
    """Return the dashboard, for any Prometheus and any model."""
    datasource: Json = {"name": "datasource", "label": "Data source", "type": "datasource"}
    datasource |= {"query": "prometheus", "refresh": 1, "multi": False, "includeAll": False, "current": {}}
    model: Json = {"name": "model", "label": "Model", "type": "query", "datasource": SOURCE}
    model |= {"definition": MODELS, "query": {"query": MODELS, "refId": "model"}, "refresh": 2, "sort": 1}
    model |= {"multi": True, "includeAll": True, "allValue": ".*"}
    model |= {"current": {"text": ["All"], "value": ["$__all"]}}
    return {
        "title": "Draftwise",
        "description": "A server of Draftwise: speed, latency, and who drafts what.",
        "uid": "draftwise",
        "id": None,
        "version": 1,
        "schemaVersion": 42,
        "tags": ["draftwise", "llm"],
        "editable": True,
        "annotations": {"list": []},
        "links": [],
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "templating": {"list": [VARIABLE | datasource, VARIABLE | model]},
        "panels": _place_panels(),
    }


def _place_panels() -> list[Json]:
    """Return all panels, each at its place."""
    placed, x, y = list[Json](), 0, 0
    for number, panel in enumerate(PANELS, 1):
        width, height = panel.size
        placed.append(
            {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.description,
                "datasource": SOURCE,
                "gridPos": {"h": height, "w": width, "x": x, "y": y},
                "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
                "options": OPTIONS[panel.kind],
                "targets": _targets(panel),
            }
        )
        x += width
        if x == COLUMNS:
            x, y = 0, y + height
    return placed


def _defaults(panel: Panel) -> Json:
    is_chart = panel.kind == "timeseries"
    defaults: Json = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic-by-name" if is_chart else "thresholds"},
        "mappings": [],
        "thresholds": {"mode": "absolute", "steps": [{"color": "blue", "value": None}]},
    }
    if panel.unit == SHARE and panel.kind != "stat":
        defaults |= {"min": 0, "max": 1}
    if is_chart:
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1 if panel.is_stacked else 2,
            "fillOpacity": 40 if panel.is_stacked else 5,
            "showPoints": "auto",
            "spanNulls": False,
            "axisSoftMin": 0,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
    return defaults


def _targets(panel: Panel) -> list[Json]:
    times: Json = {"range": False, "instant": True} if panel.kind == "bargauge" else {"range": True}
    return [
        {"datasource": SOURCE, "editorMode": "code", "expr": query, "legendFormat": legend, "refId": letter}
        | times
        for letter, (legend, query) in zip("ABC", panel.queries.items(), strict=False)
    ]
