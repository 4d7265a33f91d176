"""A synthesized template as tests read it: resources by type, intrinsic functions as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What one synthesis left: its folder and the template in it."""

    folder: Path
    document: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Assembly:
        (template,) = folder.glob("*.template.json")
        return cls(folder=folder, document=json.loads(template.read_text()))

    def resources(self) -> dict[str, dict[str, Any]]:
        return dict(self.document["Resources"])

    def of(self, resource_type: str) -> dict[str, Properties]:
        """Properties by logical id."""
        return {
            name: resource.get("Properties", {})
            for name, resource in self.resources().items()
            if resource["Type"] == resource_type
        }

    def only(self, resource_type: str) -> Properties:
        (properties,) = self.of(resource_type).values()
        return properties

    def code(self) -> Path:
        """The folder that becomes the functions' zip."""
        (asset,) = [path for path in self.folder.glob("asset.*") if path.is_dir()]
        return asset


def text(value: Any) -> str:
    """An intrinsic function as text: `<Name>` for a reference, `<Name.Attribute>`, joined."""
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [between, parts]}:
            return str(between).join(text(part) for part in parts)
        case {"Fn::Base64": inner}:
            return text(inner)
        case {"Fn::Select": [index, inner]}:
            return f"<{text(inner)}[{index}]>"
        case {"Fn::GetAZs": _}:
            return "zones"
        case _:
            return str(value)


def texts(value: Any) -> list[str]:
    """One value or a list of them, as texts."""
    return [text(one) for one in value] if isinstance(value, list) else [text(value)]
