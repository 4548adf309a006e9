"""Reads manifests with Helm's own engine, and prints their documents as JSON.

    chart.py render CHART VALUES     the chart with these values (JSON), as release openmps in kube-system
    chart.py text CHART VALUES       the same, as it is
    chart.py lint CHART              what Helm has against the chart
    chart.py read FILE               a file of documents
"""

import json
import sys

import helm_python


def read(text):
    """The documents of a text, what is YAML within a ConfigMap too."""
    documents = []
    for part in ("\n" + text).split("\n---"):
        document = helm_python.values_from_yaml(part)
        if not document:
            continue
        if document.get("kind") == "ConfigMap":
            data = document["data"]
            document["data"] = {name: helm_python.values_from_yaml(data[name]) for name in data}
        documents.append(document)
    # A patch has neither kind nor name.
    name = lambda document: document.get("metadata", {}).get("name", "")
    return sorted(documents, key=lambda document: (document.get("kind", ""), name(document)))


def render(chart, values):
    values = json.loads(values)
    with helm_python.Chart.load(chart) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name="openmps", namespace="kube-system")
    return "\n---\n".join(rendered[name] for name in sorted(rendered))


what, path, *values = sys.argv[1:]
try:
    if what == "render":
        print(json.dumps(read(render(path, *values))))
    elif what == "text":
        print(render(path, *values))
    elif what == "lint":
        found = helm_python.lint(path)
        print(json.dumps([one for one in found["messages"] if one["severity"] > 1] + found["errors"]))
    elif what == "read":
        with open(path) as file:
            print(json.dumps(read(file.read())))
except helm_python.HelmError as error:
    sys.exit(f"helm: {error}")
