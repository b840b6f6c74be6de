"""Where a run is written before it is complete, and where it goes then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pasta.run.naming import expand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pasta.runtime.ring import Ring
    from pasta.runtime.session import Session


def final_directory(
    session: Session, ring: Ring, program: str, environment: Mapping[str, str]
) -> Path:
    """Absolute path of the run directory that the user asked for, for one process."""
    path = expand(
        session.config.out,
        program=program,
        pid=ring.pid,
        started=session.document["started"],
        environment={**os.environ, **environment},
    )
    return Path(session.document["cwd"]) / path


def staging_directory(session: Session, ring: Ring) -> Path:
    """Hidden directory in which the run of a ring is written.

    Beside the run's place, so that it can be renamed; its name tells session and process, so
    that the consumer in the target and the collector agree on it.
    """
    template = Path(session.document["cwd"]) / session.config.out
    parts = template.parent.parts
    fixed = next((i for i, part in enumerate(parts) if "%" in part), len(parts))
    return Path(*parts[:fixed]) / f".{session.directory.name}-{ring.path.name}"
