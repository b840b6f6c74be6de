"""Power, clocks, temperature and memory of devices over time, and what lowered the clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.processors.codes import distinct
from pasta.processors.correlate import Submissions
from pasta.processors.timeline import TotalTimeline
from pasta.table import Figure, Table, Unit, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: Reasons for lower clocks while a device works, by the names of their bits.
_REASONS = {
    "power": "power limit",
    "thermal": "temperature limit",
    "hardware": "hardware slowdown",
    "setting": "clocks set by a user",
    "other": "other reasons",
}
_REMEDIES = {
    "power": "raise the device's power limit if possible; otherwise this is the clock that "
    "the device sustains under this load: compare only runs at the same power limit",
    "thermal": (
        "improve the cooling of the device: air flow, fans, dust, load of neighbouring devices"
    ),
    "hardware": "check the device's power supply and cables, and the power limits of the host",
    "setting": "reset the clocks of the device, which a user has set",
    "other": "ask the vendor's tool for the reason",
}
_FIELDS = ("power", "clock", "temperature", "memory_used", "utilization")
#: mW times ns in a joule.
_JOULE = 1e12
_MW = 1000
_ABSENT_DEVICE = -1
#: Launches after which a source is assumed to have no completions, and the longest wait, ns.
_WITHOUT_TIMES = 1 << 16
_PATIENCE = 60 * 10**9


@cache
def _interval() -> Any:
    return np.dtype([("start", "i8"), ("end", "i8")])


@dataclass
class _Spread:
    """Count, sum, smallest and largest of values."""

    count: int = 0
    sum: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def add(self, values: NDArray[Any]) -> None:
        if not len(values):
            return
        least, most = float(values.min()), float(values.max())
        self.least = min(self.least, least) if self.count else least
        self.most = max(self.most, most) if self.count else most
        self.count += len(values)
        self.sum += float(values.sum(dtype=np.float64))

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None


class _Curve:
    """Mean of a quantity over time, in a bounded number of bins."""

    def __init__(self, begin: int) -> None:
        self.total, self.time = TotalTimeline(begin), TotalTimeline(begin)
        self.integral = 0.0  # of the quantity, over ns
        self._known = 0.0
        self._last: tuple[int, float] | None = None

    def add(self, times: NDArray[Any], values: NDArray[Any]) -> None:
        """Adds values at times (int64, ns), between which the quantity changes evenly."""
        if self._last is not None:
            times = np.concatenate([[self._last[0]], times])
            values = np.concatenate([[self._last[1]], values])
        if not len(times):
            return
        self._last = int(times[-1]), float(values[-1])
        steps = np.diff(times).astype(np.float64)
        grown = np.cumsum(np.concatenate([[0.0], steps * (values[1:] + values[:-1]) / 2]))
        known = np.cumsum(np.concatenate([[0.0], steps]))
        self.total.add(times, self.integral + grown)
        self.time.add(times, self._known + known)
        self.integral += float(grown[-1])
        self._known += float(known[-1])

    def levels(self, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Begins of the bins up to a time, ns since the begin, and the means in them; NaN without
        values."""
        for each in (self.total, self.time):
            each.place(np.asarray([end]))
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.total.growth / self.time.growth
        return self.total.times, means

    @property
    def mean(self) -> float | None:
        return self.integral / self._known if self._known else None


@dataclass
class _Throttled:
    """Busy time in which clocks were lowered for a reason; `clock`: MHz times ns."""

    time: float = 0.0
    clock: float = 0.0
    with_clock: float = 0.0

    def add(self, times: NDArray[Any], clocks: NDArray[Any], known: NDArray[Any]) -> None:
        self.time += float(times.sum())
        self.clock += float((times * clocks)[known].sum())
        self.with_clock += float(times[known].sum())

    @property
    def mean(self) -> float | None:
        return self.clock / self.with_clock if self.with_clock else None


