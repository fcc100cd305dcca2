"""The form of a Grafana dashboard: what has to be written for Grafana 10 and newer to show queries as panels."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Json = dict[str, Any]

SCHEMA_VERSION = 39
GRID_COLUMNS = 24
GAP_MILLISECONDS = 300_000  # lines go on over gaps of slow iterations: five minutes, as far as the rules look back
ALL_SOURCES = {"label": "Data source", "name": "datasource", "query": "prometheus", "refresh": 1, "type": "datasource"}
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}  # whichever one is chosen at the top of the page
NEWEST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}  # of several values, the last one counts
BUILT_IN = {"type": "grafana", "uid": "-- Grafana --"}


@dataclass(frozen=True)
class Query:
    """An expression of Prometheus, and the name of its series. An instant one asks for the newest values alone."""

    expr: str
    legend: str = ""
    instant: bool = False

    def json(self, letter: str, as_table: bool) -> Json:
        """As a target of a panel."""
        return {
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": "table" if as_table else "time_series",
            "instant": self.instant,
            "legendFormat": self.legend,
            "range": not self.instant,
            "refId": letter,
        }


@dataclass(frozen=True)
class Panel:
    """Queries that are shown together. Ids stay as they are when panels move: links to single panels contain them."""

    id: int
    title: str
    meaning: str
    worry: str  # when to, and what then
    queries: Sequence[Query]
    unit: str = "none"
    width: int = 8
    height: int = 8
    kind: ClassVar[str]  # as Grafana calls it
    options: ClassVar[Json]

    def json(self, x: int, y: int) -> Json:
        """At a place of the grid."""
        lettered = zip("ABCDEFGH", self.queries, strict=False)
        return {
            "datasource": SOURCE,
            "description": f"{self.meaning}\n\n**Worry:** {self.worry}",
            "fieldConfig": {"defaults": {"unit": self.unit, **self._defaults()}, "overrides": []},
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "id": self.id,
            "options": self.options,
            "targets": [query.json(letter, as_table=self.kind == "table") for letter, query in lettered],
            "title": self.title,
            "transformations": [],
            "type": self.kind,
        }

    def _defaults(self) -> Json:
        """How values are shown, beside their unit."""
        return {}


@dataclass(frozen=True)
class Graph(Panel):
    """Values over time, with a line at each limit."""

    limits: Sequence[float] = ()
    stacked: bool = False
    logarithmic: bool = False
    steps: bool = False  # values that jump, and are nothing in between
    kind = "timeseries"
    options: ClassVar[Json] = {
        "legend": {"calcs": ["lastNotNull"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }

    def _defaults(self) -> Json:
        return {
            "color": {"mode": "palette-classic"},
            "custom": {
                "drawStyle": "line",
                "fillOpacity": 20 if self.stacked else 0,
                "lineInterpolation": "stepAfter" if self.steps else "linear",
                "lineWidth": 1,
                "scaleDistribution": {"type": "log", "log": 10} if self.logarithmic else {"type": "linear"},
                "showPoints": "auto",
                "spanNulls": GAP_MILLISECONDS,
                "stacking": {"group": "A", "mode": "normal" if self.stacked else "none"},
                "thresholdsStyle": {"mode": "dashed" if self.limits else "off"},
            },
            **({} if self.logarithmic else {"min": 0}),
            "thresholds": thresholds(self.limits),
        }


@dataclass(frozen=True)
class Stat(Panel):
    """The newest values as large numbers; some of them may have a word and a colour instead."""

    words: dict[float, tuple[str, str]] = field(default_factory=dict)
    width: int = 3
    height: int = 4
    kind = "stat"
    options: ClassVar[Json] = {"colorMode": "value", "graphMode": "none", "reduceOptions": NEWEST, "textMode": "auto"}

    def _defaults(self) -> Json:
        texts = {f"{value:g}": {"color": color, "text": text} for value, (text, color) in self.words.items()}
        mappings = [{"type": "value", "options": texts}] if texts else []
        return {"color": {"mode": "thresholds"}, "mappings": mappings, "thresholds": thresholds(())}


@dataclass(frozen=True)
class Bars(Panel):
    """The newest values beside each other."""

    kind = "bargauge"
    options: ClassVar[Json] = {
        "displayMode": "gradient",
        "orientation": "horizontal",
        "reduceOptions": NEWEST,
        "showUnfilled": True,
    }

    def _defaults(self) -> Json:
        return {"color": {"mode": "continuous-GrYlRd"}, "min": 0, "thresholds": thresholds(())}


@dataclass(frozen=True)
class Table(Panel):
    """The newest series by some of their labels."""

    columns: Sequence[str] = ()
    height: int = 4
    kind = "table"
    options: ClassVar[Json] = {"cellHeight": "sm", "showHeader": True}

    def json(self, x: int, y: int) -> Json:
        """At a place of the grid, without the other labels."""
        wanted = {"id": "filterFieldsByName", "options": {"include": {"names": list(self.columns)}}}
        return super().json(x, y) | {"transformations": [wanted]}


class Row:
    """Panels under a heading; they flow from left to right."""

    def __init__(self, id_: int, title: str, *panels: Panel) -> None:
        self.id, self.title, self.panels = id_, title, panels


def choice(name: str, label: str, query: str) -> Json:
    """A variable that is chosen at the top of the page: some or all values of a label."""
    return {
        "allValue": ".*",  # those without the label, too
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": SOURCE,
        "definition": query,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "type": "query",
    }


def dashboard(uid: str, title: str, description: str, choices: Sequence[Json], rows: Sequence[Row]) -> Json:
    """A page, as Grafana reads it from a file; its uid is in its address."""
    annotations = {"builtIn": 1, "datasource": BUILT_IN, "enable": True, "hide": True, "iconColor": "blue"}
    return {
        "annotations": {"list": [{**annotations, "name": "Annotations & Alerts", "type": "dashboard"}]},
        "description": description,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair through all panels
        "panels": list(placed(rows)),
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["dbw"],
        "templating": {"list": [ALL_SOURCES, *choices]},
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "title": title,
        "uid": uid,
        "version": 1,
    }


def placed(rows: Iterable[Row]) -> Iterator[Json]:
    """All rows and their panels, each at its place: a line is as high as the highest panel in it."""
    y = 0
    for row in rows:
        place = {"h": 1, "w": GRID_COLUMNS, "x": 0, "y": y}
        yield {"collapsed": False, "gridPos": place, "id": row.id, "panels": [], "title": row.title, "type": "row"}
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > GRID_COLUMNS:
                x, y, height = 0, y + height, 0
            yield panel.json(x, y)
            x, height = x + panel.width, max(height, panel.height)
        y += height


def thresholds(limits: Sequence[float]) -> Json:
    """Steps of colour, as Grafana wants them: the first one has no value."""
    steps = [{"color": "green", "value": None}, *({"color": "red", "value": limit} for limit in limits)]
    return {"mode": "absolute", "steps": steps}
