"""A rule of one's own: waits for a whole device, though only one stream has work to wait for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pasta import abi
from pasta.rules import Calls, Rules, Violation, rule
from pasta.tool import option

_DEVICE = next(number for number, name in abi.enums()["sync"].items() if name == "device")


class DeviceWaits(Rules):
    """Waits for a device that has work in several streams."""

    least = option(10, help="minimum number of waits at a site", minimum=1)

    @rule("the host waits for all streams of a device")
    def device_wait(self, calls: Calls) -> Iterator[Violation]:
        """Waits for a device, in a program that launches in several streams."""
        rows = calls.rows
        streams = len(np.unique(rows["stream"][calls.of("kernel_launch")]))
        waits = calls.of("sync") & (rows["detail"] == _DEVICE)
        for site, found in calls.sites(waits):
            if streams > 1 and len(found) >= self.least:
                yield Violation(
                    site,
                    count=len(found),
                    evidence=f"{len(found):,} waits for work of {streams:,} streams",
                    remedy="wait for the stream whose results the host reads",
                )
