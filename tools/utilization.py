"""Use of each device over time, and the causes of its idle time.

The time of a device is divided into work (kernels, copies, communication) and gaps, and each gap
into what was not submitted yet and what had been submitted and did not start. All of it adds up to
the time of the run, and so does the critical path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.activity import COMMUNICATION, COMPUTE, COPY, STOPPED
from pasta.processors.demangle import distinct_names, short_name
from pasta.processors.device_use import (
    BLOCKED,
    CLOCK_ERROR,
    END,
    HOST,
    LATENCY,
    LOAD,
    READ,
    START,
    UNSUBMITTED,
    WAIT,
    DeviceUse,
    Kernels,
    Row,
)
from pasta.table import Figure, Table, Unit, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from pasta.processors.batch import Batch

#: Causes of idle time, in the order of the columns.
_CAUSES = {
    START: "start-up",
    WAIT: "host waited for the device",
    READ: "host waited for a copy",
    LOAD: "host loaded data",
    HOST: "host had submitted no work",
    LATENCY: "launch latency",
    BLOCKED: "submitted work waited",
    UNSUBMITTED: "time of submission unknown",
    END: "after the last work",
}
#: Their columns.
_COLUMNS = {
    START: "start_up",
    WAIT: "host_waits",
    READ: "host_copies",
    LOAD: "data_loading",
    HOST: "host_behind",
    LATENCY: "launch_latency",
    BLOCKED: "work_waits",
    UNSUBMITTED: "unknown_submission",
    END: "after_last",
}
#: Intervals of the critical path other than work, by kind.
_ON_PATH = (
    "host", "launch latency", "between consecutive work", "submitted work waited",
    "between work and the host wait for it",
)  # fmt: skip
#: What submitted work waits for, by number.
_HOW = ("earlier work in its stream", "event", "default stream")
_MAX_NAMED = 3
_CLASSES = {COMPUTE: "kernels", COPY: "copies", COMMUNICATION: "communication"}

#: Title and remedy of findings by cause.
_ADVICE = {
    WAIT: (
        "the device is idle while the host waits for it",
        "remove the wait, or keep values on the device and read them every 100 steps",
    ),
    READ: (
        "the device is idle while the host copies",
        "copy less often, and asynchronously, from or to pinned memory (non_blocking=True)",
    ),
    LOAD: (
        "the device is idle while data loads",
        "use more DataLoader workers (num_workers, prefetch_factor), or do less work per item",
    ),
    HOST: (
        "the device waits for the host to submit work",
        "submit more device work per call (a larger batch, fused operators), or submit it as "
        "a graph",
    ),
}


class Utilization(Tool):
    """Busy time of each device, and the cause of every gap: host, waits, copies, latency."""

    title = "Device use and idle time"
    topic = "time"

    needs = ("operators",)
    uses = (
        "kernel_complete", "copy_complete", "wait_times", "device", "registers", "event_record",
        "event_wait",
    )  # fmt: skip

    top = option(12, help="gaps in the text report; the table has all", minimum=1)
    communication = option(
        r"\b(nccl|rccl|nvshmem|rocshmem|oneccl)",
        kind="regex",
        help="names of communication kernels",
    )
    latency = option(
        "50us",
        kind="duration",
        help="submitted work that starts later than this waited for something",
    )
    short = option("5us", kind="duration", help="kernels shorter than this count as short")
    short_kernels = option(1000, help="finding: minimum number of short kernels", minimum=1)
    least_share = option(
        0.1, help="finding: minimum share of the time from first to last work", minimum=0.0
    )
    least_time = option(
        "10ms", kind="duration", help="… and minimum idle time of one cause and place"
    )
    least_gaps = option(
        5, help="… and minimum number of gaps; the longest gap, often start-up, is excluded",
        minimum=1,
    )  # fmt: skip

    def start(self) -> None:
        """Initialize the devices."""
        self.use = DeviceUse(
            self.context.process.start_time,
            self.latency,
            self.short,
            re.compile(self.communication),
        )

    def on_batch(self, batch: Batch) -> None:
        """Add submissions, work and waits."""
        self.use.add(batch, self.context)

    def result(self) -> Result:
        """Tables of devices, gaps and overlap, and findings."""
        self.use.finish()
        if not any(device.busy for device in self.use.devices.values()):  # busy or idle: unknown
            return Result("no device work has times")
        rows = self.use.gaps(self.context)
        path, waits = self._critical_path(), self._stream_waits()
        findings = [
            *self._tiny(), *self._tails(), *self._findings(rows), *self._alone(),
            *self._serialised(),
        ]  # fmt: skip
        devices = self._devices(rows)
        return Result(
            summary=self._summary(rows, path),
            tables={
                "devices": devices,
                "gaps": self._gaps(rows),
                "critical_path": path,
                "overlap": self._overlap(),
                "kernels": self._kernels(),
                "waits": waits,
            },
            figures={**self._causes(devices), **self._figures()},
            findings=sorted(findings, key=lambda each: -each.rank),
            notes=self._notes(),
        )

    def _devices(self, rows: list[Row]) -> Table:
        idle = {(number, cause): 0 for number in self.use.devices for cause in _CAUSES}
        for row in rows:
            idle[row.device, row.cause] += row.gaps.time
        devices = sorted(self.use.devices.items())
        span = np.asarray([device.span for _, device in devices], np.int64)
        busy = np.asarray([device.busy for _, device in devices], np.int64)
        columns: dict[str, Any] = {
            "device": [number for number, _ in devices],
            "observed": [device.time() for _, device in devices],
            "span": span,
            "busy": busy,
            "share": busy / np.maximum(span, 1),
            **{name: [each.time(bit) for _, each in devices] for bit, name in _CLASSES.items()},
            **{
                name: [idle[number, cause] for number, _ in devices]
                for cause, name in _COLUMNS.items()
            },
        }
        for which, starts in (
            ("latency", [device.starts for _, device in devices]),
            ("start", [device.all_starts for _, device in devices]),
        ):
            quantiles = [
                each.quantiles(1, 0.5, 0.99) if each.count.any() else [] for each in starts
            ]
            for at, name in enumerate((f"p50_{which}", f"p99_{which}")):
                values = [int(found[at][0]) if found else 0 for found in quantiles]
                columns[name] = absent_where(values, [not found for found in quantiles])
        units: dict[str, Unit] = {name: "ns" for name in columns if name != "device"}
        return Table(
            columns,
            units={**units, "share": "share"},
            labels={
                "span": "first to last work",
                "share": "of it",
                **{name: _CAUSES[cause] for cause, name in _COLUMNS.items()},
                "p50_latency": "p50 from submission to start, idle device",
                "p99_latency": "p99",
                "p50_start": "p50 from submission to start, all work",
                "p99_start": "p99",
            },
            keys=("device",),
            sums=("observed", "span", "busy", *_CLASSES.values(), *_COLUMNS.values()),
            important=("span", "busy", "share", _COLUMNS[HOST]),
            title="Devices: busy time, and idle time by cause",
            hidden=frozenset(
                {name for name, column in columns.items() if name != "device" and not any(column)}
            ),
        )

    def _gaps(self, rows: list[Row]) -> Table:
        spans = {number: max(1, device.span) for number, device in self.use.devices.items()}
        return Table(
            {
                "cause": [_CAUSES[row.cause] for row in rows],
                "where": [row.where or None for row in rows],
                "device": [row.device for row in rows],
                "gaps": [row.gaps.count for row in rows],
                "time": [row.gaps.time for row in rows],
                "share": [
                    None if row.cause in (START, END) else row.gaps.time / spans[row.device]
                    for row in rows
                ],
                "longest": [row.gaps.longest for row in rows],
            },
            units={"time": "ns", "share": "share", "longest": "ns"},
            labels={"share": "from first to last work"},
            keys=("device", "cause", "where"),
            sums=("gaps", "time"),
            important=("time", "share"),
            title="Idle time of devices by cause and place",
            shown=self.top,
        )

    def _overlap(self) -> Table:
        rows = []
        for number, device in sorted(self.use.devices.items()):
            for mask in range(1 << STOPPED):
                time = int(device.activity.overlap[mask])
                names = [name for bit, name in _CLASSES.items() if mask >> bit & 1]
                if not mask:
                    time -= device.time() - device.span
                if time:
                    rows.append((number, " + ".join(names) or "idle", time, time / device.span))
        rows.sort(key=lambda row: (row[0], -row[2]))
        columns = [[row[at] for row in rows] for at in range(4)]
        return Table(
            dict(zip(("device", "running", "time", "share"), columns, strict=True)),
            units={"time": "ns", "share": "share"},
            labels={"share": "from first to last work"},
            keys=("device", "running"),
            sums=("time",),
            title="Concurrency, from first to last work",
        )

    def _causes(self, devices: Table) -> dict[str, Figure]:
        """Busy time of each device, and its idle time by cause: a bar for each."""
        if not len(devices):
            return {}
        names = [name for name in _COLUMNS.values() if any(devices.columns[name])]
        names.sort(key=lambda name: -sum(devices.columns[name]))
        series = {name: devices.columns[name] for name in ("busy", *names)}
        return {
            "causes": Figure(
                "bar",
                "Busy time, and idle time by cause",
                [f"device {number}" for number in devices.columns["device"]],
                {devices.heading(name): list(map(int, each)) for name, each in series.items()},
                y_label="time of each device",
                y_unit="ns",
            )
        }

    def _figures(self) -> dict[str, Figure]:
        """Busy share of each device over time."""
        timelines = {n: each.activity.timeline for n, each in sorted(self.use.devices.items())}
        if not timelines:
            return {}
        shape = next(iter(timelines.values()))  # all devices are swept up to the same time
        lengths = np.minimum(self.use.end - self.use.begin - shape.times, shape.width)
        used = lengths > 0
        series = {
            f"device {number}": np.clip((each.growth / np.maximum(lengths, 1))[used], 0, 1)
            for number, each in timelines.items()
        }
        return {
            "busy": Figure(
                "step",
                "Busy share of each device",
                shape.times[used],
                series,
                x_label="time since start",
                x_unit="ns",
                y_label=f"busy share in {formatted(shape.width, 'ns')}",
                y_unit="share",
            )
        }

    def _findings(self, rows: list[Row]) -> Iterator[Finding]:
        for row in rows:
            advice = _ADVICE.get(row.cause)
            gaps, time = row.gaps.count - 1, row.gaps.time - row.gaps.longest
            span = self.use.devices[row.device].span - row.gaps.longest
            if advice is None or gaps < self.least_gaps or time < self.least_time:
                continue
            if time < self.least_share * span:
                continue
            yield Finding(
                what=advice[0],
                where=row.where or f"device {row.device}",
                evidence=f"device {row.device} was idle for {formatted(time, 'ns')} of "
                f"{formatted(span, 'ns')} from its first to its last work, in "
                f"{counted(gaps, 'gap')} of {formatted(time / gaps, 'ns')}, "
                f"excluding the longest gap of {formatted(row.gaps.longest, 'ns')}",
                remedy=f"{row.line}: {advice[1]}" if row.line else advice[1],
                gain=time / span,
                of="the time from first to last work",
            )

    def _kernels(self) -> Table:
        """Kernels of all devices by their time."""
        names = self.context.demangled(np.asarray(self.use.names.ids, np.int64))
        found = [
            (number, code, kernels)
            for number, kernels in self.use.kernels.items()
            for code in np.flatnonzero(kernels.of("launches")).tolist()
        ]
        of = {
            name: np.asarray([each.of(name)[code] for _, code, each in found], np.int64)
            for name in Kernels.AMOUNTS
        }
        waves = np.asarray([each.waves[code] for _, code, each in found], np.float64)
        shown = distinct_names(names)
        places = sorted((shown[code], number, at) for at, (number, code, _) in enumerate(found))
        order = np.asarray([at for *_, at in places], np.int64)
        order = order[np.lexsort((-of["launches"][order], -of["time"][order]))]
        of = {name: values[order] for name, values in of.items()}
        unknown = of["timed_waves"] == 0
        return Table(
            {
                "kernel": [shown[found[at][1]] for at in order.tolist()],
                "device": [found[at][0] for at in order.tolist()],
                "launches": of["launches"],
                "time": of["time"],
                "share": shares(of["time"], of["time"].sum()),
                "short": of["short"],
                "short_time": of["short_time"],
                "waves": absent_where(waves[order] / np.maximum(of["timed_waves"], 1), unknown),
                "tail_time": absent_where(of["tail_time"], unknown),
            },
            units={"time": "ns", "share": "share", "short_time": "ns", "tail_time": "ns"},
            labels={
                "share": "of kernel time",
                "short": f"below {formatted(self.short, 'ns')}",
                "short_time": "their time",
                "tail_time": "idle in last waves",
            },
            keys=("kernel", "device"),
            sums=("launches", "time", "short", "short_time", "tail_time"),
            important=("time", "share", "tail_time"),
            title="Kernels: short ones, and waves of blocks",
            shown=self.top,
            hidden=frozenset({"waves", "tail_time"} if unknown.all() else ()),
        )

    def _named(self, what: int) -> str:
        """Name of work on the critical path, or that other work waited for."""
        if what < 0:
            return "other work"
        code = what >> 16
        return (
            short_name(self.context.demangled([self.use.names.ids[code - 1]])[0])
            if code
            else "copies"
        )

    def _critical_path(self) -> Table:
        """The intervals of the chain that ends last, by kind."""
        from pasta.processors import critical_path

        total = self.use.end - self.use.begin
        found: dict[tuple[int | None, str], list[int]] = {}
        path = self.use.path
        rows = path.path(self.use.end, self.use.last_host[1]) if path is not None else []
        for what, time, count in ((int(r["what"]), int(r["time"]), int(r["count"])) for r in rows):
            work = what - critical_path.WORK
            key = (work & 0xFFFF, self._named(work)) if work >= 0 else (None, _ON_PATH[what])
            sums = found.setdefault(key, [0, 0])
            sums[0] += time
            sums[1] += count
        order = sorted(found, key=lambda key: (-found[key][0], key[1], key[0] or 0))
        time = np.asarray([found[key][0] for key in order], np.int64)
        return Table(
            {
                "what": [what for _, what in order],
                "device": [device for device, _ in order],
                "intervals": [found[key][1] for key in order],
                "time": time,
                "share": shares(time, total),
            },
            units={"time": "ns", "share": "share"},
            labels={"share": "of the run's time"},
            keys=("what", "device"),
            sums=("intervals", "time"),
            important=("time", "share"),
            title="Critical path: what the end of the run waited for",
            shown=self.top,
        )

    def _stream_names(self) -> list[str]:
        """Names of streams by slot: their numbers on the device, in order of their handles."""
        streams = self.use.path.streams()
        names = ["default stream"] * len(streams)
        seen: dict[int, int] = {}
        for device, handle, slot in sorted((*each[:2], at) for at, each in enumerate(streams)):
            if handle:
                seen[device] = seen.get(device, 0) + 1
                names[slot] = f"stream {seen[device]}"
        return names

    def _stream_waits(self) -> Table:
        """What submitted work waited for, by stream."""
        waits = {} if self.use.path is None else self.use.path.waits
        streams = [] if self.use.path is None else self.use.path.streams()
        names = self._stream_names() if streams else []
        found: dict[Any, list[int]] = {}
        for (stream, other, how, what), (count, time) in waits.items():
            key = (streams[stream][0], names[stream], _HOW[how], names[other], self._named(what))
            sums = found.setdefault(key, [0, 0])
            sums[0] += count
            sums[1] += time
        order = sorted(found, key=lambda key: (-found[key][1], key))
        columns = {
            name: [key[at] for key in order]
            for at, name in enumerate(("device", "stream", "how", "waits_for", "work"))
        }
        return Table(
            {
                **columns,
                "waits": [found[key][0] for key in order],
                "time": [found[key][1] for key in order],
            },
            units={"time": "ns"},
            labels={"how": "waited for", "waits_for": "of"},
            keys=tuple(columns),
            sums=("waits", "time"),
            important=("time", "waits"),
            title="What submitted work waited for",
            shown=self.top,
        )

    def _worth(self, time: int, span: int) -> bool:
        """Whether time that may be gained is enough for a finding."""
        return time >= max(1, self.least_time) and time >= self.least_share * max(1, span)

    def _most(self, kernels: Kernels, amount: str) -> str:
        """Names of up to three kernels with the most of an amount."""
        values = kernels.of(amount)
        names = distinct_names(self.context.demangled(np.asarray(self.use.names.ids, np.int64)))
        order = np.argsort(-values, kind="stable").tolist()
        some = [names[code] for code in order if values[code]]
        left = len(some) - _MAX_NAMED
        return ", ".join(some[:_MAX_NAMED]) + (f" and {left:,} more" if left > 0 else "")

    def _tiny(self) -> Iterator[Finding]:
        """Short kernels between which the device waits for the next launch."""
        for number, kernels in sorted(self.use.kernels.items()):
            device = self.use.devices.get(number)
            short, every = int(kernels.of("short").sum()), int(kernels.of("launches").sum())
            if device is None or short < self.short_kernels:
                continue
            before, time = device.before_short, int(kernels.of("short_time").sum())
            idle = before.time - before.longest
            if not self._worth(idle, device.span):
                continue
            yield Finding(
                what="the device waits for launches of tiny kernels",
                where=self._most(kernels, "short"),
                evidence=f"{short:,} of {counted(every, 'kernel')} take less than "
                f"{formatted(self.short, 'ns')}, "
                f"{formatted(time / max(1, device.busy), 'share')} of the busy time "
                f"of device {number}, which was idle for {formatted(idle, 'ns')} of "
                f"{formatted(device.span, 'ns')} before them: launching them takes "
                "longer than running them",
                remedy="capture the launches in one graph, or fuse the kernels, so that each "
                "launch does more work",
                gain=idle / device.span,
                of="the time from first to last work",
            )

    def _tails(self) -> Iterator[Finding]:
        """Last waves of blocks that leave much of a device idle."""
        for number, kernels in sorted(self.use.kernels.items()):
            device, lost = self.use.devices.get(number), int(kernels.of("tail_time").sum())
            if device is None or not self._worth(lost, device.span):
                continue
            launches = int(kernels.of("tailed").sum())
            time = int(kernels.of("tailed_time").sum())
            yield Finding(
                what="the last wave of blocks leaves much of the device idle",
                where=self._most(kernels, "tail_time"),
                evidence=f"{counted(launches, 'launch')} of {formatted(time, 'ns')} have more "
                f"blocks than device {number} holds at once; the idle part of their "
                f"last waves is worth {formatted(lost, 'ns')} of "
                f"{formatted(device.busy, 'ns')} of busy time, if all blocks take "
                "equally long",
                remedy="choose block or tile sizes that fill whole waves (see the column "
                "waves), or launch as many blocks as the device holds and let each "
                "process several tiles",
                gain=lost / device.span,
                of="the time from first to last work",
            )

    def _serialised(self) -> Iterator[Finding]:
        """Streams of a device that wait for each other and never overlap."""
        if self.use.path is None:
            return
        streams, names = self.use.path.streams(), self._stream_names()
        for number, device in sorted(self.use.devices.items()):
            busy = {slot: each[2] for slot, each in enumerate(streams) if each[0] == number}
            could = sum(busy.values()) - max(busy.values(), default=0)
            if self.use.path.overlap(number) * 10 > could:
                continue
            times: dict[tuple[str, str, int], int] = {}
            gaps = 0
            for (stream, other, how, _), (count, time) in self.use.path.waits.items():
                if stream != other and stream in busy:
                    one, two = sorted((names[stream], names[other]))
                    key = (one, two, how)
                    times[key] = times.get(key, 0) + time
                    gaps += count
            # what copies and communication wait for is a finding of its own
            gain = min(could, sum(times.values()))
            gain -= device.could_overlap(COPY) + device.could_overlap(COMMUNICATION)
            if gaps < self.least_gaps or not self._worth(gain, device.span):
                continue
            one, two, how = min(times, key=lambda key: (-times[key], key))
            by_default = _HOW[how] == "default stream"
            yield Finding(
                what="streams wait for each other and never overlap",
                where=f"{one} and {two} of device {number}",
                evidence=f"work waited {counted(gaps, 'time')} for work of another stream,"
                f" {formatted(sum(times.values()), 'ns')} in all, mostly"
                f" {'as all streams wait for the default stream' if by_default else 'for events'};"
                f" streams overlapped for {formatted(self.use.path.overlap(number), 'ns')} of"
                f" {formatted(device.busy, 'ns')}",
                remedy="if their work is independent, create the streams as non-blocking and "
                "submit nothing to the default stream"
                if by_default
                else "record the event right after the work that the other stream needs; "
                "split that work if it is one large piece",
                gain=gain / device.span,
                of="the time from first to last work",
                confidence="medium" if by_default else "low",
            )

    def _alone(self) -> Iterator[Finding]:
        """Communication and copies that ran while no kernel did."""
        for number, device in sorted(self.use.devices.items()):
            compute = int(device.activity.overlap[1 << COMPUTE])
            for kind, confidence, what, remedy in (
                (
                    COMMUNICATION,
                    "medium",
                    "communication does not overlap with kernels",
                    "start it in a stream of its own as soon as its input is ready, and "
                    "overlap it with computation that does not need its result (smaller "
                    "buckets, prefetching)",
                ),
                (
                    COPY,
                    "low",
                    "copies do not overlap with kernels",
                    "copy asynchronously, between pinned memory and the device and in a "
                    "stream of its own, while kernels work on other data",
                ),
            ):
                gain, time = device.could_overlap(kind), device.without_kernels(kind)
                if not self._worth(gain, device.span):
                    continue
                yield Finding(
                    what=what,
                    where=f"device {number}",
                    evidence=f"{formatted(time, 'ns')} of {formatted(device.time(kind), 'ns')}"
                    " passed while no kernel ran; kernels ran alone for "
                    f"{formatted(compute, 'ns')} of {formatted(device.span, 'ns')}",
                    remedy=remedy,
                    gain=gain / device.span,
                    of="the time from first to last work",
                    confidence=confidence,
                )

    def _summary(self, rows: list[Row], path: Table) -> str:
        texts = []
        for number, device in sorted(self.use.devices.items()):
            share = formatted(device.busy / max(1, device.span), "share")
            text = f"device {number} was busy for {share} of {formatted(device.span, 'ns')}"
            text += " from its first to its last work"
            mine = (row for row in rows if row.device == number)
            most = next((row for row in mine if row.cause not in (START, END)), None)
            if most is not None:
                share = formatted(most.gaps.time / device.span, "share")
                where = f" ({most.where})" if most.where else ""
                text += f"; idle most: {share} {_CAUSES[most.cause]}{where}"
            texts.append(text)
        first = next(path.rows(1), None)
        if first is not None:
            share = formatted(first["share"], "share")
            texts.append(f"critical path: {share} {first['what']}")
        return "; ".join(texts)

    def _notes(self) -> list[str]:
        notes = []
        every, short = (
            sum(int(each.of(name).sum()) for each in self.use.kernels.values())
            for name in ("launches", "short")
        )
        if short:
            share = formatted(short / every, "share")
            notes.append(
                f"{short:,} of {counted(every, 'kernel')} ({share}) took less"
                f" than {formatted(self.short, 'ns')}"
            )
        if self.use.stops.past:
            notes.append("time without profiling is host time on the critical path")
        if self.use.unplaced:
            notes.append(f"{counted(self.use.unplaced, 'completion')} of unknown devices left out")
        if self.use.early > CLOCK_ERROR:
            notes.append(
                f"work started up to {formatted(self.use.early, 'ns')} before it was "
                "submitted: device times on the host's clock are off by at least that much"
            )
        late = sum(device.activity.late for device in self.use.devices.values())
        if late:
            notes.append(f"{formatted(late, 'ns')} of work left out: reported too late")
        return notes
