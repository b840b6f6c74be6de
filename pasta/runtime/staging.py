"""The staging directory of a run, and its final destination."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pasta.run.directory import is_run
from pasta.run.naming import expand, is_shared, joined, name_in_root, place_in_job
from pasta.run.root import is_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pasta.runtime.ring import Ring
    from pasta.runtime.session import Session


#: Subdirectories of a staging directory: segments that an embedded consumer spilled, and events
#: that a killed collector had recorded.
SPILL, STAGED = "spill", "staged"


@dataclass(frozen=True)
class Destination:
    """Final path of a run."""

    path: Path
    #: The root that contains it, if any.
    root: Path | None = None


def destination_of(
    session: Session, ring: Ring, program: str, own: Mapping[str, str]
) -> Destination:
    """The absolute destination of the run of a process; `own`: its environment."""
    config = session.config
    environment = joined(own, os.environ)
    job = place_in_job(environment)
    path = Path(session.document["cwd"]) / expand(
        config.root or config.out,
        program=program,
        pid=ring.pid,
        started=session.document["started"],
        environment=environment,
    )
    root = path if config.root else _shared_root(path, is_shared(config.out, job))
    if root is None:
        return Destination(path)
    return Destination(root / name_in_root(program, ring.pid, job.rank if job else None), root)


def _shared_root(path: Path, shared: bool) -> Path | None:
    """The root for a process if -o names a directory, or None.

    All ranks of a job share one root. A process without a rank, such as their launcher, may finish
    before them and take the name of -o, or after them and join the root.
    """
    if shared:
        return path.with_name(f"{path.name}-ranks") if is_run(path) else path
    return path if is_root(path) else None


def staging_directory(session: Session, ring: Ring) -> Path:
    """Hidden directory in which the run of a ring is written.

    It is on the file system of the destination, so that it can be renamed; its name is derived
    from session and process, so that the embedded consumer and the collector agree on it.
    """
    config = session.config
    inside = Path(config.root, "run") if config.root else Path(config.out)
    parts = (Path(session.document["cwd"]) / inside).parent.parts
    fixed = next((i for i, part in enumerate(parts) if "%" in part), len(parts))
    return Path(*parts[:fixed]) / f".{session.directory.name}-{ring.path.name}"
