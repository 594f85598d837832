"""What an image is made of, as a CycloneDX document (JSON, specification 1.5).

It lists the Python distributions that the interpreter at work finds, and as the pedigree of vLLM
the patches of the series with the faults that each resolves. Packages of the operating system are
not looked at. Field names and values: CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/.
"""

from __future__ import annotations

import re
import uuid
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from patchset.faults import load_faults
from patchset.releases import PROJECTS

if TYPE_CHECKING:
    from patchset.container import ImageNote
    from patchset.project import Project
    from patchset.series import Patch


def sbom(project: Project, note: ImageNote) -> dict[str, Any]:
    """The document of one image. The same content gives the same bytes: it carries no time."""
    found: dict[str, str] = {}
    for item in distributions():
        # The first on sys.path is the one that is imported; a broken dist-info has no name.
        if name := item.metadata["Name"]:
            found.setdefault(canonicalize_name(name), item.version)
    components = [_library(name, version) for name, version in sorted(found.items())]
    for component in components:
        if component["name"] in PROJECTS.values():
            component["pedigree"] = _pedigree(project, note)
    identity = f"{note.base_digest} {note.patch_set}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": "vllm-kimi-eagle3",
                "version": note.version,
                "properties": [
                    {"name": "vllm-kimi-eagle3:patch-set", "value": note.patch_set},
                    {"name": "vllm-kimi-eagle3:base", "value": note.base},
                    {"name": "vllm-kimi-eagle3:base-digest", "value": note.base_digest},
                ],
            }
        },
        "components": components,
    }


def _library(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _pedigree(project: Project, note: ImageNote) -> dict[str, Any]:
    titles = {item.id: item.title for item in load_faults(project.root / "patches" / "faults.toml")}
    series = project.series(note.release)
    notes = "".join(f"overlay file {item.path} (sha256 {item.sha256})\n" for item in series.overlay)
    return {
        "patches": [_patch(patch, note.release, titles) for patch in series.patches],
        "notes": f"patch set {note.patch_set}\n{notes}",
    }


def _patch(patch: Patch, release: str, titles: dict[str, str]) -> dict[str, Any]:
    upstream = " ".join(value for key, value in patch.trailers if key == "Upstream")
    references = re.findall(r"https://\S+", upstream)
    resolves = [
        {
            "type": "defect",
            "id": fault,
            **({"name": titles[fault]} if fault in titles else {}),
            **({"references": references} if references else {}),
        }
        for fault in patch.faults
    ]
    return {
        "type": "backport" if "(backport" in upstream else "unofficial",
        "diff": {"url": f"patches/v{release}/{patch.name}#sha256={patch.sha256}"},
        "resolves": resolves,
    }
