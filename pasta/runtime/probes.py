"""Before the program starts: patches are compiled, and the plan of probes is written."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta.config import Config
from pasta.probes.sass import find_nvdisasm
from pasta.runtime.injection import find_sanitizer
from pasta.runtime.session import Session

if TYPE_CHECKING:
    from pasta.tool import Tool


def write_plan(session: Session, config: Config, tools: Sequence[Tool]) -> None:
    """Writes the plan for tools with probes into the session; nothing without any.

    Raises PastaError where their patches cannot be made.
    """
    from pasta.probes.build import device_architectures, plan_for

    probing = [tool for tool in tools if tool.probes()]
    if not probing:
        return
    sms = [config.probes_sm] if config.probes_sm else device_architectures()
    if not config.listens_to("nvidia"):
        sms = []
    plan = plan_for(
        probing, find_sanitizer(), sms, config.probes_memory, config.probes_trace_memory
    )
    plan.write(session.probes)
    if sms and find_nvdisasm() is not None:
        # rings must not run out of memory because of it
        free = shutil.disk_usage(session.directory).free
        session.document["code_memory"] = min(config.probes_code_memory, free // 4)
    session.document["probe_kinds"] = ",".join(map(str, plan.kinds))
