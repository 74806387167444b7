"""
The base of all watermark triggers.

Lifecycle, and what keeps each promise: Airflow builds a trigger from stored arguments, asks it for its
``shared_stream_key``, and has :meth:`BaseWatermarkTrigger.create_shared_stream_producer` open one stream for
it: a :class:`~airflow.providers.watermark.triggers.watching.Watch`, which ends only when it is cancelled.
Below Airflow 3.3 there are no shared streams, and :meth:`BaseWatermarkTrigger.run` opens the same one.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, ClassVar, Final, Literal
from weakref import WeakValueDictionary

from airflow.providers.watermark.asset_watermark import AssetWatermark
from airflow.providers.watermark.change import Change, HighWatermark, Page, Window, digest
from airflow.providers.watermark.delivery import (
    DEFAULT_COMMIT_DELAY,
    MIN_COMMIT_DELAY,
    AckModeProducer,
    Committer,
)
from airflow.providers.watermark.exceptions import ConfigurationError, InvalidArgumentError
from airflow.providers.watermark.position import BEGINNING, Position, parse_timestamp
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey, configured_store
from airflow.providers.watermark.triggers import arguments
from airflow.providers.watermark.triggers.dataclass import DataclassTrigger
from airflow.providers.watermark.triggers.watching import Watch
from airflow.providers.watermark.version_compat import round_trip
from airflow.providers.watermark.watermark import Sweep
from airflow.triggers.base import TriggerEvent

__all__ = ["BaseWatermarkTrigger"]

MIN_EVENT_BYTES: Final = 8192
MAX_EVENT_BYTES: Final = 1024 * 1024
MAX_COMMIT_DELAY: Final = 3600.0
MIN_POLL_INTERVAL: Final = 0.01

_RUNNING: WeakValueDictionary[str, BaseWatermarkTrigger] = WeakValueDictionary()
_INSTANCE: Final = "__instance__"


class _IdentityLog(logging.LoggerAdapter[logging.Logger]):
    """Says in each line which watcher speaks: the triggerer's log does not."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            extra = self.extra or {}
            text = str(msg) % args if args else str(msg)
            # As arguments: a name may have percent signs in it.
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, "[asset=%s source=%s] %s", extra["asset"], extra["source"], text, **kwargs)


