"""Checks a manifest without a cluster: against the operator's schema, and what the operator makes
of it against Kubernetes'.

    pip install dask-kubernetes kubernetes-validate jsonschema
    python docs/guides/cluster/check_manifest.py docs/guides/cluster/kubernetes.yaml

A Kubernetes server drops fields that it does not know, without a word. Here they are errors.
"""

import sys
from pathlib import Path
from typing import Any

import dask_kubernetes
import jsonschema
import kubernetes_validate
import yaml
from dask_kubernetes.operator.controller import controller

SCHEMAS = (
    Path(dask_kubernetes.__file__).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
)


def strict(schema: Any) -> Any:
    """The schema, with fields that it does not name forbidden, unless it says that they are
    kept.
    """
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: strict(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get(
        "x-kubernetes-preserve-unknown-fields"
    ):
        parts.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):  # an extension that JSON Schema does not know
        parts.pop("type", None)
    return parts


def own_schema(kind: str) -> Any:
    crd = yaml.safe_load((SCHEMAS / f"{kind.lower()}.yaml").read_text(encoding="utf-8"))
    schema = strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    return schema


def made_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """What the operator creates for a DaskJob, by its own functions."""
    name, cluster, space = job["metadata"]["name"], job["spec"]["cluster"]["spec"], "default"
    worker, scheduler = cluster["worker"], cluster["scheduler"]
    return [
        controller.build_scheduler_deployment_spec(name, scheduler["spec"], {}, {}),
        controller.build_scheduler_service_spec(name, scheduler["service"], {}, {}),
        controller.build_worker_deployment_spec(
            f"{name}-default", space, name, "0123456789", worker["spec"], {}, {}
        ),
        controller.build_job_pod_spec(name, name, space, job["spec"]["job"]["spec"], {}, {}),
    ]


def main(path: str) -> None:
    for document in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")):
        objects = [document]
        if document["kind"].startswith("Dask"):
            jsonschema.validate(document, own_schema(document["kind"]))
            print(document["kind"], document["metadata"]["name"], "fits the operator's schema")
            objects = made_of(document) if document["kind"] == "DaskJob" else []
        for made in objects:
            kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
            print(
                made["kind"],
                made["metadata"]["name"],
                "fits Kubernetes",
                kubernetes_validate.latest_version(),
            )


if __name__ == "__main__":
    main(sys.argv[1])