class _Device:
    """Summary of the samples of a device."""

    def __init__(self, number: int, begin: int) -> None:
        self.number = number
        self.spreads = {name: _Spread() for name in _FIELDS}
        self.curves = {name: _Curve(begin) for name in ("power", "clock", "memory_used")}
        self.samples = self.first = self.last = 0
        self.limit: int | None = None  # mW
        self.max_clock: int | None = None  # MHz
        self.memory: int | None = None  # bytes
        #: Samples with other processes, samples that report processes, and the maximum numbers of
        #: other processes and of their bytes.
        self.shared = self.reported = self.others = 0
        self.memory_others: int | None = None
        #: Intervals between samples that were not compared with the device's work.
        self.waiting: list[NDArray[Any]] = []
        self.busy = 0.0
        self.throttled = {name: _Throttled() for name in ("any", *_REASONS)}

    def add(self, samples: NDArray[Any]) -> None:
        """Adds samples, in the order of their times."""
        if not self.samples:
            self.first = int(samples["time"][0])
        self.samples += len(samples)
        self.last = int(samples["time"][-1])
        for name in _FIELDS:
            known = _known(samples[name])
            self.spreads[name].add(samples[name][known])
            if name in self.curves:
                times = samples["time"][known].astype(np.int64)
                self.curves[name].add(times, samples[name][known].astype(np.float64))
        self.limit = _latest(samples["power_limit"], self.limit)
        self.max_clock = _latest(samples["max_clock"], self.max_clock)
        self.memory = _latest(samples["memory_total"], self.memory)
        others = samples["others"][_known(samples["others"])]
        self.reported += len(others)
        self.shared += int((others > 0).sum())
        self.others = max(self.others, int(others.max(initial=0)))
        memory = samples["memory_others"][_known(samples["memory_others"])]
        if len(memory):
            self.memory_others = max(self.memory_others or 0, int(memory.max()))
        self.waiting.append(samples)

    def compare(self, until: int, work: NDArray[Any] | None) -> None:
        """Counts the busy time between samples up to a time. `work`: begins and ends of kernels;
        None: not known, the driver's utilisation decides."""
        if not self.waiting:
            return
        samples = np.concatenate(self.waiting)
        times = samples["time"].astype(np.int64)
        count = int(np.searchsorted(times, until, "right"))
        if count < 2:
            self.waiting = [samples]
            return
        self.waiting = [samples[count - 1 :]]  # the last one begins the next interval
        held, times = samples[: count - 1], times[:count]
        if work is None:
            used = _known(held["utilization"]) & (held["utilization"] > 0)
            busy = np.where(used, np.diff(times), 0).astype(np.float64)
        else:
            busy = np.diff(_busy_until(times, work))
        self.busy += float(busy.sum())
        reasons = np.where(_known(held["throttle"]), held["throttle"], 0)
        wanted = sum(abi.THROTTLE[name] for name in _REASONS)
        clocks, known = held["clock"].astype(np.float64), _known(held["clock"])
        for name, throttled in self.throttled.items():
            on = (reasons & (wanted if name == "any" else abi.THROTTLE[name])) != 0
            throttled.add(busy[on], clocks[on], known[on])

    def loss(self, name: str) -> float | None:
        """Share of the highest clock that was lost for a reason; None if unknown."""
        mean = self.throttled[name].mean
        if mean is None or not self.max_clock:
            return None
        return max(0.0, 1 - mean / self.max_clock)


def _known(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(values != np.iinfo(values.dtype).max)


def _latest(values: NDArray[Any], otherwise: int | None) -> int | None:
    known = values[_known(values)]
    return int(known[-1]) if len(known) else otherwise


def _busy_until(times: NDArray[Any], work: NDArray[Any]) -> NDArray[Any]:
    """Time (ns, float64) in which any work ran, from the first work to each of these times."""
    if not len(work):
        return np.zeros(len(times))
    work = work[np.argsort(work["start"], kind="stable")]
    ends = np.maximum.accumulate(work["end"])
    first = np.append(True, work["start"][1:] > ends[:-1])  # begins of busy intervals
    begins, ends = work["start"][first], ends[np.append(first[1:], True)]
    totals = np.cumsum(ends - begins)
    edges = np.stack([begins, ends], 1).reshape(-1) - begins[0]
    levels = np.stack([totals - (ends - begins), totals], 1).reshape(-1)
    return np.asarray(np.interp(times - begins[0], edges, levels))


@dataclass
class _Work:
    """Kernels of one device that may overlap samples not compared yet."""

    parts: list[NDArray[Any]] = field(default_factory=list)

    def all(self) -> NDArray[Any]:
        if len(self.parts) != 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0]

    def forget(self, until: int) -> None:
        self.parts = [self.all()[self.all()["end"] > until]]