class BaseWatermarkTrigger(DataclassTrigger):
    """
    Watches a source and delivers what is new in it: each change once, none lost.

    A subclass declares its arguments as annotated fields with defaults (they become keyword-only
    dataclass fields) and answers two questions, :meth:`get_high_watermark` and :meth:`read_changes`.
    The base does the rest.

    Delivery guarantee: at least once, whatever crashes; exactly once without a crash, stop or pause. What
    comes again carries the same ids.

    :param asset_name: The asset that this trigger watches for; :func:`~airflow.providers.watermark.watch`
        sets it.
    :param delivery: ``"eager"``: what is visible is delivered at once; ``"settled"``: only what is at or
        before the settled bound, so at least ``late_arrival`` old.
    :param start_from: What a watcher without a stored watermark begins with: ``"now"``, ``"beginning"``, or
        an instant as ISO 8601 with a UTC offset (inclusive).
    :param poll_interval: Seconds between two sweeps, above 0; jittered by a tenth.
    :param late_arrival: Seconds, above 0, by which a change may appear after its position without being
        lost.
    :param max_event_bytes: The most bytes of JSON that an event may have, 8192 to 1048576.
    :param max_seen: The most delivered changes to be remembered after the settled bound; beyond it, changes
        wait until they are settled.
    :param commit_delay: Seconds, above 0, between the acknowledgement of an event and the commit of its
        watermark; ``None`` means 5. Below Airflow 3.3 nothing is acknowledged: ``None`` means 10, and less
        than that has no effect. See :mod:`airflow.providers.watermark.delivery`.
    :param watermark_namespace: Where the watermark is stored; by default the watcher's short name.
    :param watermark_key: Likewise; by default a digest of what is watched.
    :param store: The class path of the store of this watcher's watermark, if it is not the one that
        ``[watermark] store`` names. In another store the watermark is another: copy it first.
    """

    watcher_name: ClassVar[str]
    """A short name of the watcher, used in events and as the default namespace."""

    source_fields: ClassVar[tuple[str, ...]]
    """The names of the fields that say what is watched. Another value of one is another source."""

    asset_name: str = ""
    delivery: str = "eager"
    start_from: str = "now"
    poll_interval: float = 60.0
    late_arrival: float = 600.0
    max_event_bytes: int = 49152
    max_seen: int = 4096
    commit_delay: float | None = None
    watermark_namespace: str | None = None
    watermark_key: str | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        """Set up what is no argument."""
        self._in_triggerer = False
        self._committer: Committer | None = None
        self._said: set[str] = set()

    # -- What a watcher answers -----------------------------------------------------------------------

    @property
    @abstractmethod
    def source(self) -> str:
        """What is watched, for people: a URI without secrets."""

    @abstractmethod
    async def get_high_watermark(self) -> HighWatermark:
        """
        Ask the source how far it is settled; called right before each reading.

        :return: The bound, by the source's own clock or order.
        :raises WatermarkError: The source cannot answer; the watcher backs off and asks again.
        """

    @abstractmethod
    def read_changes(self, sweep: Sweep) -> AsyncGenerator[Page, None]:
        """
        Read what is visible after ``sweep.low``, in the watcher's own reading order.

        Whatever :meth:`~airflow.providers.watermark.watermark.Sweep.concerns` says no to may be left out; it
        need not be. Reading starts after ``sweep.cursor``, if that is set.

        :raises WatermarkError: The source cannot answer; what was read so far counts.
        """

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        """
        Find the next window; only asked for by watchers that deliver windows.

        :param low: The low watermark, exclusive.
        :param bound: The settled bound, inclusive.
        :param high: The bound of a window that was intended before a crash, to be delivered as it is.
        :return: ``None`` if there is nothing new.
        """
        msg = f"{type(self).__name__} delivers windows but does not find them"
        raise NotImplementedError(msg)

    async def find_changes(self, identities: list[str]) -> Mapping[str, Change]:  # noqa: ARG002
        """
        Look up what is visible of some identities now; only asked for identities that are ``late``.

        :return: The present change of each that is there.
        """
        return {}

    def start_position(self, start: str) -> Position:
        """
        Read a ``start_from`` that is neither ``"now"`` nor ``"beginning"``.

        :return: The first position to deliver, inclusive.
        :raises ValueError: It is none.
        """
        return parse_timestamp(start)

    async def first_position(self, bounds: HighWatermark) -> Position:
        """
        Give the low watermark that ``start_from`` asks for; not asked for ``"beginning"``.

        :param bounds: What the source said just now.
        :return: The position after which all is news.
        """
        if self.start_from == "now":
            # The current step is delivered: it is not over yet.
            return bounds.due - bounds.step if isinstance(bounds.due, datetime) else bounds.bound
        start = self.start_position(self.start_from)
        try:
            return start - bounds.step if isinstance(start, datetime) else start
        except OverflowError:  # the first second of all
            return BEGINNING

    async def first_seen(self, low: Position) -> Mapping[str, Position]:  # noqa: ARG002
        """
        Name what is old news though it comes after the first low watermark; asked once, after it.

        :return: Ids of changes, with their positions.
        """
        return {}

    async def open(self) -> None:
        """Get ready to watch. Called before the first use of the source, and again after each error."""

    async def close(self) -> None:
        """Release what :meth:`open` took. Called on errors and at the end; must not raise."""

    def problems(self) -> Iterator[str]:
        """Find what is wrong with the arguments: each with its name, its value and what is allowed."""
        if not self.asset_name:
            yield (
                f"asset_name={self.asset_name!r}: must name the asset; "
                "airflow.providers.watermark.watch() sets it"
            )
        else:
            yield from arguments.text("asset_name", self.asset_name)
        if self.delivery is not type(self).delivery:
            yield from arguments.choice("delivery", self.delivery, ("eager", "settled"))
        yield from arguments.number("poll_interval", self.poll_interval, at_least=MIN_POLL_INTERVAL)
        if self.late_arrival is not type(self).late_arrival:
            yield from arguments.number("late_arrival", self.late_arrival, above=0)
        if self.commit_delay is not None:
            yield from arguments.number("commit_delay", self.commit_delay, above=0, at_most=MAX_COMMIT_DELAY)
        yield from arguments.whole(
            "max_event_bytes", self.max_event_bytes, at_least=MIN_EVENT_BYTES, at_most=MAX_EVENT_BYTES
        )
        yield from arguments.whole("max_seen", self.max_seen, at_least=1, at_most=65536)
        yield from arguments.text("watermark_namespace", self.watermark_namespace, optional=True)
        yield from arguments.text("watermark_key", self.watermark_key, optional=True)
        try:
            configured_store(self.store)
        except ConfigurationError as error:  # it names the option of [watermark] that is wrong
            yield str(error) if self.store is None else f"store={self.store!r}: {error}"
        if self.start_from not in ("now", "beginning"):
            try:
                self.start_position(self.start_from)
            except (ValueError, TypeError):
                yield (
                    f"start_from={self.start_from!r}: must be 'now', 'beginning', or a time with a UTC "
                    "offset such as '2026-01-31T00:00:00Z'"
                )
        known = {field.name for field in dataclasses.fields(self)}
        yield from arguments.suggest(self.unknown_arguments, known)

    # -- AIP-93's names -------------------------------------------------------------------------------

    @property
    def asset_watermark(self) -> AssetWatermark:
        """The watermark of this trigger, as an operator sees it."""
        return AssetWatermark(*self.key, store=self.make_store)

    @property
    def low_watermark(self) -> Position | None:
        """The committed low watermark, while the trigger runs and has one."""
        state = self._committer.committed if self._committer is not None else None
        return None if state is None else state.low

    async def persist_watermark(self, value: Position) -> None:
        """Set the low watermark, which is a rewind: what comes after it is delivered, again if need be."""
        await self.asset_watermark.aset_value(value)

    # -- Identity and arguments -----------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What is watched, for machines."""
        return {"watcher": self.watcher_name, **{name: getattr(self, name) for name in self.source_fields}}

    @property
    def key(self) -> WatermarkKey:
        """The name of the watermark: made from what is watched, never from tuning."""
        parts = (f"{name}={value!r}" for name, value in self.fingerprint.items())
        return WatermarkKey(
            asset_name=self.asset_name,
            namespace=self.watermark_namespace or self.watcher_name,
            key=self.watermark_key or digest(*parts),
        )

    @functools.cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:  # type: ignore[override]
        """A log whose lines name the watcher."""
        logger = logging.getLogger("airflow.providers.watermark.triggers")
        return _IdentityLog(logger, {"asset": self.asset_name, "source": self.source})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """
        Give the class path and the arguments to store.

        :raises InvalidArgumentError: While a Dag is parsed: an argument is wrong. In the triggerer nothing
            is raised.
        """
        cls = type(self)
        given = self.arguments()
        if self._in_triggerer:
            given[_INSTANCE] = self._instance
        elif found := list(self.problems()):
            msg = f"{cls.__name__}: " + "; ".join(found)
            raise InvalidArgumentError(msg)
        return f"{cls.__module__}.{cls.__qualname__}", given

    # -- What Airflow calls ---------------------------------------------------------------------------

    @property
    def _instance(self) -> str:
        return f"{self.trigger_id}:{id(self)}"

    def shared_stream_key(self) -> Hashable:
        """
        Give each trigger a stream of its own.

        The key holds the trigger's id: after an edit the old and the new trigger run side by side for a
        moment and must not share a stream.
        """
        # Airflow builds the producer from serialize()'s arguments alone, in a later step of its loop.
        # From here on these name this very instance, which is kept alive by run_trigger().
        self._in_triggerer = True
        _RUNNING[self._instance] = self
        return ("airflow-provider-watermark", self.trigger_id)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        """Open the stream of the instance whose ``shared_stream_key`` was asked for."""
        trigger = _RUNNING[kwargs[_INSTANCE]]
        committer = trigger._make_committer()  # noqa: SLF001 - it is one of us
        return AckModeProducer(Watch(trigger, committer).run(), committer)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Turn payloads into events; ``None`` only saves progress."""
        async for payload in shared_stream:
            if payload is not None:
                yield TriggerEvent(payload)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch without a shared stream: below Airflow 3.3, where nothing says when an event is stored."""
        committer = self._make_committer(round_trip=round_trip)
        async with aclosing(Watch(self, committer).run()) as emissions:
            async for emission in emissions:
                if emission.payload is not None:
                    yield TriggerEvent(emission.payload)
                emission.handed_over = True

    async def cleanup(self) -> None:
        """
        Commit nothing more; Airflow calls this whenever it ends a trigger.

        Below Airflow 3.3 one that is cancelled while an event is taken from it does not learn it otherwise.
        """
        if self._committer is not None:
            self._committer.abandon()

    def _make_committer(self, *, round_trip: Callable[[], Awaitable[None]] | None = None) -> Committer:
        delay = self.commit_delay
        if not isinstance(delay, int | float) or not 0 < delay <= MAX_COMMIT_DELAY:
            delay = DEFAULT_COMMIT_DELAY  # another release may have stored anything
        self._committer = Committer(
            self.make_store,
            self.key,
            source=self.fingerprint,
            commit_delay=max(MIN_COMMIT_DELAY, delay),
            log=self.log,
            round_trip=round_trip,
        )
        return self._committer

    # -- What the engine asks for ----------------------------------------------------------------------

    def make_store(self) -> BaseWatermarkStore:
        """Build the store of this watcher's watermark."""
        store = configured_store(self.store)
        store.bind(self)
        return store

    @property
    def delivers_windows(self) -> bool:
        """Whether an event carries the bounds of a final window rather than changes."""
        return False

    @property
    def window_column(self) -> str | None:
        """What the bounds of a window are compared with, as quoted SQL."""
        return None

    @property
    def facts(self) -> Mapping[str, str]:
        """What an operator should know of this watcher, kept in the stored status."""
        return {}

    @property
    def eager(self) -> bool:
        """Whether what is visible is delivered before it is settled."""
        return self.delivery == "eager"

    @property
    def lateness(self) -> float:
        """Seconds by which a change may appear after its position."""
        return self.late_arrival

    @property
    def max_changes_per_event(self) -> int:
        """The most changes that one event may carry."""
        return 500

    def say_once(self, topic: str, text: str | Literal[False]) -> None:
        """
        Warn about something as long as it lasts, but only once.

        :param topic: What it is about.
        :param text: What to say, or ``False`` once it is over.
        """
        if text and topic not in self._said:
            self.log.warning("%s", text)
        if text:
            self._said.add(topic)
        else:
            self._said.discard(topic)
