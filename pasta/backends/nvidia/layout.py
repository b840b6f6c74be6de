"""Layout of a run's maps in device memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pasta.backends.nvidia.areas import Areas
from pasta.backends.nvidia.places import PLACES, Place
from pasta.probes.specs import MapSpec


class Layout(Areas):
    """Places of maps, given as (tool, map), and the areas they need. Raises ToolError."""

    def __init__(self, maps: Iterable[tuple[str, MapSpec]], memory: int = Areas.memory) -> None:
        super().__init__(memory)
        self.places: list[Place[Any]] = []
        for tool, spec in maps:
            request = spec.placement
            self.places.append(PLACES[type(request)](tool, spec, request, self))
        self.check()

    @property
    def objects(self) -> bool:
        """Whether anything is counted by object."""
        return any("object" in each.spec.keys for each in self.places)

    def place_of(self, tool: str, map: str) -> Place[Any]:
        """The place of a tool's map. Raises KeyError if it has none."""
        for place in self.places:
            if (place.tool, place.spec.name) == (tool, map):
                return place
        raise KeyError((tool, map))

    def of_tool(self, tool: str) -> Iterator[Place[Any]]:
        """The places of a tool's maps."""
        return (place for place in self.places if place.tool == tool)