class Telemetry(Tool):
    """Power, energy, clocks, temperature and memory of devices, and what lowered the clocks."""

    title = "Power, clocks and temperature"
    topic = "time"

    uses = ("kernel_complete",)

    least_share = option(
        0.1, help="finding: minimum share of busy time with lowered clocks",
        minimum=0.0,
    )  # fmt: skip
    least_loss = option(
        0.05, help="… and minimum share of the maximum clock lost in that time", minimum=0.0
    )
    least_busy = option("100ms", kind="duration", help="… and minimum busy time")
    others_memory = option(
        "1GiB",
        kind="bytes",
        help="finding: minimum memory that other processes hold on a device in use",
    )

    def start(self) -> None:
        """Initialize the devices."""
        self.devices: dict[tuple[int, int], _Device] = {}  # by id of the uuid, number without one
        self.ordinals: dict[int, int] = {}  # by id of the uuid, from events
        self.used: set[int] = set()  # devices with a context or a kernel
        self.work: dict[int, _Work] = {}
        self.launches: Submissions | None = Submissions(
            "key", np.dtype([("key", "u8"), ("submitted", "i8")])
        )
        self.launched = 0
        self.timed: set[int] = set()  # devices with completions
        self.begin = self.context.process.start_time
        #: Latest time in all batches, and in all but the last one.
        self.end = self.before = self.begin

    def on_batch(self, batch: Batch) -> None:
        """Add samples and work, and compare them up to the time before which nothing can arrive."""
        earliest, latest = batch.span
        if not self.begin:
            self.begin = self.end = earliest
        self.before = self.end
        self.end = max(self.end, latest)
        for event in batch["device"]:
            if event["uuid"] and event["device"] >= 0:
                self.ordinals[int(event["uuid"])] = int(event["device"])
        for kind in ("context_create", "kernel_launch"):
            self.used.update(distinct(batch[kind]["device"]))
        self._add_work(batch)
        samples = batch["device_sample"]
        if len(samples):
            self._add_samples(samples)
        self._compare(self._safe())

    def _add_samples(self, samples: NDArray[Any]) -> None:
        for uuid in distinct(samples["uuid"]):
            of_uuid = samples[samples["uuid"] == uuid]
            for number in distinct(of_uuid["device"]) if not uuid else [None]:
                mine = of_uuid if number is None else of_uuid[of_uuid["device"] == number]
                key = (uuid, 0 if number is None else number)
                latest = int(mine["device"][-1])
                if key not in self.devices:
                    self.devices[key] = _Device(latest, self.begin)
                self.devices[key].number = self.ordinals.get(uuid, latest)
                self.devices[key].add(mine[np.argsort(mine["time"], kind="stable")])

    def _add_work(self, batch: Batch) -> None:
        launches, done = batch["kernel_launch"], batch["kernel_complete"]
        if self.launches is not None and len(launches):
            self.launched += len(launches)
            rows = np.zeros(len(launches), self.launches.pending.dtype)
            rows["key"], rows["submitted"] = launches["ordinal"], launches["time"]
            self.launches.put(rows[rows["key"] != 2**64 - 1])
            if self.launched > _WITHOUT_TIMES and not self.timed and not len(done):
                self.launches = None
        if self.launches is not None:
            self.launches.take(done["ordinal"])
        good = (done["end"] != 2**64 - 1) & (done["end"] >= done["start"]) & (done["device"] >= 0)
        done = done[good]
        for number in distinct(done["device"]):
            mine = done[done["device"] == number]
            rows = np.zeros(len(mine), _interval())
            rows["start"], rows["end"] = mine["start"], mine["end"]
            self.work.setdefault(number, _Work()).parts.append(rows)
            self.timed.add(number)
        self.used |= self.timed

    def _safe(self) -> int:
        """Time before which all work has been reported: threads publish a little out of order."""
        until = self.before
        if self.launches is not None:
            pending = self.launches.pending["submitted"]
            until = min(until, int(pending.min(initial=until)))
        return max(until, self.end - _PATIENCE)

    def _compare(self, until: int) -> None:
        # Until a source has reported times, it may still do so.
        if self.launches is not None and not self.timed:
            until = min(until, self.end - _PATIENCE)
        for device in self.devices.values():
            device.compare(until, self._work_of(device))
        for number, work in self.work.items():
            held = [
                int(each.waiting[0]["time"][0])
                for each in self.devices.values()
                if each.number == number and each.waiting
            ]
            work.forget(min([until, *held]))

    def _work_of(self, device: _Device) -> NDArray[Any] | None:
        """Begins and ends of the device's kernels; None if they are not known."""
        if device.number < 0 or not self.timed:
            return None
        found = self.work.get(device.number)
        return np.zeros(0, _interval()) if found is None else found.all()

    def result(self) -> Result:
        """Tables of devices and reasons, charts, and findings."""
        self.launches = None  # what has not completed never will
        self._compare(self.end)
        devices = sorted(self.devices.items(), key=lambda each: (each[1].number, each[0]))
        named = [(self._name(key, each), each) for key, each in devices]
        return Result(
            summary=self._summary(named),
            tables={
                "devices": self._table([(key, each) for key, each in devices]),
                "throttling": self._throttling(named),
            },
            figures=self._figures(named),
            findings=[
                finding
                for name, device in named
                if self._is_used(device)
                for finding in (*self._slow(name, device), *self._shared(name, device))
            ],
            notes=self._notes(),
        )

    def _name(self, key: tuple[int, int], device: _Device) -> str:
        if device.number >= 0:
            return f"device {device.number}"
        return self.context.strings[key[0]] or "unknown device"

    def _is_used(self, device: _Device) -> bool:
        """Whether the program uses the device: its only one, if the number is not known."""
        if device.number >= 0:
            return device.number in self.used
        return len(self.devices) == 1 and bool(self.used - {_ABSENT_DEVICE})

    def _table(self, devices: list[tuple[tuple[int, int], _Device]]) -> Table:
        def spread(name: str, which: str, scale: float = 1.0) -> list[float | None]:
            found = [each.spreads[name] for _, each in devices]
            values = [getattr(each, which) if each.count else None for each in found]
            return [None if value is None else value / scale for value in values]

        every = [each for _, each in devices]
        columns: dict[str, Any] = {
            "device": [each.number if each.number >= 0 else None for each in every],
            "uuid": [self.context.strings[uuid] or None for (uuid, _), _ in devices],
            "samples": [each.samples for each in every],
            "time": [each.last - each.first for each in every],
            "energy": [
                each.curves["power"].integral / _JOULE if each.spreads["power"].count else None
                for each in every
            ],
            "power": [_scaled(_mean(each, "power"), _MW) for each in every],
            "min_power": spread("power", "least", _MW),
            "max_power": spread("power", "most", _MW),
            "power_limit": [_scaled(each.limit, _MW) for each in every],
            "clock": [_mean(each, "clock") for each in every],
            "min_clock": spread("clock", "least"),
            "max_clock": spread("clock", "most"),
            "highest_clock": [each.max_clock for each in every],
            "temperature": spread("temperature", "mean"),
            "min_temperature": spread("temperature", "least"),
            "max_temperature": spread("temperature", "most"),
            "memory": [_rounded(_mean(each, "memory_used")) for each in every],
            "min_memory": [_rounded(each) for each in spread("memory_used", "least")],
            "max_memory": [_rounded(each) for each in spread("memory_used", "most")],
            "memory_of_others": [each.memory_others for each in every],
            "other_processes": [each.others if each.reported else None for each in every],
            "utilization": spread("utilization", "mean", 100),
            "min_utilization": spread("utilization", "least", 100),
            "max_utilization": spread("utilization", "most", 100),
            "busy": [round(each.busy) for each in every],
            "throttled": [round(each.throttled["any"].time) for each in every],
        }
        units: dict[str, Unit] = {"time": "ns", "busy": "ns", "throttled": "ns"}
        for name in columns:
            if "memory" in name:
                units[name] = "bytes"
            elif "utilization" in name:
                units[name] = "share"
        levels = [name for name in columns if name not in ("device", "uuid", "samples")]
        return Table(
            columns,
            units=units,
            labels={
                "time": "first to last sample",
                "energy": "energy (J)",
                "power": "mean power (W)",
                "min_power": "min (W)",
                "max_power": "max power (W)",
                "power_limit": "limit (W)",
                "clock": "mean clock (MHz)",
                "min_clock": "min (MHz)",
                "max_clock": "max clock (MHz)",
                "highest_clock": "of at most (MHz)",
                "temperature": "mean temperature (°C)",
                "min_temperature": "min (°C)",
                "max_temperature": "max (°C)",
                "utilization": "mean utilization",
            },
            keys=("device",),
            sums=("samples",),
            levels=levels,
            important=("energy", "power", "clock", "max_temperature", "max_memory"),
            title="Devices: power, clocks, temperature, memory",
            hidden=frozenset(
                name
                for name, column in columns.items()
                if name.startswith("min_") or name == "samples" or all(v is None for v in column)
            ),
        )

    def _throttling(self, named: list[tuple[str, _Device]]) -> Table:
        rows = [
            (name, label, device, device.throttled[reason], device.loss(reason))
            for name, device in named
            for reason, label in _REASONS.items()
            if device.throttled[reason].time
        ]
        rows.sort(key=lambda row: -row[3].time)
        return Table(
            {
                "device": [name for name, *_ in rows],
                "reason": [label for _, label, *_ in rows],
                "time": [round(throttled.time) for *_, throttled, _ in rows],
                "share": [row[3].time / row[2].busy for row in rows],
                "clock": [throttled.mean for *_, throttled, _ in rows],
                "loss": [loss for *_, loss in rows],
            },
            units={"time": "ns", "share": "share", "loss": "share"},
            labels={
                "share": "of busy time",
                "clock": "mean clock (MHz)",
                "loss": "below the maximum clock",
            },
            keys=("device", "reason"),
            sums=("time",),
            title="Busy time with lowered clocks, by reason",
        )

    def _figures(self, named: list[tuple[str, _Device]]) -> dict[str, Figure]:
        charts: dict[str, tuple[str, str, int, Unit | None]] = {
            "power": ("Power of each device", "W", _MW, None),
            "clock": ("Clock of each device", "MHz", 1, None),
            "memory_used": ("Memory in use on each device, all processes", "", 1, "bytes"),
        }
        found = {}
        for key, (title, label, scale, unit) in charts.items():
            series, x = {}, None
            for name, device in named:
                if not device.spreads[key].count:
                    continue
                x, levels = device.curves[key].levels(self.end)
                if not np.isnan(levels).all():
                    series[name] = levels / scale
            if series:
                found[key.removesuffix("_used")] = Figure(
                    "step", title, x, series, x_label="time since start", x_unit="ns",
                    y_label=label, y_unit=unit,
                )  # fmt: skip
        return found

    def _slow(self, name: str, device: _Device) -> Iterator[Finding]:
        """Clocks that were lowered for a part of the busy time."""
        if not device.busy or device.busy < self.least_busy:
            return
        for reason, label in _REASONS.items():
            throttled, loss = device.throttled[reason], device.loss(reason)
            share = throttled.time / device.busy
            if loss is None or share < self.least_share or loss < self.least_loss:
                continue
            detail, heat = label, device.spreads["temperature"]
            if reason == "power" and device.limit is not None:
                detail += f" of {device.limit / _MW:,.0f} W"
            if reason == "thermal" and heat.count:
                detail += f", at up to {heat.most:.0f} °C"
            yield Finding(
                what=f"clocks are lowered: {label}",
                where=name,
                evidence=f"{formatted(share, 'share')} of "
                f"{formatted(round(device.busy), 'ns')} of busy time of {name} ("
                f"{detail}): {throttled.mean or 0:,.0f} MHz on average instead of "
                f"{device.max_clock:,} MHz",
                remedy=_REMEDIES[reason],
                gain=share * loss,
            )

    def _shared(self, name: str, device: _Device) -> Iterator[Finding]:
        """Other processes on the device."""
        if not device.shared:
            return
        memory = device.memory_others
        if memory is not None and memory < self.others_memory:
            return
        held = "an unknown amount of memory" if memory is None else formatted(memory, "bytes")
        of = f" of {formatted(device.memory, 'bytes')}" if device.memory and memory else ""
        share = formatted(device.shared / device.reported, "share")
        yield Finding(
            what="another process uses the device",
            where=name,
            evidence=f"up to {counted(device.others, 'other process')} held up to {held}{of}, in"
            f" {share} of {counted(device.reported, 'sample')}",
            remedy="end that process, or run on a device that no other process uses",
            confidence="medium" if memory is not None else "low",
        )

    def _summary(self, named: list[tuple[str, _Device]]) -> str:
        if not named:
            return "no device samples were taken"
        texts = []
        for name, device in named:
            parts = []
            power, clock = _mean(device, "power"), _mean(device, "clock")
            if power is not None:
                energy = device.curves["power"].integral / _JOULE
                parts.append(f"{energy:,.1f} J at {power / _MW:,.0f} W on average")
            if clock is not None:
                parts.append(f"{clock:,.0f} MHz")
            if device.busy and device.throttled["any"].time:
                share = formatted(device.throttled["any"].time / device.busy, "share")
                parts.append(f"clocks lowered for {share} of its busy time")
            texts.append(f"{name}: {', '.join(parts) or counted(device.samples, 'sample')}")
        return "; ".join(texts)

    def _notes(self) -> list[str]:
        if not self.devices:
            return ["devices are sampled under pasta-preload (run.telemetry-interval)"]
        used = [each for each in self.devices.values() if self._is_used(each)]
        if any(self._work_of(each) is None for each in used):
            return ["busy time is the time in which the driver reported a utilization above 0"]
        return []


def _mean(device: _Device, name: str) -> float | None:
    """Mean over time; of one sample its value."""
    mean = device.curves[name].mean
    return device.spreads[name].mean if mean is None else mean


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
