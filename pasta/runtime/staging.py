"""Where a run is written before it is complete, and where it goes then."""

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


#: What a run is made of besides the ring, below its staging directory: segments that an embedded
#: consumer wrote out, and events that a collector had recorded when it was killed.
SPILL, STAGED = "spill", "staged"


@dataclass(frozen=True)
class Place:
    """Where a run goes."""

    path: Path
    #: The directory that it shares with runs of other processes, if it does.
    root: Path | None = None


def final_place(session: Session, ring: Ring, program: str, own: Mapping[str, str]) -> Place:
    """Where the run of a process with these variables goes, as an absolute path."""
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
        return Place(path)
    return Place(root / name_in_root(program, ring.pid, job.rank if job else None), root)


def _shared_root(path: Path, shared: bool) -> Path | None:
    """The root that a process shares where -o names a directory, or None.

    All ranks of a job are in one, whether a process without a rank, say the launcher of the
    others, finished before them, and has that name, or after them, and joins them there.
    """
    if shared:
        return path.with_name(f"{path.name}-ranks") if is_run(path) else path
    return path if is_root(path) else None


def staging_directory(session: Session, ring: Ring) -> Path:
    """Hidden directory in which the run of a ring is written.

    Beside the run's place, so that it can be renamed; its name tells session and process, so
    that the consumer in the target and the collector agree on it.
    """
    config = session.config
    inside = Path(config.root, "run") if config.root else Path(config.out)
    parts = (Path(session.document["cwd"]) / inside).parent.parts
    fixed = next((i for i, part in enumerate(parts) if "%" in part), len(parts))
    return Path(*parts[:fixed]) / f".{session.directory.name}-{ring.path.name}"
